// What this machine can do at most: reading memory, and integer multiply-adds.
#pragma once

#include <atomic>
#include <utility>

#include "backend/ngram/memory_block.hpp"
#include "base/result.hpp"
#include "base/thread_pool.hpp"
#include "kernels/cpu/kernels.hpp"

namespace lockstep::backend {

/// Reads memory with all threads of a pool, as a decode step reads weights.
class ReadTest {
 public:
  /// Allocates `bytes`, which should be several times the last cache. Errors: Limit; Cancelled once `stop` is set.
  static Result<ReadTest> create(ThreadPool& pool, std::size_t bytes, const std::atomic<bool>& stop);
  /// Bytes per second of one pass over the memory.
  double run();

 private:
  ReadTest(ThreadPool& pool, MemoryBlock<std::byte> memory, std::size_t bytes)
      : pool_(&pool), memory_(std::move(memory)), bytes_(bytes) {}
  ThreadPool* pool_;
  MemoryBlock<std::byte> memory_;
  std::size_t bytes_;
};

/// Multiply-adds of a code and a 16-bit activation per second, all threads together; 0 for tables without vector
/// kernels. `stop` ends it early, with what was measured so far.
[[nodiscard]] double integer_peak(const kernels::Kernels& kernels, ThreadPool& pool, const std::atomic<bool>& stop);

}  // namespace lockstep::backend
