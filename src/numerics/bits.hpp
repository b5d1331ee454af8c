// Bit patterns of numbers: binary32 <-> integer, bfloat16 and binary16.
#pragma once

#include <cstdint>
#include <cstring>

#include "numerics/portable.hpp"

namespace lockstep::numerics {

LOCKSTEP_INLINE std::uint32_t float_bits(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

LOCKSTEP_INLINE float bits_float(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

LOCKSTEP_INLINE float bf16_to_float(std::uint16_t value) {
  return bits_float(static_cast<std::uint32_t>(value) << 16);
}

/// Rounds to nearest even; NaN stays NaN (quiet).
LOCKSTEP_INLINE std::uint16_t float_to_bf16(float x) {
  const std::uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

/// Exact widening of IEEE binary16.
LOCKSTEP_INLINE float half_to_float(std::uint16_t value) {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000U) << 16;
  const std::uint32_t exponent = (value >> 10) & 31U;
  const std::uint32_t mantissa = value & 1023U;
  if (exponent == 31) return bits_float(sign | 0x7f800000U | (mantissa << 13));
  if (exponent != 0) return bits_float(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
  return bits_float(sign | float_bits(magnitude));
}

LOCKSTEP_INLINE bool is_finite(float x) {
  return (float_bits(x) & 0x7f800000U) != 0x7f800000U;
}

}  // namespace lockstep::numerics
