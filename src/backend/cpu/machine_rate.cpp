#include "backend/cpu/machine_rate.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace lockstep::backend {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Sum of the words of a range; several sums hide the latency of the additions.
std::uint64_t sum_of(const std::byte* data, std::size_t bytes) {
  constexpr std::size_t kWords = 32;
  std::uint64_t sums[kWords] = {};
  std::uint64_t words[kWords];
  for (std::size_t at = 0; at + sizeof(words) <= bytes; at += sizeof(words)) {
    std::memcpy(words, data + at, sizeof(words));
    for (std::size_t i = 0; i < kWords; ++i) sums[i] += words[i];
  }
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

Result<ReadTest> ReadTest::create(ThreadPool& pool, std::size_t bytes, const std::atomic<bool>& stop) {
  bytes = bytes / kHugePage * kHugePage;
  MemoryBlock<std::byte> memory = LOCKSTEP_TRY(aligned_block(kHugePage, bytes));
  ::madvise(memory.get(), bytes, MADV_HUGEPAGE);
  pool.parallel_for(bytes, kHugePage, [&](std::size_t begin, std::size_t end) {
    if (!stop.load()) std::memset(memory.get() + begin, 1, end - begin);
  });
  if (stop.load()) return fail(ErrorKind::Cancelled, "interrupted");
  return ReadTest(pool, std::move(memory), bytes);
}

double ReadTest::run() {
  std::vector<std::uint64_t> sums(bytes_ / kHugePage);
  const auto start = std::chrono::steady_clock::now();
  pool_->parallel_for(bytes_, kHugePage, [&](std::size_t begin, std::size_t end) {
    sums[begin / kHugePage] = sum_of(memory_.get() + begin, end - begin);
  });
  const double seconds = seconds_since(start);
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  // Every byte is 1: the sum is known, and the compiler cannot leave the reading out.
  const bool right = total == bytes_ / 8 * 0x0101010101010101U;
  return right ? static_cast<double>(bytes_) / seconds : 0.0;
}

namespace {

/// One measurement of `rounds` rounds on every thread at once, in multiply-adds a second, and how long it took. Threads
/// wait for one another before the clock starts, so that waking them is not counted; the clock stops with the last one.
double peak_once(const kernels::Kernels& kernels, ThreadPool& pool, std::int64_t rounds, double& seconds) {
  struct alignas(64) Share {
    double work = 0;
    std::chrono::steady_clock::time_point start, end;
  };
  std::vector<Share> shares(pool.threads());
  std::atomic<std::size_t> arrived{0};
  pool.parallel_for(shares.size(), 1, [&](std::size_t begin, std::size_t end) {
    kernels.integer_peak(rounds / 16 + 1);  // until the clock frequency has settled
    arrived.fetch_add(1);
    while (arrived.load() < shares.size()) std::this_thread::yield();
    for (std::size_t i = begin; i < end; ++i) {
      shares[i].start = std::chrono::steady_clock::now();
      shares[i].work = kernels.integer_peak(rounds);
      shares[i].end = std::chrono::steady_clock::now();
    }
  });
  double work = 0;
  auto first = shares[0].start;
  auto last = shares[0].end;
  for (const Share& share : shares) {
    work += share.work;
    first = std::min(first, share.start);
    last = std::max(last, share.end);
  }
  seconds = std::chrono::duration<double>(last - first).count();
  return work / seconds;
}

}  // namespace

double integer_peak(const kernels::Kernels& kernels, ThreadPool& pool, const std::atomic<bool>& stop) {
  constexpr double kLeastSeconds = 0.02;
  constexpr int kRepetitions = 9;
  if (kernels.integer_peak == nullptr) return 0;
  std::int64_t rounds = 10000;
  double seconds = 0;
  for (int doubling = 0; doubling < 16 && !stop.load(); ++doubling) {
    peak_once(kernels, pool, rounds, seconds);
    if (seconds >= kLeastSeconds) break;
    rounds *= 2;
  }
  double best = 0;
  for (int i = 0; i < kRepetitions && !stop.load(); ++i)
    best = std::max(best, peak_once(kernels, pool, rounds, seconds));
  return best;
}

}  // namespace lockstep::backend
