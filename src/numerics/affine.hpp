// Affine weight codes and integer activations (docs/numerics.md N3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "numerics/canon_math.hpp"

namespace lockstep::numerics {

/// Inputs per segment: groups are added inside a segment of 512 inputs, then segments are added.
inline constexpr int kSegmentInputs = 512;

/// Unpacks `count` codes of `bits` (2..8) from a little-endian bit stream; element i occupies bits i*bits and up.
/// `count` is a multiple of 32, so the stream is a whole number of 32-bit words.
LOCKSTEP_INLINE void unpack_codes(const std::uint8_t* stream, int bits, int count, std::uint8_t* codes) {
  if (bits == 8) {
    std::memcpy(codes, stream, static_cast<std::size_t>(count));
  } else if (bits == 4) {
    for (int i = 0; i < count / 2; ++i) {
      codes[2 * i] = stream[i] & 15U;
      codes[2 * i + 1] = stream[i] >> 4;
    }
  } else if (bits == 2) {
    for (int i = 0; i < count / 4; ++i) {
      for (int j = 0; j < 4; ++j) codes[4 * i + j] = (stream[i] >> (2 * j)) & 3U;
    }
  } else {
    const unsigned mask = (1U << bits) - 1U;
    for (int i = 0; i < count; ++i) {
      const int bit = i * bits;
      const unsigned low = stream[bit / 8];
      const unsigned high = (bit % 8) + bits > 8 ? stream[bit / 8 + 1] : 0U;
      codes[i] = static_cast<std::uint8_t>(((low | (high << 8)) >> (bit % 8)) & mask);
    }
  }
}

/// Quantises one group of activations: a_i = round(x_i / t) with t = max|x| / 32767, clamped to +-32767.
/// Returns t; `sum` receives the sum of the a_i. A group whose t underflows to 0 gives zeros. A group with a non-finite
/// value gives t = NaN and zeros, so that every output that depends on it is NaN and the request fails clearly.
LOCKSTEP_INLINE float quantise_group(const float* x, int count, std::int16_t* a, std::int32_t* sum) {
  std::uint32_t top = 0;  // magnitudes compare as integers; anything at or above 0x7f800000 is not finite
  for (int i = 0; i < count; ++i) {
    const std::uint32_t magnitude = float_bits(x[i]) & 0x7fffffffU;
    top = magnitude > top ? magnitude : top;
  }
  const bool finite = top < 0x7f800000U;
  const float t = finite ? bits_float(top) / 32767.0F : bits_float(0x7fc00000U);
  std::int32_t total = 0;
  if (!finite || t == 0.0F) {
    for (int i = 0; i < count; ++i) a[i] = 0;
  } else {
    for (int i = 0; i < count; ++i) {
      float q = x[i] / t;
      q = q > 32767.0F ? 32767.0F : q;
      q = q < -32767.0F ? -32767.0F : q;
      const std::int32_t rounded = static_cast<std::int32_t>(canon_round(q));
      a[i] = static_cast<std::int16_t>(rounded);
      total += rounded;
    }
  }
  *sum = total;
  return t;
}

}  // namespace lockstep::numerics
