// The elementary functions of the canon (docs/numerics.md N1): the same operations in the same order on every device.
//
// Only + - * / sqrt fma, comparisons and integer operations are used, each rounded to nearest even, so a scalar, a SIMD
// lane and a GPU thread give the same bits. Errors against long double are below 2 ulp (tests/numerics).
#pragma once

#include <cmath>
#include <cstdint>

#include "numerics/bits.hpp"

namespace lockstep::numerics {

LOCKSTEP_INLINE float canon_fma(float a, float b, float c) {
#if defined(__CUDACC__)
  return fmaf(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

LOCKSTEP_INLINE float canon_sqrt(float x) {
#if defined(__CUDACC__)
  return sqrtf(x);
#else
  return __builtin_sqrtf(x);
#endif
}

LOCKSTEP_INLINE float canon_abs(float x) {
  return bits_float(float_bits(x) & 0x7fffffffU);
}

/// Round to nearest integer, ties to even, for |x| < 2^22.
LOCKSTEP_INLINE float canon_round(float x) {
  constexpr float kMagic = 12582912.0F;  // 1.5 * 2^23: adding it leaves no fraction bits
  return (x + kMagic) - kMagic;
}

/// A value as the unevaluated sum of a binary32 and a small remainder.
struct Pair {
  float high, low;
};

/// e^x before its power of two: e^x = (y.high + y.low) * s1 * s2. NaN is left to the callers.
struct ExpParts {
  Pair y;
  float s1, s2;
};

LOCKSTEP_INLINE ExpParts canon_exp_parts(float x) {
  float a = x == x ? x : 0.0F;
  a = a < -125.0F ? -125.0F : a;  // far enough below the smallest denormal
  a = a > 89.0F ? 89.0F : a;      // e^89 > 2^128 overflows
  const float n = canon_round(a * 1.44269504F);
  const float r0 = canon_fma(n, -0.693359375F, a);  // ln 2 in two parts; this product and difference are exact
  const float r = canon_fma(n, 2.12194440e-4F, r0);
  const float r_low = canon_fma(n, 2.12194440e-4F, r0 - r);
  float p = 1.0F / 5040.0F;  // Taylor to r^7: |r| <= 0.3466, remainder below 2^-27
  p = canon_fma(p, r, 1.0F / 720.0F);
  p = canon_fma(p, r, 1.0F / 120.0F);
  p = canon_fma(p, r, 1.0F / 24.0F);
  p = canon_fma(p, r, 1.0F / 6.0F);
  p = canon_fma(p, r, 0.5F);
  // 1 + r as a rounded sum and its exact remainder: one rounding instead of three decides the last bit.
  const float sum = 1.0F + r;
  const float rest = ((1.0F - sum) + r) + canon_fma(r * r, p, r_low);
  const float y = sum + rest;
  // 2^n in two steps: both factors are normal numbers for -182 <= n <= 129, and only the last product can round.
  const std::int32_t k = static_cast<std::int32_t>(n);
  const std::int32_t half = k >> 1;
  return {{y, rest - (y - sum)},
          bits_float(static_cast<std::uint32_t>(half + 127) << 23),
          bits_float(static_cast<std::uint32_t>(k - half + 127) << 23)};
}

/// e^x. +inf gives +inf, -inf gives +0, NaN gives NaN; a denormal result is rounded once.
LOCKSTEP_INLINE float canon_exp(float x) {
  const ExpParts e = canon_exp_parts(x);
  return x == x ? (e.y.high * e.s1) * e.s2 : x;
}

/// The logistic function of x as a pair. NaN is left to the callers.
LOCKSTEP_INLINE Pair canon_sigmoid_pair(float x) {
  const ExpParts parts = canon_exp_parts(-canon_abs(x));
  const float e = (parts.y.high * parts.s1) * parts.s2;
  const float e_low = (parts.y.low * parts.s1) * parts.s2;
  const float d = 1.0F + e;
  const float q = 1.0F / d;
  const float d_low = (e - (d - 1.0F)) + e_low;
  const float q_low = q * canon_fma(-q, d_low, canon_fma(-q, d, 1.0F));
  const float p = e * q;
  const float p_low = canon_fma(e, q, -p) + canon_fma(e, q_low, e_low * q);
  return x < 0.0F ? Pair{p, p_low} : Pair{q, q_low};
}

/// 1 / (1 + e^-x).
LOCKSTEP_INLINE float canon_sigmoid(float x) {
  const Pair s = canon_sigmoid_pair(x);
  const float result = s.high + s.low;
  return x == x ? result : x;
}

/// x * sigmoid(x); -inf gives -0. Far below zero it is x * e^x, rounded once: sigmoid alone would be denormal there.
LOCKSTEP_INLINE float canon_silu(float x) {
  const float a = x < -125.0F ? -125.0F : x;
  const Pair s = canon_sigmoid_pair(a);
  const float low = a * s.low;
  const float near = canon_fma(a, s.high, low == low ? low : 0.0F);  // inf * 0 for x = +inf
  const ExpParts e = canon_exp_parts(a);
  const float far = ((a * e.y.high) * e.s1) * e.s2;
  return a < -80.0F ? far : near;
}

/// ln(1 + u) for 0 <= u <= 1, as 2 atanh(u / (2 + u)) with the rounding of 2 + u and of the quotient corrected.
LOCKSTEP_INLINE float canon_log1p_unit(float u) {
  const float d = 2.0F + u;
  const float d_error = u - (d - 2.0F);
  const float s = u / d;
  const float s_low = canon_fma(-s, d_error, canon_fma(-s, d, u)) / d;
  const float z = s * s;
  float p = 1.0F / 15.0F;
  p = canon_fma(p, z, 1.0F / 13.0F);
  p = canon_fma(p, z, 1.0F / 11.0F);
  p = canon_fma(p, z, 1.0F / 9.0F);
  p = canon_fma(p, z, 1.0F / 7.0F);
  p = canon_fma(p, z, 1.0F / 5.0F);
  p = canon_fma(p, z, 1.0F / 3.0F);
  const float tail = canon_fma(s * z, p, s_low);
  return 2.0F * (s + tail);
}

/// ln(1 + e^x).
LOCKSTEP_INLINE float canon_softplus(float x) {
  const float positive = x > 0.0F ? x : 0.0F;
  return positive + canon_log1p_unit(canon_exp(-canon_abs(x)));
}

/// 1 / sqrt(x): a square root and a division, never an approximate reciprocal.
LOCKSTEP_INLINE float canon_rsqrt(float x) {
  return 1.0F / canon_sqrt(x);
}

}  // namespace lockstep::numerics
