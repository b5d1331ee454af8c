#include "backend/cpu/machine_rate.hpp"

#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <cstring>
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

Result<ReadTest> ReadTest::create(ThreadPool& pool, std::size_t bytes) {
  bytes = bytes / kHugePage * kHugePage;
  MemoryBlock<std::byte> memory = LOCKSTEP_TRY(aligned_block(kHugePage, bytes));
  ::madvise(memory.get(), bytes, MADV_HUGEPAGE);
  pool.parallel_for(bytes, kHugePage,
                    [&](std::size_t begin, std::size_t end) { std::memset(memory.get() + begin, 1, end - begin); });
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

double integer_peak(const kernels::Kernels& kernels, ThreadPool& pool) {
  constexpr std::int64_t kRounds = 200000;
  if (kernels.integer_peak == nullptr) return 0;
  std::vector<double> done(pool.threads());
  double best = 0;
  for (int repetition = 0; repetition < 5; ++repetition) {
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(done.size(), 1, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) done[i] = kernels.integer_peak(kRounds);
    });
    const double seconds = seconds_since(start);
    double sum = 0;
    for (const double d : done) sum += d;
    best = sum / seconds > best ? sum / seconds : best;
  }
  return best;
}

}  // namespace lockstep::backend
