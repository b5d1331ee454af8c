// The equalities of docs/numerics.md on the tiny models: memcmp of logits and of whole saved states.
#include <gtest/gtest.h>

#include <random>

#include "model/fixture.hpp"
#include "support/cases.hpp"

namespace lockstep::model {
namespace {

using backend::StateType;

const std::string kData = LOCKSTEP_TEST_DATA;

/// Random tokens; the hash boundary (2) appears now and then.
std::vector<std::int32_t> random_tokens(std::mt19937& random, std::size_t count, std::int32_t vocabulary) {
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& token : tokens) {
    token = random() % 12 == 0 ? 2 : static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary));
  }
  return tokens;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

class Equality : public testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] Loaded loaded(StateType state, const backend::CpuOptions& options = one_thread()) const {
    return load(kData + "/" + GetParam(), state, options);
  }
};

/// Runs tokens one at a time, last logits only.
std::vector<float> token_by_token(Runner& runner, Sequence& sequence, std::span<const std::int32_t> tokens) {
  for (const std::int32_t& token : tokens) {
    const Segment segment{&sequence, {&token, 1}, LogitsWanted::Last, false};
    EXPECT_TRUE(runner.forward({&segment, 1}));
  }
  return {runner.logits().begin(), runner.logits().end()};
}

TEST_P(Equality, AnyChunkingEqualsTokenByToken) {
  for (const StateType state : {StateType::BF16, StateType::F32}) {
    const Loaded model = loaded(state);
    std::mt19937 random(11);
    for (const std::size_t length : {1U, 2U, 3U, 4U, 5U, 31U, 36U, 63U, 64U, 65U, 130U}) {
      const auto tokens = random_tokens(random, length, 512);
      auto reference = Sequence::create(*model.model).value();
      const Forward one = run_all(*model.model, tokens, 1, &reference);
      for (const std::int64_t chunk : {std::int64_t{0}, std::int64_t{2}, std::int64_t{3}, std::int64_t{7},
                                       std::int64_t{static_cast<int>(random() % 40 + 1)}}) {
        auto sequence = Sequence::create(*model.model).value();
        const Forward chunked = run_all(*model.model, tokens, chunk, &sequence);
        EXPECT_TRUE(same_bits(one.logits, chunked.logits)) << "length " << length << ", chunk " << chunk;
        EXPECT_EQ(reference.save(), sequence.save()) << "length " << length << ", chunk " << chunk;
      }
    }
  }
}

TEST_P(Equality, AnyThreadCountAndInstructionSet) {
  std::mt19937 random(12);
  const auto tokens = random_tokens(random, 90, 512);
  backend::CpuOptions plain;
  plain.threads = 1;
  plain.isa = "scalar";
  const Forward reference = run_all(*loaded(StateType::BF16, plain).model, tokens, 17);
  for (const kernels::Kernels* table : kernels::available_kernels()) {
    for (const std::size_t threads : {1U, 2U, 3U}) {
      backend::CpuOptions options;
      options.threads = threads;
      options.min_work = 1;  // or small models would run in one thread
      options.isa = std::string(table->name);
      const Forward result = run_all(*loaded(StateType::BF16, options).model, tokens, 17);
      EXPECT_TRUE(same_bits(reference.logits, result.logits)) << table->name << ", " << threads << " threads";
    }
  }
}

TEST_P(Equality, CapturedRowsAreTakenBackWithoutATrace) {
  const Loaded model = loaded(StateType::BF16);
  auto runner = Runner::create(*model.model, 16).value();
  for (unsigned seed = 0; seed < test::cases(60); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    auto tested = Sequence::create(*model.model).value();
    auto reference = Sequence::create(*model.model).value();
    std::vector<float> tested_logits;
    for (int cycle = 0; cycle < 8; ++cycle) {
      const std::size_t rows = random() % 5 + 1;
      const std::size_t keep = random() % (rows + 1);
      const auto tokens = random_tokens(random, rows, 512);
      const Segment segment{&tested, tokens, LogitsWanted::All, true};
      ASSERT_TRUE(runner.forward({&segment, 1}));
      tested_logits.assign(runner.logits().begin(), runner.logits().end());
      tested.commit(static_cast<std::int64_t>(rows), static_cast<std::int64_t>(keep));
      const std::span<const std::int32_t> kept = std::span(tokens).first(keep);
      for (std::size_t i = 0; i < keep; ++i) {
        const auto expected = token_by_token(runner, reference, kept.subspan(i, 1));
        ASSERT_TRUE(same_bits(std::span(tested_logits).subspan(i * 512, 512), expected)) << "cycle " << cycle;
      }
      ASSERT_EQ(tested.tokens(), reference.tokens());
      ASSERT_EQ(tested.save(), reference.save()) << "cycle " << cycle << ", " << keep << " of " << rows << " kept";
    }
  }
}

TEST_P(Equality, SavedAndForkedSequencesContinueAlike) {
  const Loaded model = loaded(StateType::BF16);
  auto runner = Runner::create(*model.model, 200).value();
  for (unsigned seed = 0; seed < test::cases(20); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto prompt = random_tokens(random, random() % 150 + 1, 512);
    const auto rest = random_tokens(random, 9, 512);
    const auto other = random_tokens(random, 70, 512);
    auto original = Sequence::create(*model.model).value();
    token_by_token(runner, original, prompt);
    auto fork = original.fork().value();
    auto restored = Sequence::create(*model.model).value();
    token_by_token(runner, restored, other);  // must leave no trace
    ASSERT_TRUE(restored.restore(original.save()));
    ASSERT_EQ(restored.save(), original.save());
    const auto expected = token_by_token(runner, original, rest);
    token_by_token(runner, original, other);  // writes to pages that the fork shares
    EXPECT_TRUE(same_bits(token_by_token(runner, fork, rest), expected));
    EXPECT_TRUE(same_bits(token_by_token(runner, restored, rest), expected));
    EXPECT_EQ(fork.save(), restored.save());
  }
}

TEST_P(Equality, BatchedWithAnyNeighboursEqualsAlone) {
  const Loaded model = loaded(StateType::BF16);
  auto runner = Runner::create(*model.model, 64).value();
  for (unsigned seed = 0; seed < test::cases(20); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::size_t count = random() % 4 + 2;
    std::vector<Sequence> together;
    std::vector<Sequence> alone;
    for (std::size_t i = 0; i < count; ++i) {
      together.push_back(Sequence::create(*model.model).value());
      alone.push_back(Sequence::create(*model.model).value());
    }
    for (int step = 0; step < 6; ++step) {
      std::vector<std::vector<std::int32_t>> tokens(count);
      std::vector<Segment> segments;
      for (std::size_t i = 0; i < count; ++i) {
        tokens[i] = random_tokens(random, random() % 13 + 1, 512);
        segments.push_back({&together[i], tokens[i], LogitsWanted::Last, false});
      }
      ASSERT_TRUE(runner.forward(segments));
      const std::vector<float> batched(runner.logits().begin(), runner.logits().end());
      for (std::size_t i = 0; i < count; ++i) {
        const Segment segment{&alone[i], tokens[i], LogitsWanted::Last, false};
        ASSERT_TRUE(runner.forward({&segment, 1}));
        ASSERT_TRUE(same_bits(std::span(batched).subspan(i * 512, 512), runner.logits())) << "step " << step;
      }
    }
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(together[i].save(), alone[i].save());
  }
}

TEST_P(Equality, DamagedSavedStatesAreRefused) {
  const Loaded model = loaded(StateType::BF16);
  auto runner = Runner::create(*model.model, 64).value();
  auto sequence = Sequence::create(*model.model).value();
  std::mt19937 random(5);
  token_by_token(runner, sequence, random_tokens(random, 20, 512));
  const auto saved = sequence.save();
  auto target = Sequence::create(*model.model).value();
  token_by_token(runner, target, random_tokens(random, 7, 512));
  const auto before = target.save();
  // What the target held it still holds, wherever the bytes end or go wrong.
  for (std::size_t bytes = 0; bytes < saved.size(); bytes += 1 + saved.size() / 50) {
    EXPECT_FALSE(target.restore(std::span(saved).first(bytes)));
    ASSERT_EQ(target.save(), before) << bytes;
  }
  EXPECT_FALSE(target.restore(std::span(saved).first(saved.size() - 1)));
  for (const std::int32_t id : {512, -1}) {
    auto foreign = saved;
    std::memcpy(foreign.data() + 24 + 3 * sizeof(id), &id, sizeof(id));  // behind the header
    const Status status = target.restore(foreign);
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find("token id " + std::to_string(id) + " at position 3"), std::string::npos)
        << status.error().message;
  }
  auto endless = saved;
  endless[8 + 3] = std::byte{0x01};  // 2^24 tokens, which the bytes do not hold
  EXPECT_FALSE(target.restore(endless));
  auto longer = saved;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(target.restore(longer));
  auto wrong = saved;
  wrong[0] = std::byte{'X'};
  EXPECT_FALSE(target.restore(wrong));
  auto huge = saved;
  huge[14] = std::byte{0x7f};
  EXPECT_FALSE(target.restore(huge));
  EXPECT_EQ(target.save(), before);
  ASSERT_TRUE(target.restore(saved));
  EXPECT_EQ(target.save(), saved);
}

TEST_P(Equality, BadTokensAndFullContextsAreErrors) {
  const Loaded model = loaded(StateType::BF16);
  auto runner = Runner::create(*model.model, 8).value();
  auto sequence = Sequence::create(*model.model).value();
  for (const std::int32_t token : {-1, 512, 1 << 30}) {
    const Segment segment{&sequence, {&token, 1}, LogitsWanted::Last, false};
    const Status status = runner.forward({&segment, 1});
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find("vocabulary"), std::string::npos);
  }
  EXPECT_EQ(sequence.length(), 0);
}

INSTANTIATE_TEST_SUITE_P(Toys, Equality, testing::Values("toy-hf", "toy-pack"), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace lockstep::model
