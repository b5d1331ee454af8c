// The canon written a second time from the text of docs/numerics.md, in the plainest form: bit-by-bit readers, one
// number at a time, sums as the page words them. Where a rule fixes bits these give the same bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/cpu/kernels.hpp"

namespace lockstep::kernels::test {

/// Unit roundoff of binary32: a rounded operation errs by at most this share of its result.
inline constexpr double kRoundoff = 0x1p-24;
/// Half the smallest denormal: what a rounded operation may err near zero.
inline constexpr double kTiniest = 0x1p-150;

/// Element `index` of a plane as a number, from the definitions of the formats.
inline double element_reference(const std::byte* data, ElementType type, std::int64_t index) {
  const std::size_t size = element_size(type);
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < size; ++i) {
    bits |= static_cast<std::uint32_t>(data[static_cast<std::size_t>(index) * size + i]) << (8 * i);
  }
  const int mantissa_bits = type == ElementType::F16 ? 10 : (type == ElementType::BF16 ? 7 : 23);
  const int exponent_bits = type == ElementType::F16 ? 5 : 8;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const std::uint32_t mantissa = bits & ((1U << mantissa_bits) - 1U);
  const int exponent = static_cast<int>((bits >> mantissa_bits) & ((1U << exponent_bits) - 1U));
  const double sign = (bits >> (size * 8 - 1)) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1U << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

inline float element_float(const std::byte* data, ElementType type, std::int64_t index) {
  return static_cast<float>(element_reference(data, type, index));
}

/// Code `index` of a little-endian bit stream, read bit by bit.
inline int code_reference(const std::uint8_t* stream, int bits, std::int64_t index) {
  int code = 0;
  for (int k = 0; k < bits; ++k) {
    const std::int64_t bit = index * bits + k;
    if (((stream[bit / 8] >> (bit % 8)) & 1) != 0) code |= 1 << k;
  }
  return code;
}

/// Scale, bias and code of element (row, col) of an affine matrix.
struct AffineElement {
  float scale, bias;
  int code;
  [[nodiscard]] double weight() const { return static_cast<double>(scale) * code + static_cast<double>(bias); }
};

inline AffineElement affine_element(const AffineMatrix& m, std::int64_t row, std::int64_t col) {
  const std::int64_t at = row * (m.cols / m.group) + col / m.group;
  return {element_float(m.scales, m.scale_type, at), element_float(m.biases, m.scale_type, at),
          code_reference(m.codes + row * m.cols * m.bits / 8, m.bits, col)};
}

/// Lane j of N2 after the steps that leave `width` lanes.
inline float folded_lane(const std::vector<float>& lanes, std::size_t j, std::size_t width) {
  if (width == 32) return lanes[j];
  return folded_lane(lanes, j, 2 * width) + folded_lane(lanes, j + width, 2 * width);
}

/// N2 over n terms: add(i, sum) gives the sum with term i.
template <class Add>
float fold32_reference(std::size_t n, Add add) {
  std::vector<float> lanes(32, 0.0F);
  for (std::size_t j = 0; j < 32; ++j) {
    for (std::size_t row = 0; row * 32 < n; ++row) {
      const std::size_t i = row * 32 + j;
      lanes[j] = i < n ? add(i, lanes[j]) : lanes[j] + 0.0F;
    }
  }
  return folded_lane(lanes, 0, 1);
}

inline float fold32_dot_reference(std::span<const float> a, std::span<const float> b) {
  return fold32_reference(a.size(), [&](std::size_t i, float sum) { return std::fma(a[i], b[i], sum); });
}

inline double dot_exact(std::span<const float> a, std::span<const float> b) {
  long double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<long double>(a[i]) * static_cast<long double>(b[i]);
  return static_cast<double>(sum);
}

inline double dot_magnitude(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += std::abs(static_cast<double>(a[i]) * static_cast<double>(b[i]));
  return sum;
}

/// What fold32 of n products may err: every product takes part in at most n / 32 + 6 rounded sums.
inline double fold32_error(std::span<const float> a, std::span<const float> b) {
  return (static_cast<double>(a.size()) / 32 + 7) * (kRoundoff * dot_magnitude(a, b) + kTiniest);
}

inline double sigmoid_exact(double x) {
  return 1 / (1 + std::exp(-x));
}

}  // namespace lockstep::kernels::test
