// The n-gram table's residency seen from the model: the same logits, and steps that fail without harm.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <random>

#include "backend/ngram/ngram_store.hpp"
#include "model/fixture.hpp"

namespace lockstep::model {
namespace {

using backend::NgramMode;
using backend::StateType;

const std::string kData = LOCKSTEP_TEST_DATA;

std::vector<std::int32_t> some_tokens(unsigned seed, std::size_t count) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % 512);
  return tokens;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

class NgramResidency : public testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] static Loaded loaded(NgramMode mode, std::uint64_t cache_bytes = 1 << 20, bool pread = false,
                                     backend::ReadIntercept intercept = {}) {
    backend::CpuOptions options;
    options.threads = 1;
    options.ngram.mode = mode;
    options.ngram.cache_bytes = cache_bytes;
    options.ngram.force_pread = pread;
    options.ngram.intercept = std::move(intercept);
    return load(kData + "/" + GetParam(), StateType::BF16, options);
  }
};

Status step(Runner& runner, Sequence& sequence, std::span<const std::int32_t> tokens, bool capture = false) {
  const Segment segment{&sequence, tokens, LogitsWanted::All, capture};
  return runner.forward({&segment, 1});
}

TEST_P(NgramResidency, StreamedLogitsAreThoseOfTheResidentTable) {
  const auto tokens = some_tokens(1, 150);
  const Forward expected = run_all(*loaded(NgramMode::Resident).model, tokens, 40);
  for (const bool pread : {false, true}) {
    for (const std::uint64_t cache : {400U, 20000U, 1U << 20}) {
      const Loaded model = loaded(NgramMode::Streamed, cache, pread);
      EXPECT_TRUE(same_bits(run_all(*model.model, tokens, 40).logits, expected.logits)) << cache;
      const backend::NgramStore* store = model.model->backend().ngram_store();
      EXPECT_TRUE(store->describe().starts_with("streamed"));
      EXPECT_EQ(store->counters().hits + store->counters().misses,
                150U * static_cast<std::uint64_t>(model.model->config().ngram_heads()));
    }
  }
}

TEST_P(NgramResidency, RowsReadAheadAreThoseThatTheStepNeeds) {
  const Loaded model = loaded(NgramMode::Streamed);
  auto runner = Runner::create(*model.model, 64).value();
  auto sequence = Sequence::create(*model.model).value();
  const auto tokens = some_tokens(2, 90);
  ASSERT_TRUE(step(runner, sequence, std::span(tokens).first(30)));
  // The chunk after the next one, then drafted tokens one by one.
  ASSERT_TRUE(runner.prefetch(sequence, std::span(tokens).subspan(30, 50), 0));
  for (std::size_t i = 80; i < 90; ++i) {
    ASSERT_TRUE(runner.prefetch(sequence, std::span(tokens).subspan(30, i - 30 + 1), i - 30));
  }
  const backend::NgramStore* store = model.model->backend().ngram_store();
  const std::uint64_t read = store->counters().rows_read;
  ASSERT_TRUE(step(runner, sequence, std::span(tokens).subspan(30, 20)));
  ASSERT_TRUE(step(runner, sequence, std::span(tokens).subspan(50, 32)));
  ASSERT_TRUE(step(runner, sequence, std::span(tokens).subspan(82, 8), true));
  sequence.commit(8, 8);
  EXPECT_EQ(store->counters().rows_read, read);
  const std::int32_t bad = 512;
  EXPECT_FALSE(runner.prefetch(sequence, {&bad, 1}, 0));
}

/// A table whose reads fail from now on.
struct Switch {
  std::atomic<bool> failing{false};
  [[nodiscard]] backend::ReadIntercept intercept() {
    return [this](std::uint64_t, std::int64_t result) { return failing ? -EIO : result; };
  }
};

TEST_P(NgramResidency, AFailedReadBreaksOnlyTheSequencesOfItsStep) {
  Switch disk;
  const Loaded model = loaded(NgramMode::Streamed, 2000, false, disk.intercept());
  auto runner = Runner::create(*model.model, 300).value();
  const auto tokens = some_tokens(3, 300);
  auto hit = Sequence::create(*model.model).value();
  auto other = Sequence::create(*model.model).value();
  ASSERT_TRUE(step(runner, hit, std::span(tokens).first(10)));
  ASSERT_TRUE(step(runner, other, std::span(tokens).first(63)));
  const auto before = other.save();
  const auto saved = hit.save();
  disk.failing = true;
  const Status first = step(runner, hit, std::span(tokens).subspan(100, 200));
  ASSERT_FALSE(first);
  EXPECT_EQ(first.error().kind, ErrorKind::Io);
  EXPECT_NE(first.error().message.find("reload the model"), std::string::npos) << first.error().message;
  EXPECT_TRUE(hit.broken());
  EXPECT_EQ(hit.length(), 10);
  EXPECT_FALSE(hit.fork());
  disk.failing = false;

  // A broken sequence is refused for what broke it, others for the same, and those are as they were.
  EXPECT_EQ(step(runner, hit, std::span(tokens).first(1)).error().message, first.error().message);
  for (const bool capture : {false, true}) {
    const std::span<const std::int32_t> rows = capture ? std::span(tokens).first(8) : std::span(tokens);
    EXPECT_EQ(step(runner, other, rows, capture).error().message, first.error().message);
    EXPECT_FALSE(other.broken());
    EXPECT_EQ(other.save(), before);
  }
  EXPECT_EQ(runner.prefetch(other, tokens, 0).error().message, first.error().message);
  EXPECT_EQ(model.model->backend().ngram_store()->status().error().message, first.error().message);

  // After a reload the saved states go on.
  const Loaded again = loaded(NgramMode::Streamed);
  auto fresh = Runner::create(*again.model, 300).value();
  auto restored = Sequence::create(*again.model).value();
  ASSERT_TRUE(restored.restore(saved));
  ASSERT_TRUE(hit.restore(saved));
  EXPECT_FALSE(hit.broken());
  EXPECT_TRUE(step(fresh, restored, std::span(tokens).subspan(10, 5)));
}

TEST_P(NgramResidency, ACapturedStepThatFailsLeavesNoTrace) {
  Switch disk;
  const Loaded model = loaded(NgramMode::Streamed, 2000, true, disk.intercept());
  auto runner = Runner::create(*model.model, 64).value();
  const auto tokens = some_tokens(4, 70);
  auto sequence = Sequence::create(*model.model).value();
  ASSERT_TRUE(step(runner, sequence, std::span(tokens).first(62)));
  const auto before = sequence.save();
  disk.failing = true;
  ASSERT_FALSE(step(runner, sequence, std::span(tokens).last(8), true));
  EXPECT_FALSE(sequence.broken());
  EXPECT_EQ(sequence.save(), before);
}

INSTANTIATE_TEST_SUITE_P(Toys, NgramResidency, testing::Values("toy-hf", "toy-pack"), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace lockstep::model
