// The hand-over of rows between the user thread, which wants them, and the I/O threads, which read them.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "backend/ngram/memory_block.hpp"
#include "base/result.hpp"

namespace lockstep::backend {

/// Slots of a cache (row_cache.hpp) travel out with push() and take(), and back with complete() and wait(). After the
/// first failure nothing is handed out any more.
class RowQueue {
 public:
  struct Counters {
    std::uint64_t rows = 0, bytes = 0, read_nanoseconds = 0, wait_nanoseconds = 0;
  };

  /// For slots below `capacity`. Errors: Limit.
  static Result<std::unique_ptr<RowQueue>> create(std::uint32_t capacity);

  // The user thread.
  /// Hands out slots, none of which is on its way already.
  void push(std::span<const std::uint32_t> slots);
  [[nodiscard]] bool ready(std::uint32_t slot) const { return ready_[slot].load(std::memory_order_acquire) != 0; }
  /// Stands still until the slot's row has arrived. Errors: the first failure.
  Status wait(std::uint32_t slot);
  [[nodiscard]] Status status() const;
  [[nodiscard]] Counters counters() const;
  /// Lets I/O threads leave take(); what they have taken they still finish.
  void close();

  // I/O threads.
  /// Takes up to slots.size() slots. Without any, waits for some if `block` is set. 0 and block: the work is over.
  std::size_t take(std::span<std::uint32_t> slots, bool block);
  /// Reports rows that have arrived, and the bytes read for them.
  void complete(std::span<const std::uint32_t> slots, std::uint64_t bytes);
  /// Keeps the first error.
  void fail_with(const Error& error);

 private:
  using Clock = std::chrono::steady_clock;
  explicit RowQueue(std::uint32_t capacity) : capacity_(capacity) {}

  const std::uint32_t capacity_;
  MemoryBlock<std::uint32_t> ring_;
  std::unique_ptr<std::atomic<std::uint8_t>[]> ready_;

  mutable std::mutex mutex_;
  std::condition_variable work_, arrived_;
  std::uint64_t pushed_ = 0, taken_ = 0, completed_ = 0;  ///< slots in all; pushed_ - taken_ wait in the ring
  bool closed_ = false;
  Status status_;
  Counters counters_;
  Clock::time_point busy_since_;
};

}  // namespace lockstep::backend
