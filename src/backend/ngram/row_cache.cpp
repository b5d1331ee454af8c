#include "backend/ngram/row_cache.hpp"

#include <bit>

namespace lockstep::backend {
namespace {

/// Kernels may load whole vectors at the end of the last row.
constexpr std::size_t kTailBytes = 64;

/// A power of two that is at least 4/3 of the slots and less than 3 times as many.
std::uint64_t bucket_count(std::uint64_t slots) {
  return std::bit_ceil(slots + slots / 3 + 1);
}

}  // namespace

std::size_t RowCache::slot_bytes(std::size_t row_bytes) {
  constexpr std::size_t kBuckets = 3 * sizeof(std::uint32_t);
  constexpr std::size_t kQueue = sizeof(std::uint32_t) + 1;  // place in the ring, ready flag
  return row_bytes + sizeof(Slot) + kBuckets + kQueue;
}

Result<RowCache> RowCache::create(std::uint32_t capacity, std::size_t row_bytes) {
  RowCache cache;
  cache.capacity_ = capacity;
  cache.row_bytes_ = row_bytes;
  const std::uint64_t buckets = bucket_count(capacity);
  cache.mask_ = static_cast<std::uint32_t>(buckets - 1);
  cache.slots_ = LOCKSTEP_TRY(zeroed_block<Slot>(capacity));
  cache.buckets_ = LOCKSTEP_TRY(zeroed_block<std::uint32_t>(buckets));
  cache.data_ = LOCKSTEP_TRY(zeroed_block<std::byte>(std::size_t{capacity} * row_bytes + kTailBytes));
  return cache;
}

/// Row ids of one head lie in one range, so the low bits alone would cluster.
std::uint32_t RowCache::bucket_of(std::int64_t row) const {
  return static_cast<std::uint32_t>((static_cast<std::uint64_t>(row) * 0x9E3779B97F4A7C15U) >> 32) & mask_;
}

std::uint32_t RowCache::find(std::int64_t row) const {
  for (std::uint32_t i = bucket_of(row); buckets_[i] != 0; i = (i + 1) & mask_) {
    const std::uint32_t slot = buckets_[i] - 1;
    if (slots_[slot].row == row) return slot;
  }
  return kNone;
}

void RowCache::unlink(std::uint32_t slot) {
  const Slot& gone = slots_[slot];
  (gone.newer == kNone ? newest_ : slots_[gone.newer].older) = gone.older;
  (gone.older == kNone ? oldest_ : slots_[gone.older].newer) = gone.newer;
}

void RowCache::link_newest(std::uint32_t slot) {
  slots_[slot].newer = kNone;
  slots_[slot].older = newest_;
  (newest_ == kNone ? oldest_ : slots_[newest_].newer) = slot;
  newest_ = slot;
}

void RowCache::touch(std::uint32_t slot) {
  if (slot == newest_) return;
  unlink(slot);
  link_newest(slot);
}

std::uint32_t RowCache::insert(std::int64_t row) {
  std::uint32_t slot = size_;
  if (full()) {
    slot = oldest_;
    erase(slot);
    unlink(slot);
  } else {
    ++size_;
  }
  slots_[slot] = Slot{};
  slots_[slot].row = row;
  link_newest(slot);
  std::uint32_t i = bucket_of(row);
  while (buckets_[i] != 0) i = (i + 1) & mask_;
  buckets_[i] = slot + 1;
  return slot;
}

/// Takes a slot's row out of the buckets, and moves later entries of the probe sequence up so that none has a gap
/// before it.
void RowCache::erase(std::uint32_t slot) {
  std::uint32_t hole = bucket_of(slots_[slot].row);
  while (buckets_[hole] != slot + 1) hole = (hole + 1) & mask_;
  for (std::uint32_t i = (hole + 1) & mask_; buckets_[i] != 0; i = (i + 1) & mask_) {
    const std::uint32_t home = bucket_of(slots_[buckets_[i] - 1].row);
    if (((i - home) & mask_) < ((i - hole) & mask_)) continue;  // its home lies behind the hole
    buckets_[hole] = buckets_[i];
    hole = i;
  }
  buckets_[hole] = 0;
}

}  // namespace lockstep::backend
