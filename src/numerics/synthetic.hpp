// Elements of synthetic matrices from the halfwords of a counter-based stream (docs/artifact.md "Synthetic models").
// Every operation rounds once, so that the processor and a device make the same bits.
#pragma once

#include <cstdint>

#include "numerics/bits.hpp"

namespace lockstep::numerics {

/// A dense weight: bf16((h + 1/2 - 2^15) * unit).
LOCKSTEP_INLINE std::uint16_t synthetic_weight(std::uint16_t h, float unit) {
  return float_to_bf16((static_cast<float>(h) - 32767.5F) * unit);
}

/// A scale: bf16(step * (3/4 + (h + 1/2) / 2^17)).
LOCKSTEP_INLINE std::uint16_t synthetic_scale(std::uint16_t h, float step) {
  return float_to_bf16(step * (0.75F + (static_cast<float>(h) + 0.5F) / 131072.0F));
}

/// The bias that centres the weights of a scale: bf16(-scale * middle).
LOCKSTEP_INLINE std::uint16_t synthetic_bias(std::uint16_t scale, float middle) {
  return float_to_bf16(-bf16_to_float(scale) * middle);
}

}  // namespace lockstep::numerics
