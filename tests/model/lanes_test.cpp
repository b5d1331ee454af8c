// Lanes inside the backend, seen from the model: the same logits and the same state, bit for bit, on and off; and the
// short draft head's logits.
#include <gtest/gtest.h>

#include <random>

#include "backend/ngram/ngram_store.hpp"
#include "model/fixture.hpp"
#include "support/cases.hpp"

namespace lockstep::model {
namespace {

using backend::LaneCounters;
using backend::LaneOptions;
using backend::StateType;

const std::string kData = LOCKSTEP_TEST_DATA;

std::vector<std::int32_t> random_tokens(std::mt19937& random, std::size_t count) {
  // Few different tokens now and then, so that their n-grams repeat.
  const unsigned range = random() % 2 == 0 ? 512 : 4;
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % range);
  return tokens;
}

struct Trace {
  std::vector<float> logits;
  std::vector<std::byte> state;
};

/// Two sequences that share steps: chunks of random sizes, then captured steps of which a random part stays.
Trace run(const Model& model, unsigned seed) {
  std::mt19937 random(seed);
  Runner runner = Runner::create(model, 128).value();
  std::vector<Sequence> sequences;
  for (int i = 0; i < 2; ++i) sequences.push_back(Sequence::create(model).value());
  Trace out;
  const auto keep = [&](const Status& status) {
    if (!status) throw std::runtime_error(status.error().message);
    out.logits.insert(out.logits.end(), runner.logits().begin(), runner.logits().end());
  };
  for (int step = 0; step < 8; ++step) {
    const bool capture = step % 2 == 1;
    std::vector<std::vector<std::int32_t>> tokens;
    std::vector<Segment> segments;
    for (std::size_t i = 0; i < 2; ++i) tokens.push_back(random_tokens(random, random() % (capture ? 5 : 60) + 1));
    for (std::size_t i = 0; i < 2; ++i) segments.push_back({&sequences[i], tokens[i], LogitsWanted::All, capture});
    keep(runner.forward(segments));
    for (std::size_t i = 0; capture && i < 2; ++i) {
      const auto rows = static_cast<std::int64_t>(tokens[i].size());
      sequences[i].commit(rows, static_cast<std::int64_t>(random() % tokens[i].size() + 1));
    }
  }
  for (const Sequence& sequence : sequences) {
    const std::vector<std::byte> state = sequence.save();
    out.state.insert(out.state.end(), state.begin(), state.end());
  }
  return out;
}

class BackendLanes : public testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] static Loaded loaded(const LaneOptions& lanes, StateType state, std::size_t threads = 1) {
    backend::CpuOptions options;
    options.threads = threads;
    options.min_work = threads > 1 ? 1 : options.min_work;  // small work is shared too
    options.lanes = lanes;
    return load(kData + "/" + GetParam(), state, options);
  }
};

TEST_P(BackendLanes, OnAndOffGiveTheSameBits) {
  for (const StateType state : {StateType::BF16, StateType::F32}) {
    const Loaded plain = loaded({}, state);
    std::vector<Trace> expected;
    constexpr unsigned kSeeds = 4;
    for (unsigned seed = 0; seed < kSeeds; ++seed) expected.push_back(run(*plain.model, seed));
    EXPECT_EQ(plain.model->backend().lane_counters().rowsel_rows, 0U);
    EXPECT_EQ(plain.model->backend().lane_counters().aux_misses, 0U);
    for (const LaneOptions& lanes : {LaneOptions{true, 0}, LaneOptions{false, 1 << 20}, LaneOptions{false, 5000},
                                     LaneOptions{true, 1}, LaneOptions{true, 60000}}) {
      for (const std::size_t threads : {1U, 3U}) {
        if (threads > 1 && (!lanes.pooled_rowsel || state == StateType::F32)) continue;  // slow on few cores
        const unsigned seeds = threads > 1 ? 1 : kSeeds;
        const Loaded tested = loaded(lanes, state, threads);
        EXPECT_EQ(tested.model->backend().lanes().pooled_rowsel, lanes.pooled_rowsel);
        for (unsigned seed = 0; seed < seeds; ++seed) {
          SCOPED_TRACE(fmt::format("rowsel {}, aux {}, threads {}, seed {}", lanes.pooled_rowsel, lanes.ple_aux_bytes,
                                   threads, seed));
          const Trace got = run(*tested.model, seed);
          ASSERT_EQ(got.logits.size(), expected[seed].logits.size());
          ASSERT_EQ(std::memcmp(got.logits.data(), expected[seed].logits.data(), got.logits.size() * sizeof(float)), 0);
          ASSERT_EQ(got.state, expected[seed].state);
        }
        const LaneCounters counters = tested.model->backend().lane_counters();
        EXPECT_EQ(counters.rowsel_rows > 50, lanes.pooled_rowsel);
        EXPECT_EQ(counters.aux_misses > 50, lanes.ple_aux_bytes > 0);
        if (lanes.ple_aux_bytes > 50000) {
          EXPECT_GT(counters.aux_hits, 5U);
        }
        if (lanes.ple_aux_bytes == 0) {
          EXPECT_EQ(counters.aux_hits, 0U);
        }
        EXPECT_GE(counters.rowsel_groups, counters.rowsel_rows * 9);
        EXPECT_LE(counters.rowsel_kept, counters.rowsel_groups);
      }
    }
  }
}

TEST_P(BackendLanes, KeptProductsServeRowsFromABrokenDiskOnlyWithTheFirstError) {
  backend::CpuOptions options;
  options.threads = 1;
  options.lanes.ple_aux_bytes = 1 << 20;
  options.ngram.mode = backend::NgramMode::Streamed;
  options.ngram.cache_bytes = 2000;
  std::atomic<bool> failing{false};
  options.ngram.intercept = [&](std::uint64_t, std::int64_t result) { return failing ? -EIO : result; };
  const Loaded model = load(kData + "/" + GetParam(), StateType::BF16, options);
  Runner runner = Runner::create(*model.model, 64).value();
  auto first = Sequence::create(*model.model).value();
  auto second = Sequence::create(*model.model).value();
  std::mt19937 random(1);
  const auto tokens = random_tokens(random, 60);
  const auto step = [&](Sequence& sequence) {
    const Segment segment{&sequence, tokens, LogitsWanted::Last, false};
    return runner.forward({&segment, 1});
  };
  ASSERT_TRUE(step(first));
  failing = true;
  // All products of these tokens are kept, yet nothing is answered from a table that cannot be read.
  const Status failed = step(second);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().kind, ErrorKind::Io);
  failing = false;
  auto third = Sequence::create(*model.model).value();
  EXPECT_EQ(step(third).error().message, failed.error().message);
}

TEST_P(BackendLanes, TheShortHeadGivesTheWholeHeadsLogits) {
  auto artifact = artifact::Artifact::open(kData + "/" + GetParam()).value();
  for (unsigned seed = 0; seed < test::cases(8); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    ModelOptions options;
    std::vector<std::int32_t> all(512);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
    std::shuffle(all.begin(), all.end(), random);
    all.resize(seed == 0 ? 1 : (seed == 1 ? 512 : random() % 511 + 1));
    options.draft_tokens = all;
    const auto model = Model::load(artifact, backend::CpuBackend::create(one_thread()).value(), options).value();
    ASSERT_TRUE(model->has_short_head());
    const auto draft = [&](bool short_head) {
      Runner runner = Runner::create(*model, 16).value();
      if (short_head) runner.use_short_head();
      auto sequence = Sequence::create(*model).value();
      std::mt19937 same(seed);
      const auto tokens = random_tokens(same, 9);
      const Segment segment{&sequence, tokens, LogitsWanted::None, false};
      EXPECT_TRUE(runner.forward({&segment, 1}));
      const DraftSegment rows{&sequence, tokens, runner.wide(0), LogitsWanted::All};
      EXPECT_TRUE(runner.draft({&rows, 1}));
      EXPECT_EQ(runner.short_head_rows(), short_head ? 9 : 0);
      return std::vector<float>(runner.logits().begin(), runner.logits().end());
    };
    const std::vector<float> whole = draft(false);
    const std::vector<float> part = draft(true);
    ASSERT_EQ(part.size(), whole.size());
    std::vector<bool> known(512);
    for (const std::int32_t token : all) known[static_cast<std::size_t>(token)] = true;
    for (std::size_t i = 0; i < part.size(); ++i) {
      const float expected = known[i % 512] ? whole[i] : kOutsideVocabulary;
      ASSERT_EQ(std::memcmp(&part[i], &expected, sizeof(float)), 0) << i;
    }
  }
}

TEST_P(BackendLanes, ListsThatDoNotFitTheHeadAreErrors) {
  auto artifact = artifact::Artifact::open(kData + "/" + GetParam()).value();
  for (const std::vector<std::int32_t>& wrong :
       std::vector<std::vector<std::int32_t>>{{-1}, {512}, {3, 3}, {5, INT32_MAX}}) {
    ModelOptions options;
    options.draft_tokens = wrong;
    const auto model = Model::load(artifact, backend::CpuBackend::create(one_thread()).value(), options);
    ASSERT_FALSE(model);
    EXPECT_EQ(model.error().kind, ErrorKind::Invalid);
  }
}

INSTANTIATE_TEST_SUITE_P(Toys, BackendLanes, testing::Values("toy-hf", "toy-pack"), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace lockstep::model
