// Kept products of n-gram rows; the contract is in src/decode/lanes/ple_cached_aux.cpp.
#include "backend/cpu/ple_aux.hpp"

#include <algorithm>
#include <cstring>

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

}  // namespace lockstep::backend
