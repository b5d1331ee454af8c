#include "base/thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

struct Range {
  std::size_t begin, end;
};

/// The ranges of one loop, sorted.
std::vector<Range> ranges_of(ThreadPool& pool, std::size_t count, std::size_t grain) {
  std::mutex mutex;
  std::vector<Range> ranges;
  pool.parallel_for(count, grain, [&](std::size_t begin, std::size_t end) {
    const std::lock_guard lock(mutex);
    ranges.push_back({begin, end});
  });
  std::ranges::sort(ranges, {}, &Range::begin);
  return ranges;
}

TEST(ThreadPool, RangesPartitionTheLoop) {
  for (const std::size_t threads : {1U, 2U, 3U, 5U, 8U}) {
    ThreadPool pool(threads);
    ASSERT_EQ(pool.threads(), threads);
    for (unsigned seed = 0; seed < 200; ++seed) {
      std::mt19937 random(seed);
      const std::size_t count = random() % (seed % 2 == 0 ? 20 : 3000);
      const std::size_t grain = random() % 70;  // 0 counts as 1
      SCOPED_TRACE(testing::Message() << "threads " << threads << " count " << count << " grain " << grain);
      const std::vector<Range> ranges = ranges_of(pool, count, grain);
      std::size_t next = 0;
      for (const Range& range : ranges) {
        ASSERT_EQ(range.begin, next);
        ASSERT_LT(range.begin, range.end);
        ASSERT_TRUE(range.end == count || range.end % std::max<std::size_t>(grain, 1) == 0);
        next = range.end;
      }
      ASSERT_EQ(next, count);
      ASSERT_LE(ranges.size(), threads);
    }
  }
}

TEST(ThreadPool, EveryLoopSeesWhatTheLastOneWrote) {
  // Each loop reads what other threads wrote in the one before, with plain loads: TSan sees a missing barrier.
  ThreadPool pool(4);
  constexpr std::size_t kCount = 257;
  std::vector<std::uint64_t> values(kCount, 1);
  std::vector<std::uint64_t> next(kCount);
  std::uint64_t expected = 1;
  for (int loop = 0; loop < 2000; ++loop) {
    pool.parallel_for(kCount, 1, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) next[i] = values[kCount - 1 - i] + 1;
    });
    std::swap(values, next);
    ++expected;
  }
  EXPECT_TRUE(std::ranges::all_of(values, [&](std::uint64_t value) { return value == expected; }));
}

TEST(ThreadPool, WorkersThatHaveParkedWakeUp) {
  ThreadPool pool(3);
  for (int loop = 0; loop < 20; ++loop) {
    // Long enough serial work for the workers to stop spinning.
    volatile std::uint64_t busy = 0;
    for (int i = 0; i < 1'000'000; ++i) busy = busy + 1;
    std::atomic<std::size_t> sum{0};
    pool.parallel_for(100, 1, [&](std::size_t begin, std::size_t end) { sum += end - begin; });
    ASSERT_EQ(sum, 100U);
  }
}

TEST(ThreadPool, TakesAnyCallable) {
  ThreadPool pool(2);
  std::atomic<std::size_t> sum{0};
  const std::function<void(std::size_t, std::size_t)> function = [&](std::size_t begin, std::size_t end) {
    sum += end - begin;
  };
  pool.parallel_for(10, 1, function);
  auto counting = [&sum](std::size_t begin, std::size_t end) mutable { sum += end - begin; };
  pool.parallel_for(10, 1, counting);
  EXPECT_EQ(sum, 20U);
}

TEST(ThreadPool, StartsAndStopsQuickly) {
  for (int i = 0; i < 200; ++i) {
    ThreadPool pool(1 + static_cast<std::size_t>(i) % 6);
    if (i % 2 == 0) {
      EXPECT_FALSE(ranges_of(pool, 10, 1).empty());
    }
  }
}

TEST(ThreadPool, AbsurdTeamsAreCut) {
  ThreadPool pool(1'000'000'000);
  EXPECT_LE(pool.threads(), ThreadPool::kMaxThreads);
  EXPECT_EQ(ranges_of(pool, 7, 1).size(), 7U);
}

TEST(ThreadPool, DefaultTeamIsTheMachine) {
  EXPECT_GE(physical_cores(), 1U);
  EXPECT_LE(physical_cores(), std::max(1U, std::thread::hardware_concurrency()));
  EXPECT_EQ(ThreadPool(0).threads(), physical_cores());
}

TEST(Cores, QuotaOfAControlGroup) {
  EXPECT_EQ(quota_processors("max 100000"), 0U);
  EXPECT_EQ(quota_processors("200000 100000"), 2U);
  EXPECT_EQ(quota_processors("150000 100000"), 2U);
  EXPECT_EQ(quota_processors("1000 100000"), 1U);
  for (const char* text : {"", "100", "-1 100000", "100 0", "100 -5", "x y", "99999999999999999999 1"}) {
    EXPECT_EQ(quota_processors(text), 0U) << text;
  }
}

}  // namespace
}  // namespace lockstep
