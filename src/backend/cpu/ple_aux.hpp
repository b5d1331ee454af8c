// Products of n-gram rows that came up lately: what the lane ple_cached_aux keeps (docs/lanes.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/ngram/row_cache.hpp"
#include "base/result.hpp"

namespace lockstep::backend {

/// A cache of fixed size from the row ids of a token (all heads) to its normed key [wide] and its value [hidden]. The
/// entry used longest ago makes room. Not thread safe.
class PleAux {
 public:
  /// As many entries as `bytes` hold, at least one. Nothing is written before it is used. Errors: Limit.
  static Result<PleAux> create(std::int64_t heads, std::int64_t wide, std::int64_t hidden, std::uint64_t bytes);

  /// Copies the products out and makes the entry the newest. False when there is none.
  bool take(const std::int64_t* row_ids, float* key, float* value);
  /// Keeps products. True when another entry had to go.
  bool put(const std::int64_t* row_ids, const float* key, const float* value);

  [[nodiscard]] std::uint32_t capacity() const { return cache_.capacity(); }

 private:
  PleAux(RowCache cache, std::size_t ids, std::size_t key, std::size_t value)
      : cache_(std::move(cache)), ids_bytes_(ids), key_bytes_(key), value_bytes_(value) {}
  [[nodiscard]] std::int64_t name(const std::int64_t* row_ids) const;

  RowCache cache_;  ///< an entry is row ids, key, value; found by a hash of the ids, which then must be equal
  std::size_t ids_bytes_, key_bytes_, value_bytes_;
};

}  // namespace lockstep::backend
