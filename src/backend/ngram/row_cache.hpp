// A bounded cache of packed rows: which row is in which slot, and which slot was used longest ago.
//
// Everything is allocated at the start; nothing here locks. The bookkeeping belongs to the user thread. I/O threads
// write the data of a slot, and read row(), only between the hand-over of the slot and its completion (row_queue.hpp),
// and in that time the user thread leaves both alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/ngram/memory_block.hpp"

namespace lockstep::backend {

class RowCache {
 public:
  static constexpr std::uint32_t kNone = UINT32_MAX;

  struct Slot {
    std::int64_t row = -1;
    std::uint64_t ticket = 0;            ///< number of the row's last use, counted over all gathered rows
    std::uint32_t newer = 0, older = 0;  ///< neighbours in order of use
    std::uint32_t promised = 0;          ///< gather number up to which a request() keeps it; 0: no promise
    bool fresh = false;                  ///< not used since it was read
  };

  /// Bytes that a slot of `row_bytes` costs with its share of every table, the queue's included.
  [[nodiscard]] static std::size_t slot_bytes(std::size_t row_bytes);

  /// Errors: Limit.
  static Result<RowCache> create(std::uint32_t capacity, std::size_t row_bytes);

  [[nodiscard]] std::uint32_t capacity() const { return capacity_; }
  [[nodiscard]] bool full() const { return size_ == capacity_; }
  [[nodiscard]] Slot& at(std::uint32_t slot) { return slots_[slot]; }
  [[nodiscard]] std::int64_t row(std::uint32_t slot) const { return slots_[slot].row; }
  [[nodiscard]] std::byte* data(std::uint32_t slot) { return data_.get() + std::size_t{slot} * row_bytes_; }

  /// The slot of a row, or kNone.
  [[nodiscard]] std::uint32_t find(std::int64_t row) const;
  /// The slot used longest ago. Not when empty.
  [[nodiscard]] std::uint32_t oldest() const { return oldest_; }
  /// Makes a slot the newest.
  void touch(std::uint32_t slot);
  /// Puts a row that is not there into an unused slot, or into that of the oldest row when full; it is the newest.
  std::uint32_t insert(std::int64_t row);

 private:
  RowCache() = default;
  [[nodiscard]] std::uint32_t bucket_of(std::int64_t row) const;
  void erase(std::uint32_t slot);
  void unlink(std::uint32_t slot);
  void link_newest(std::uint32_t slot);

  std::uint32_t capacity_ = 0, size_ = 0, mask_ = 0;
  std::uint32_t newest_ = kNone, oldest_ = kNone;
  std::size_t row_bytes_ = 0;
  MemoryBlock<Slot> slots_;
  MemoryBlock<std::uint32_t> buckets_;  ///< slot + 1, or 0; open addressing with linear probing
  MemoryBlock<std::byte> data_;
};

}  // namespace lockstep::backend
