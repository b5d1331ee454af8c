// Kept products of n-gram rows; the contract is in src/decode/lanes/ple_cached_aux.cpp.
#include "backend/cpu/ple_aux.hpp"

#include <algorithm>
#include <cstring>

#include "backend/cpu/cpu_backend.hpp"

namespace lockstep::backend {
namespace {

/// More entries would cost more to look after than the projections of a tiny model.
constexpr std::uint64_t kMostEntries = 1 << 16;

}  // namespace

Result<PleAux> PleAux::create(std::int64_t heads, std::int64_t wide, std::int64_t hidden, std::uint64_t bytes) {
  const std::size_t ids = static_cast<std::size_t>(heads) * sizeof(std::int64_t);
  const std::size_t key = static_cast<std::size_t>(wide) * sizeof(float);
  const std::size_t value = static_cast<std::size_t>(hidden) * sizeof(float);
  const std::size_t entry = ids + key + value;
  const std::uint64_t entries = std::clamp<std::uint64_t>(bytes / RowCache::slot_bytes(entry), 1, kMostEntries);
  RowCache cache = LOCKSTEP_TRY(RowCache::create(static_cast<std::uint32_t>(entries), entry));
  return PleAux(std::move(cache), ids, key, value);
}

/// FNV-1a over the ids, not negative.
std::int64_t PleAux::name(const std::int64_t* row_ids) const {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (std::size_t i = 0; i < ids_bytes_ / sizeof(std::int64_t); ++i) {
    hash = (hash ^ static_cast<std::uint64_t>(row_ids[i])) * 0x100000001b3U;
    hash ^= hash >> 29;
  }
  return static_cast<std::int64_t>(hash >> 1);
}

bool PleAux::take(const std::int64_t* row_ids, float* key, float* value) {
  const std::uint32_t slot = cache_.find(name(row_ids));
  if (slot == RowCache::kNone) return false;
  const std::byte* entry = cache_.data(slot);
  if (std::memcmp(entry, row_ids, ids_bytes_) != 0) return false;
  std::memcpy(key, entry + ids_bytes_, key_bytes_);
  std::memcpy(value, entry + ids_bytes_ + key_bytes_, value_bytes_);
  cache_.touch(slot);
  return true;
}

bool PleAux::put(const std::int64_t* row_ids, const float* key, const float* value) {
  const std::int64_t hash = name(row_ids);
  std::uint32_t slot = cache_.find(hash);
  const bool evicts = slot == RowCache::kNone && cache_.full();
  if (slot == RowCache::kNone) {
    slot = cache_.insert(hash);
  } else {
    cache_.touch(slot);  // a repeat within a step, or other ids with the same hash: the newer one stays
  }
  std::byte* entry = cache_.data(slot);
  std::memcpy(entry, row_ids, ids_bytes_);
  std::memcpy(entry + ids_bytes_, key, key_bytes_);
  std::memcpy(entry + ids_bytes_ + key_bytes_, value, value_bytes_);
  return evicts;
}

void CpuBackend::cached_ple_products(const PleWeights& weights, const float* e, std::span<const PleSlot> slots,
                                     std::int64_t rows, float* key, float* value) {
  const std::int64_t wide = config_.wide_size();
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t dim = config_.ple_dim;
  const auto heads = static_cast<std::int64_t>(config_.ngram_heads());
  const auto row_ids = [&](const PleSlot& slot, std::int64_t t) { return slot.row_ids + t * heads; };
  std::vector<std::int64_t>& missing = missing_rows_;
  missing.clear();
  for (const PleSlot& slot : slots) {
    for (std::int64_t t = 0; t < slot.run.rows; ++t) {
      const std::int64_t row = slot.run.first_row + t;
      if (!ple_aux_->take(row_ids(slot, t), key + row * wide, value + row * hidden)) missing.push_back(row);
    }
  }
  const auto misses = static_cast<std::int64_t>(missing.size());
  lane_counters_.aux_misses += static_cast<std::uint64_t>(misses);
  lane_counters_.aux_hits += static_cast<std::uint64_t>(rows - misses);
  if (misses == 0) return;
  // The rows to compute, next to one another, so that the matrices are read once.
  float* input = scratch_[5].floats(static_cast<std::size_t>(misses * dim));
  float* new_key = scratch_[6].floats(static_cast<std::size_t>(misses * wide));
  float* new_value = scratch_[7].floats(static_cast<std::size_t>(misses * hidden));
  for (std::int64_t i = 0; i < misses; ++i) {
    std::copy_n(e + missing[static_cast<std::size_t>(i)] * dim, dim, input + i * dim);
  }
  ple_products(weights, input, {}, misses, new_key, new_value);
  std::int64_t next = 0;
  for (const PleSlot& slot : slots) {
    for (std::int64_t t = 0; t < slot.run.rows; ++t) {
      const std::int64_t row = slot.run.first_row + t;
      if (next == misses || missing[static_cast<std::size_t>(next)] != row) continue;
      std::copy_n(new_key + next * wide, wide, key + row * wide);
      std::copy_n(new_value + next * hidden, hidden, value + row * hidden);
      if (ple_aux_->put(row_ids(slot, t), new_key + next * wide, new_value + next * hidden)) {
        ++lane_counters_.aux_evictions;
      }
      ++next;
    }
  }
}

}  // namespace lockstep::backend
