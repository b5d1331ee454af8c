// The canon's functions (docs/numerics.md N1) for kernels that are bound by them: the same bits with fewer
// instructions. A division brings a branch for numbers that cannot occur here, and a branch keeps independent values
// apart.
#pragma once

#include "kernels/cuda/device.cuh"

namespace lockstep::kernels::cuda {

/// 1 / d for 1 <= d <= 2: what the compiler makes of the division, without its branch. On this architecture it was
/// compared with the division for all 2^23 + 1 of them; others divide.
__device__ __forceinline__ float quick_reciprocal(float d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
  float r = 0.0F;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
  return canon_fma(r, canon_fma(-d, r, 1.0F), r);
#else
  return 1.0F / d;
#endif
}

/// canon_sigmoid_pair() with the parts of e^-|x|.
__device__ __forceinline__ Pair quick_sigmoid_pair(float x, const ExpParts& parts) {
  const float e = (parts.y.high * parts.s1) * parts.s2;
  const float e_low = (parts.y.low * parts.s1) * parts.s2;
  const float d = 1.0F + e;
  const float q = quick_reciprocal(d);
  const float d_low = (e - (d - 1.0F)) + e_low;
  const float q_low = q * canon_fma(-q, d_low, canon_fma(-q, d, 1.0F));
  const float p = e * q;
  const float p_low = canon_fma(e, q, -p) + canon_fma(e, q_low, e_low * q);
  return x < 0.0F ? Pair{p, p_low} : Pair{q, q_low};
}

/// canon_sigmoid().
__device__ __forceinline__ float quick_sigmoid(float x) {
  const Pair s = quick_sigmoid_pair(x, canon_exp_parts(-canon_abs(x)));
  const float result = s.high + s.low;
  return x == x ? result : x;
}

/// canon_silu(): where it needs e^x itself, below zero, that is e^-|x|.
__device__ __forceinline__ float quick_silu(float x) {
  const float a = x < -125.0F ? -125.0F : x;
  const ExpParts e = canon_exp_parts(-canon_abs(a));
  const Pair s = quick_sigmoid_pair(a, e);
  const float low = a * s.low;
  const float near = canon_fma(a, s.high, low == low ? low : 0.0F);
  const float far = ((a * e.y.high) * e.s1) * e.s2;
  return a < -80.0F ? far : near;
}

/// x / t where 1 / t is known, rounded as a division rounds: a quotient corrected once is off by less than its last
/// place, and corrected once more is the nearest one (Markstein), as long as no remainder that matters is too small for
/// a float. Between these limits of t one is too small only where x is below a quarter of t, and then any quotient near
/// it rounds to 0 as an integer. A division costs twice as much.
constexpr float kLeastStep = 0x1p-60F;
constexpr float kMostStep = 0x1p60F;
__device__ __forceinline__ float quick_quotient(float x, float t, float reciprocal) {
  const float rough = x * reciprocal;
  const float close = canon_fma(canon_fma(-rough, t, x), reciprocal, rough);
  return canon_fma(canon_fma(-close, t, x), reciprocal, close);
}

}  // namespace lockstep::kernels::cuda
