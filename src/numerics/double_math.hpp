// exp, log, sin and cos in binary64 with the same bits on every machine (docs/numerics.md N1, N9).
//
// The C library's versions differ between libraries and between host and device. These use only IEEE + - * /, fma and
// integer operations, so any compiler that does not contract or reorder gives the same result. Host and device compile
// this same header. Used by the race draw, log-probabilities and the rotary tables.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "numerics/portable.hpp"

namespace lockstep::numerics {

/// Largest magnitude that canon_sincos64 accepts: far beyond any position of a rotary table.
inline constexpr double kSinCosLimit = 1e7;

namespace detail {

LOCKSTEP_INLINE std::uint64_t double_bits(double x) {
  std::uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

LOCKSTEP_INLINE double bits_double(std::uint64_t bits) {
  double x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

LOCKSTEP_INLINE double quiet_nan() {
  return bits_double(0x7ff8000000000000U);
}
LOCKSTEP_INLINE double infinity() {
  return bits_double(0x7ff0000000000000U);
}

/// 2^k for -1022 <= k <= 1023.
LOCKSTEP_INLINE double power_of_two(std::int64_t k) {
  return bits_double(static_cast<std::uint64_t>(k + 1023) << 52);
}

/// A number rounded half to even to an integer, as a double and as an integer.
struct Rounded {
  double value;
  std::int64_t integer;
};

/// Valid for |x| < 2^51: adding 1.5 * 2^52 leaves the integer in the low bits of the sum.
LOCKSTEP_INLINE Rounded round_to_integer(double x) {
  const double magic = 0x1.8p52;
  const double sum = x + magic;
  return {sum - magic, static_cast<std::int64_t>(double_bits(sum) - double_bits(magic))};
}

/// An unevaluated sum.
struct HeadTail {
  double head, tail;
};

/// Subtracts a number from the head and adds the rounding error, which is exact (Knuth's two-sum), to the tail.
LOCKSTEP_INLINE HeadTail subtract(HeadTail from, double amount) {
  const double head = from.head - amount;
  const double back = head - from.head;
  return {head, from.tail + ((from.head - (head - back)) - (amount + back))};
}

// ln 2 in two parts; the first has 40 fraction bits, so k * kLn2High is exact for every exponent k.
inline constexpr double kLn2High = 0x1.62e42fefa2p-1, kLn2Low = 0x1.9ef35793c7673p-41;

}  // namespace detail

/// e^x. Error below 1 ulp where the result is normal (one more rounding where it is denormal).
/// exp(+inf) = +inf, exp(-inf) = +0, exp(NaN) = NaN, overflow = +inf, underflow = +0.
///
/// x = k ln 2 + r with |r| <= ln(2)/2; e^r is the Taylor sum to r^14, whose remainder is below 2^-63.
LOCKSTEP_INLINE double canon_exp64(double x) {
  using namespace detail;
  if (x != x) return quiet_nan();
  if (x > 709.8) return infinity();
  if (x < -745.2) return 0.0;
  const Rounded k = round_to_integer(x * 0x1.71547652b82fep+0);
  const double head = x - k.value * kLn2High;  // exact
  const double tail = k.value * kLn2Low;
  const double r = head - tail;
  const double low = (head - r) - tail;
  double sum = 1.0 / 87178291200.0;
  sum = std::fma(sum, r, 1.0 / 6227020800.0);
  sum = std::fma(sum, r, 1.0 / 479001600.0);
  sum = std::fma(sum, r, 1.0 / 39916800.0);
  sum = std::fma(sum, r, 1.0 / 3628800.0);
  sum = std::fma(sum, r, 1.0 / 362880.0);
  sum = std::fma(sum, r, 1.0 / 40320.0);
  sum = std::fma(sum, r, 1.0 / 5040.0);
  sum = std::fma(sum, r, 1.0 / 720.0);
  sum = std::fma(sum, r, 1.0 / 120.0);
  sum = std::fma(sum, r, 1.0 / 24.0);
  sum = std::fma(sum, r, 1.0 / 6.0);
  sum = std::fma(sum, r, 0.5);
  const double power = 1.0 + (r + std::fma(r * r, sum, low));
  // Two factors keep 2^k representable at both ends; only the second product can round.
  const std::int64_t half = k.integer / 2;
  return power * power_of_two(half) * power_of_two(k.integer - half);
}

/// Natural logarithm. Error below 1 ulp.
/// log(+-0) = -inf, log(x < 0) = NaN, log(+inf) = +inf, log(NaN) = NaN, log(1) = +0. Denormals are exact inputs.
///
/// x = 2^k m with m in [sqrt(1/2), sqrt(2)), f = m - 1, s = f / (2 + f); log m = 2 atanh(s), written so that the exact
/// f carries the leading part: f - (f^2/2 - s (f^2/2 + R)), R = 2 s^2/3 + 2 s^4/5 + ... to s^22.
LOCKSTEP_INLINE double canon_log64(double x) {
  using namespace detail;
  if (x != x || x < 0) return quiet_nan();
  if (x == 0) return -infinity();
  if (x == infinity()) return x;
  std::int64_t k = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p54;
    k = -54;
  }
  const std::uint64_t bits = double_bits(x);
  k += static_cast<std::int64_t>(bits >> 52) - 1023;
  double m = bits_double((bits & 0x000fffffffffffffU) | 0x3ff0000000000000U);
  if (m >= 0x1.6a09e667f3bcdp+0) {
    m *= 0.5;
    ++k;
  }
  const double f = m - 1.0;
  const double s = f / (2.0 + f);
  const double z = s * s;
  double sum = 2.0 / 23.0;
  sum = std::fma(sum, z, 2.0 / 21.0);
  sum = std::fma(sum, z, 2.0 / 19.0);
  sum = std::fma(sum, z, 2.0 / 17.0);
  sum = std::fma(sum, z, 2.0 / 15.0);
  sum = std::fma(sum, z, 2.0 / 13.0);
  sum = std::fma(sum, z, 2.0 / 11.0);
  sum = std::fma(sum, z, 2.0 / 9.0);
  sum = std::fma(sum, z, 2.0 / 7.0);
  sum = std::fma(sum, z, 2.0 / 5.0);
  sum = std::fma(sum, z, 2.0 / 3.0);
  const double r = sum * z;
  const double half_square = 0.5 * f * f;
  const double exponent = static_cast<double>(k);
  const double small = half_square - std::fma(s, half_square + r, exponent * kLn2Low);
  return exponent * kLn2High - (small - f);
}

struct SinCos {
  double sin, cos;
};

/// Sine and cosine of x in radians, |x| <= kSinCosLimit. Error below 1 ulp each. A larger magnitude, an infinity or a
/// NaN gives NaN for both: an unreduced argument must not pass as a result. sin(-0) = -0.
///
/// x - n pi/2 is formed with pi/2 in four parts of 30, 30, 30 and 53 bits: the first three products with n (at most 23
/// bits) are exact, so the reduced argument is a head and a tail good to about 2^-120 even next to a multiple of pi/2.
LOCKSTEP_INLINE SinCos canon_sincos64(double x) {
  using namespace detail;
  if (!(x >= -kSinCosLimit && x <= kSinCosLimit)) return {quiet_nan(), quiet_nan()};
  const Rounded n = round_to_integer(x * 0x1.45f306dc9c883p-1);
  HeadTail reduced{x - n.value * 0x1.921fb54p+0, 0.0};
  reduced = subtract(reduced, n.value * 0x1.10b46118p-30);
  reduced = subtract(reduced, n.value * 0x1.313198ap-61);
  const double tail = std::fma(-n.value, 0x1.701b839a25205p-92, reduced.tail);
  const double r = reduced.head + tail;
  const double low = (reduced.head - r) + tail;

  const double z = r * r;
  double odd = 1.0 / 355687428096000.0;
  odd = std::fma(odd, z, -1.0 / 1307674368000.0);
  odd = std::fma(odd, z, 1.0 / 6227020800.0);
  odd = std::fma(odd, z, -1.0 / 39916800.0);
  odd = std::fma(odd, z, 1.0 / 362880.0);
  odd = std::fma(odd, z, -1.0 / 5040.0);
  odd = std::fma(odd, z, 1.0 / 120.0);
  odd = std::fma(odd, z, -1.0 / 6.0);
  const double sine = n.integer == 0 && r == 0 ? x : r + std::fma(z * r, odd, std::fma(-0.5 * z, low, low));

  double even = 1.0 / 20922789888000.0;
  even = std::fma(even, z, -1.0 / 87178291200.0);
  even = std::fma(even, z, 1.0 / 479001600.0);
  even = std::fma(even, z, -1.0 / 3628800.0);
  even = std::fma(even, z, 1.0 / 40320.0);
  even = std::fma(even, z, -1.0 / 720.0);
  even = std::fma(even, z, 1.0 / 24.0);
  const double half = 0.5 * z;
  const double lead = 1.0 - half;
  const double cosine = lead + (((1.0 - lead) - half) + std::fma(z * z, even, -r * low));

  switch (n.integer & 3) {
    case 0:
      return {sine, cosine};
    case 1:
      return {cosine, -sine};
    case 2:
      return {-sine, -cosine};
    default:
      return {-cosine, sine};
  }
}

/// Rotary frequency of pair `pair` of a rotary dimension `dim`: theta^(-2 pair / dim) (docs/model.md 3.5).
/// theta > 0, dim > 0.
LOCKSTEP_INLINE double rotary_frequency(double pair, double dim, double theta) {
  return canon_exp64(-(2.0 * pair / dim) * canon_log64(theta));
}

}  // namespace lockstep::numerics
