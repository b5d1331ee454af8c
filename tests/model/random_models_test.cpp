// E2, E3, E4, E5 and E7 on random geometries: rewinding, saving, forking, chunking, neighbours, threads, instruction
// sets and residency change no bit of logits or state.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "model/fixture.hpp"
#include "support/cases.hpp"
#include "support/random_model.hpp"
#include "support/scratch.hpp"
#include "support/state_parts.hpp"

namespace lockstep::model {
namespace {

using backend::StateType;

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
    states_.push_back(sequence.save_parts());
    for (const std::int32_t& token : tokens_) {
      logits_.push_back(step(sequence, {&token, 1}));
      states_.push_back(sequence.save_parts());
    }
  }

  [[nodiscard]] const Model& model() const { return *loaded_.model; }
  [[nodiscard]] Sequence create() const { return Sequence::create(model()).value(); }
  /// The state after `length` tokens.
  [[nodiscard]] Sequence at(std::size_t length) const {
    auto sequence = create();
    std::vector<std::byte> saved;
    for (const auto& [name, bytes] : states_[length]) saved.insert(saved.end(), bytes.begin(), bytes.end());
    EXPECT_TRUE(sequence.restore(saved));
    return sequence;
  }
  /// The part in which a sequence's state differs from that after `length` tokens, or nothing.
  [[nodiscard]] std::string difference(const Sequence& sequence, std::size_t length) const {
    return test::part_difference(states_[length], sequence.save_parts());
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
  std::vector<test::StateParts> states_;    ///< [0 .. length]
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
      ASSERT_EQ(walk.difference(sequence, at + keep), "") << keep << " of " << rows << " rows kept at " << at;
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
      ASSERT_EQ(test::part_difference(next.save_parts(), sequence.save_parts()), "");
      sequence = std::move(next);
      ASSERT_TRUE(same_bits(walk.step(sequence, {&walk.tokens_[i], 1}), walk.logits_[i])) << "step " << i;
      ASSERT_EQ(walk.difference(sequence, i + 1), "") << "step " << i;
    }
  }
}

TEST(RandomModels, ForksDivergeWithoutTouchingEachOther) {
  for (unsigned seed = 200; seed < 200 + test::cases(8); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Walk walk(seed, 140, state_of(seed));
    for (int fork_number = 0; fork_number < 25; ++fork_number) {
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
      ASSERT_EQ(walk.difference(original, at + rest.size()), "");
      auto cold = walk.at(at);
      for (const std::int32_t& token : other) walk.step(cold, {&token, 1});
      ASSERT_EQ(test::part_difference(fork.save_parts(), cold.save_parts()), "");
    }
  }
}

/// The walk's text in chunks of random sizes on `model`: logits after each chunk and the state are the walk's.
void expect_chunks(Walk& walk, const Model& model, std::size_t most) {
  auto runner = Runner::create(model, static_cast<std::int64_t>(most)).value();
  auto sequence = Sequence::create(model).value();
  for (std::size_t done = 0; done < walk.tokens_.size();) {
    const std::size_t count = std::min<std::size_t>(walk.random_() % most + 1, walk.tokens_.size() - done);
    const Segment segment{&sequence, std::span(walk.tokens_).subspan(done, count), LogitsWanted::Last, false};
    ASSERT_TRUE(runner.forward({&segment, 1}));
    done += count;
    ASSERT_TRUE(same_bits(runner.logits(), walk.logits_[done - 1])) << "after " << done << " tokens";
    ASSERT_EQ(walk.difference(sequence, done), "") << "after " << done << " tokens";
  }
}

TEST(RandomModels, AnyChunkingGivesTheBitsOfSingleTokens) {
  for (unsigned seed = 700; seed < 700 + test::cases(20); ++seed) {
    Walk walk(seed, 60, state_of(seed));
    for (int chunking = 0; chunking < 10; ++chunking) {
      const std::size_t most = chunking == 0 ? 60 : walk.random_() % 40 + 2;
      SCOPED_TRACE("seed " + std::to_string(seed) + ", chunks up to " + std::to_string(most));
      ASSERT_NO_FATAL_FAILURE(expect_chunks(walk, walk.model(), most));
    }
  }
}

/// Every instruction set with every number of threads, in chunks of random sizes.
TEST(RandomModels, ThreadsAndInstructionSetsGiveTheSameBits) {
  unsigned cases = 0;
  for (unsigned seed = 300; seed < 300 + test::cases(17) || cases < 200; ++seed) {
    Walk walk(seed, 24, state_of(seed));
    const artifact::Artifact artifact = test::random_model(seed);
    for (const kernels::Kernels* table : kernels::available_kernels()) {
      for (const std::size_t threads : {1U, 2U, 3U}) {
        backend::CpuOptions options;
        options.threads = threads;
        options.min_work = 1;  // or small models would run in one thread
        options.isa = std::string(table->name);
        SCOPED_TRACE("seed " + std::to_string(seed) + ", " + options.isa + ", " + std::to_string(threads) + " threads");
        ModelOptions model_options;
        model_options.state = state_of(seed);
        const auto model = Model::load(artifact, backend::CpuBackend::create(options).value(), model_options).value();
        ASSERT_NO_FATAL_FAILURE(expect_chunks(walk, *model, 24));
        ++cases;
      }
    }
  }
}

TEST(RandomModels, NeighboursChangeNothing) {
  for (unsigned seed = 400; seed < 400 + test::cases(12); ++seed) {
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
      ASSERT_EQ(walk.difference(sequence, done), "");
    }
  }
}

/// The same pack with the n-gram table mapped, and read row by row through caches of few and of many rows, in chunks of
/// any size, with io_uring and with threads.
TEST(RandomModels, AStreamedTableGivesTheBitsOfAResidentOne) {
  unsigned tables = 0;
  for (unsigned seed = 500; tables < test::cases(23); ++seed) {
    const Json geometry = test::random_geometry(seed, {.draft = {}, .vocabulary = {}, .thin = true});
    if (geometry["ple_layer_ids"].empty()) continue;
    ++tables;
    const test::ScratchDirectory scratch;
    const auto& recipes = artifact::recipe_names();
    const artifact::SynthModel description{parse_ordered_json(geometry.dump(), "geometry").value(),
                                           artifact::find_recipe(recipes[seed % recipes.size()]).value(), seed};
    ASSERT_TRUE(artifact::write_synthetic(description, scratch / "model", {}));
    std::mt19937 random(seed);
    const auto tokens = random_tokens(random, 30, geometry["vocab_size"].get<std::int64_t>());
    const auto traced = [&](const Model& model) {
      auto sequence = Sequence::create(model).value();
      Forward forward = run_all(model, tokens, static_cast<std::int64_t>(random() % 30 + 1), &sequence);
      return std::make_pair(std::move(forward.logits), sequence.save_parts());
    };
    artifact::Artifact made = artifact::make_synthetic_on_demand(description, 1).value();
    made.make_ready();
    backend::CpuOptions plain = one_thread();
    if (seed % 2 == 0) plain.isa = "scalar";  // reads weights where they are
    const auto memory = traced(*load(std::move(made), StateType::BF16, plain).model);
    for (unsigned setting = 0; setting < 10; ++setting) {
      backend::CpuOptions options = one_thread();
      options.ngram.mode = setting == 0 ? backend::NgramMode::Resident : backend::NgramMode::Streamed;
      options.ngram.cache_bytes = std::uint64_t{1} << (12 + random() % 7);
      options.ngram.force_pread = random() % 4 == 0;
      options.ngram.queue_depth = random() % 8 + 1;
      options.lanes.ple_aux_bytes = setting % 3 == 2 ? 20'000 : 0;
      SCOPED_TRACE("seed " + std::to_string(seed) + ", cache of " + std::to_string(options.ngram.cache_bytes));
      const auto outcome = traced(*load((scratch / "model").string(), StateType::BF16, options).model);
      ASSERT_TRUE(same_bits(memory.first, outcome.first));
      ASSERT_EQ(test::part_difference(memory.second, outcome.second), "");
    }
  }
}

}  // namespace
}  // namespace lockstep::model
