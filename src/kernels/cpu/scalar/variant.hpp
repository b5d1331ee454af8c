// The scalar sources are the law of the canon. They are compiled more than once, for different instruction sets, each
// time into its own namespace; the compiler may use vectors, but never changes an operation or an order.
#pragma once

#include "kernels/cpu/kernels.hpp"
#include "numerics/affine.hpp"
#include "numerics/canon_math.hpp"
#include "numerics/fold32.hpp"

#ifndef LOCKSTEP_VARIANT
#define LOCKSTEP_VARIANT scalar
#endif

namespace lockstep::kernels::LOCKSTEP_VARIANT {

using namespace lockstep::numerics;

/// Kernels::share_work of this variant: without the instruction, every fma is a call of the C library.
#ifdef __FMA__
inline constexpr std::int64_t kShareWork = 1 << 17;
#else
inline constexpr std::int64_t kShareWork = 1 << 14;
#endif

LOCKSTEP_INLINE float load_element(const std::byte* data, ElementType type, std::int64_t index) {
  if (type == ElementType::F32) {
    float x;
    std::memcpy(&x, data + index * 4, 4);
    return x;
  }
  std::uint16_t x;
  std::memcpy(&x, data + index * 2, 2);
  return type == ElementType::BF16 ? bf16_to_float(x) : half_to_float(x);
}

/// Widens n consecutive elements.
LOCKSTEP_INLINE void load_elements(const std::byte* data, ElementType type, std::int64_t n, float* out) {
  if (type == ElementType::BF16) {
    for (std::int64_t i = 0; i < n; ++i) {
      std::uint16_t x;
      std::memcpy(&x, data + i * 2, 2);
      out[i] = bf16_to_float(x);
    }
  } else {
    for (std::int64_t i = 0; i < n; ++i) out[i] = load_element(data, type, i);
  }
}

void install_matrix(Kernels& table);
void install_residual(Kernels& table);
void install_delta(Kernels& table);
void install_attention(Kernels& table);
void install_experts(Kernels& table);

}  // namespace lockstep::kernels::LOCKSTEP_VARIANT
