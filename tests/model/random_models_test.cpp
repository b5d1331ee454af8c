// E2, E3, E4, E5 and E7 on random geometries: rewinding, saving, forking, chunking, neighbours, threads, instruction
// sets and residency change no bit of logits or state.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "model/fixture.hpp"
#include "support/cases.hpp"
#include "support/random_model.hpp"
#include "support/scratch.hpp"

namespace lockstep::model {
namespace {

using backend::StateType;
using Bytes = std::vector<std::byte>;

StateType state_of(unsigned seed) {
  return seed % 3 == 0 ? StateType::F32 : StateType::BF16;
}

/// Random tokens; the hash boundary (2) appears now and then.
std::vector<std::int32_t> random_tokens(std::mt19937& random, std::size_t count, std::int64_t vocabulary) {
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& token : tokens) {
    token = random() % 10 == 0 ? 2 : static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary));
  }
  return tokens;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

/// One model, one runner and the token-by-token run of one text: all states and logits.
class Walk {
 public:
  Walk(unsigned seed, std::size_t length, StateType state)
      : random_(seed), loaded_(load(test::random_model(seed), state)), runner_(Runner::create(model(), 256).value()) {
    tokens_ = random_tokens(random_, length, model().config().vocab_size);
    auto sequence = create();
    states_.push_back(sequence.save());
    for (const std::int32_t& token : tokens_) {
      logits_.push_back(step(sequence, {&token, 1}));
      states_.push_back(sequence.save());
    }
  }

  [[nodiscard]] const Model& model() const { return *loaded_.model; }
  [[nodiscard]] Sequence create() const { return Sequence::create(model()).value(); }
  /// The state after `length` tokens.
  [[nodiscard]] Sequence at(std::size_t length) const {
    auto sequence = create();
    EXPECT_TRUE(sequence.restore(states_[length]));
    return sequence;
  }
  /// Last logits of some rows that stay.
  std::vector<float> step(Sequence& sequence, std::span<const std::int32_t> tokens) {
    const Segment segment{&sequence, tokens, LogitsWanted::Last, false};
    EXPECT_TRUE(runner_.forward({&segment, 1}));
    return {runner_.logits().begin(), runner_.logits().end()};
  }

  std::mt19937 random_;
  Loaded loaded_;
  Runner runner_;
  std::vector<std::int32_t> tokens_;
  std::vector<Bytes> states_;               ///< [0 .. length]
  std::vector<std::vector<float>> logits_;  ///< after token i
};

TEST(RandomModels, RowsAreTakenBackAtEveryPosition) {
  for (unsigned seed = 0; seed < test::cases(10); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Walk walk(seed, 70, state_of(seed));
    const auto vocabulary = static_cast<std::size_t>(walk.model().config().vocab_size);
    for (std::size_t at = 0; at + 5 <= walk.tokens_.size(); ++at) {
      const std::size_t rows = walk.random_() % 5 + 1, keep = walk.random_() % (rows + 1);
      std::vector<std::int32_t> tokens = random_tokens(walk.random_, rows, walk.model().config().vocab_size);
      std::copy_n(walk.tokens_.begin() + static_cast<std::ptrdiff_t>(at), keep, tokens.begin());
      auto sequence = walk.at(at);
      const Segment segment{&sequence, tokens, LogitsWanted::All, true};
      ASSERT_TRUE(walk.runner_.forward({&segment, 1}));
      for (std::size_t i = 0; i < keep; ++i) {
        ASSERT_TRUE(same_bits(walk.runner_.logits().subspan(i * vocabulary, vocabulary), walk.logits_[at + i]))
            << "position " << at + i;
      }
      sequence.commit(static_cast<std::int64_t>(rows), static_cast<std::int64_t>(keep));
      ASSERT_EQ(sequence.save(), walk.states_[at + keep]) << keep << " of " << rows << " rows kept at " << at;
    }
  }
}

TEST(RandomModels, SavedBytesContinueAlikeAtEveryStep) {
  for (unsigned seed = 100; seed < 100 + test::cases(8); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Walk walk(seed, 75, state_of(seed));
    auto sequence = walk.create();
    for (std::size_t i = 0; i < walk.tokens_.size(); ++i) {
      // Every step is made by a new sequence that knows nothing but the bytes.
      auto next = walk.at(i);
      ASSERT_EQ(next.save(), sequence.save());
      sequence = std::move(next);
      ASSERT_TRUE(same_bits(walk.step(sequence, {&walk.tokens_[i], 1}), walk.logits_[i])) << "step " << i;
      ASSERT_EQ(sequence.save(), walk.states_[i + 1]) << "step " << i;
    }
  }
}

TEST(RandomModels, ForksDivergeWithoutTouchingEachOther) {
  for (unsigned seed = 200; seed < 200 + test::cases(8); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Walk walk(seed, 140, state_of(seed));
    for (int fork_number = 0; fork_number < 12; ++fork_number) {
      const std::size_t at = walk.random_() % 130;
      SCOPED_TRACE("fork at " + std::to_string(at));
      auto original = walk.at(at);
      auto fork = original.fork().value();
      const auto other = random_tokens(walk.random_, walk.random_() % 9 + 1, walk.model().config().vocab_size);
      const std::span<const std::int32_t> rest = std::span(walk.tokens_).subspan(at, 10);
      // In turns, so that each writes between two steps of the other.
      for (std::size_t i = 0; i < rest.size(); ++i) {
        if (i < other.size()) walk.step(fork, {&other[i], 1});
        ASSERT_TRUE(same_bits(walk.step(original, rest.subspan(i, 1)), walk.logits_[at + i]));
      }
      ASSERT_EQ(original.save(), walk.states_[at + rest.size()]);
      auto cold = walk.at(at);
      for (const std::int32_t& token : other) walk.step(cold, {&token, 1});
      ASSERT_EQ(fork.save(), cold.save());
    }
  }
}

/// Chunks of random sizes, on every instruction set with some number of threads.
TEST(RandomModels, ChunksThreadsAndInstructionSetsGiveTheSameBits) {
  constexpr std::array<std::size_t, 3> kThreads{1, 2, 4};
  for (unsigned seed = 300; seed < 300 + test::cases(9); ++seed) {
    Walk walk(seed, 60, state_of(seed));
    std::size_t turn = seed;
    for (const kernels::Kernels* table : kernels::available_kernels()) {
      backend::CpuOptions options;
      options.threads = kThreads[turn++ % kThreads.size()];
      options.min_work = 1;  // or small models would run in one thread
      options.isa = std::string(table->name);
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + options.isa + ", " + std::to_string(options.threads) +
                   " threads");
      const Loaded other = load(test::random_model(seed), state_of(seed), options);
      auto runner = Runner::create(*other.model, 60).value();
      auto sequence = Sequence::create(*other.model).value();
      for (std::size_t done = 0; done < walk.tokens_.size();) {
        const std::size_t count = std::min<std::size_t>(walk.random_() % 40 + 1, walk.tokens_.size() - done);
        const Segment segment{&sequence, std::span(walk.tokens_).subspan(done, count), LogitsWanted::Last, false};
        ASSERT_TRUE(runner.forward({&segment, 1}));
        done += count;
        ASSERT_TRUE(same_bits(runner.logits(), walk.logits_[done - 1])) << "after " << done << " tokens";
        ASSERT_EQ(sequence.save(), walk.states_[done]) << "after " << done << " tokens";
      }
    }
  }
}

TEST(RandomModels, NeighboursChangeNothing) {
  for (unsigned seed = 400; seed < 400 + test::cases(10); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Walk walk(seed, 60, state_of(seed));
    auto sequence = walk.create();
    std::vector<Sequence> neighbours;
    for (int i = 0; i < 3; ++i) neighbours.push_back(walk.create());
    for (std::size_t done = 0; done < walk.tokens_.size();) {
      const std::size_t count = std::min<std::size_t>(walk.random_() % 6 + 1, walk.tokens_.size() - done);
      std::vector<std::vector<std::int32_t>> texts;
      std::vector<Segment> segments;
      const std::size_t before = walk.random_() % 4;
      for (std::size_t i = 0; i < neighbours.size(); ++i) {
        texts.push_back(random_tokens(walk.random_, walk.random_() % 7 + 1, walk.model().config().vocab_size));
      }
      for (std::size_t i = 0; i <= neighbours.size(); ++i) {
        if (i == before) {
          segments.push_back({&sequence, std::span(walk.tokens_).subspan(done, count), LogitsWanted::Last, false});
        }
        if (i < neighbours.size()) segments.push_back({&neighbours[i], texts[i], LogitsWanted::None, false});
      }
      ASSERT_TRUE(walk.runner_.forward(segments));
      done += count;
      ASSERT_TRUE(same_bits(walk.runner_.logits(), walk.logits_[done - 1])) << "after " << done << " tokens";
      ASSERT_EQ(sequence.save(), walk.states_[done]);
    }
  }
}

/// The same pack with the n-gram table mapped, and read row by row through a cache of few rows.
TEST(RandomModels, AStreamedTableGivesTheBitsOfAResidentOne) {
  unsigned tables = 0;
  for (unsigned seed = 500; tables < test::cases(5); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Json geometry = test::random_geometry(seed);
    if (geometry["ple_layer_ids"].empty()) continue;
    ++tables;
    const test::ScratchDirectory scratch;
    const auto& recipes = artifact::recipe_names();
    const artifact::SynthModel description{parse_ordered_json(geometry.dump(), "geometry").value(),
                                           artifact::find_recipe(recipes[seed % recipes.size()]).value(), seed};
    ASSERT_TRUE(artifact::write_synthetic(description, scratch / "model", {}));
    std::mt19937 random(seed);
    const auto tokens = random_tokens(random, 120, geometry["vocab_size"].get<std::int64_t>());
    backend::CpuOptions options = one_thread();
    options.ngram.mode = backend::NgramMode::Resident;
    const Forward resident = run_all(*load((scratch / "model").string(), StateType::BF16, options).model, tokens, 7);
    const Forward memory =
        run_all(*load(artifact::make_synthetic(description, 1).value(), StateType::BF16).model, tokens, 11);
    options.ngram.mode = backend::NgramMode::Streamed;
    options.ngram.cache_bytes = std::uint64_t{256} << 10;
    const Forward streamed = run_all(*load((scratch / "model").string(), StateType::BF16, options).model, tokens, 5);
    EXPECT_TRUE(same_bits(resident.logits, streamed.logits));
    EXPECT_TRUE(same_bits(resident.logits, memory.logits));
  }
}

}  // namespace
}  // namespace lockstep::model
