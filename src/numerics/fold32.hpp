// fold32: the order in which the canon adds over a feature dimension (docs/numerics.md N2).
//
// 32 lanes; lane j takes the elements j, j+32, j+64, ... in ascending order; then lane j += lane j+16, +8, +4, +2, +1.
// Missing elements of a last partial row count as +0.
#pragma once

#include <cstddef>

#include "numerics/canon_math.hpp"

namespace lockstep::numerics {

/// Adds the 32 lanes pairwise.
LOCKSTEP_INLINE float fold32_lanes(float* lanes) {
  for (int width = 16; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

/// The fold of a(i) * b(i), accumulated with fma. `a` and `b` are callables of the index.
template <class A, class B>
LOCKSTEP_INLINE float fold32_products(std::size_t n, A a, B b) {
  float lanes[32] = {};
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    for (std::size_t j = 0; j < 32; ++j) lanes[j] = canon_fma(a(i + j), b(i + j), lanes[j]);
  }
  if (i < n) {
    const std::size_t rest = n - i;
    for (std::size_t j = 0; j < rest; ++j) lanes[j] = canon_fma(a(i + j), b(i + j), lanes[j]);
    for (std::size_t j = rest; j < 32; ++j) lanes[j] += 0.0F;
  }
  return fold32_lanes(lanes);
}

LOCKSTEP_INLINE float fold32_dot(const float* a, const float* b, std::size_t n) {
  return fold32_products(
      n, [a](std::size_t i) { return a[i]; }, [b](std::size_t i) { return b[i]; });
}

/// The fold of plain values (no products).
LOCKSTEP_INLINE float fold32_sum(const float* values, std::size_t n) {
  float lanes[32] = {};
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    for (std::size_t j = 0; j < 32; ++j) lanes[j] += values[i + j];
  }
  if (i < n) {
    const std::size_t rest = n - i;
    for (std::size_t j = 0; j < rest; ++j) lanes[j] += values[i + j];
    for (std::size_t j = rest; j < 32; ++j) lanes[j] += 0.0F;
  }
  return fold32_lanes(lanes);
}

}  // namespace lockstep::numerics
