// Products of query heads with a block of keys, by fold32 (docs/numerics.md N2), for attention and its indexer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "numerics/portable.hpp"

namespace lockstep::kernels::vector {

/// n elements of bf16, or of binary32 if `wide`, as binary32; n is a multiple of 16.
template <class Isa>
LOCKSTEP_INLINE void widen_row(const std::byte* row, std::int64_t n, bool wide, float* out) {
  const std::int64_t size = wide ? 4 : 2;
  for (std::int64_t i = 0; i < n; i += 16) Isa::store(out + i, Isa::load_scales(row + i * size, wide), 16);
}

/// The 32 lanes of fold32, folded once to 16, of the products of H query heads with K keys: sums[h * 16 + k].
template <class Isa, int H, int K>
LOCKSTEP_INLINE void key_products(const float* q, const float* const (&keys)[K], std::int64_t n,
                                  typename Isa::Float* sums) {
  using Float = typename Isa::Float;
  Float low[H][K];
  Float high[H][K];
  for (int h = 0; h < H; ++h) {
    for (int k = 0; k < K; ++k) low[h][k] = high[h][k] = Isa::zero();
  }
  for (std::int64_t i = 0; i < n; i += 32) {
    Float key_low[K];
    Float key_high[K];
    for (int k = 0; k < K; ++k) {
      key_low[k] = Isa::load_floats(keys[k] + i);
      key_high[k] = Isa::load_floats(keys[k] + i + 16);
    }
    for (int h = 0; h < H; ++h) {
      const Float q_low = Isa::in_register(Isa::load_floats(q + h * n + i));
      const Float q_high = Isa::in_register(Isa::load_floats(q + h * n + i + 16));
      for (int k = 0; k < K; ++k) {
        low[h][k] = Isa::fma(q_low, key_low[k], low[h][k]);
        high[h][k] = Isa::fma(q_high, key_high[k], high[h][k]);
      }
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int k = 0; k < K; ++k) sums[h * 16 + k] = Isa::add(low[h][k], high[h][k]);
  }
}

/// key_products() of H heads with the first sixteen of `count` keys [count, n]; Isa::fold_each ends the folds of a
/// head.
template <class Isa, int H>
LOCKSTEP_INLINE void key_sums(const float* q, const float* block, std::int64_t count, std::int64_t n,
                              typename Isa::Float* sums) {
  constexpr int kKeys = Isa::kAttendKeys;
  for (std::int64_t k = 0; k < 16; k += kKeys) {
    const float* keys[kKeys];
    // Beyond the end the last key again: its lanes are not looked at.
    for (int i = 0; i < kKeys; ++i) keys[i] = block + std::min(k + i, count - 1) * n;
    key_products<Isa, H, kKeys>(q, keys, n, sums + k);
  }
}

}  // namespace lockstep::kernels::vector
