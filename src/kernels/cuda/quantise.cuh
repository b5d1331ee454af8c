// A group of 64 activations to 16-bit integers by one warp (docs/numerics.md N3), for kernels that quantise what they
// have just made.
#pragma once

#include "kernels/cuda/device.cuh"

namespace lockstep::kernels::cuda {

/// Bytes of one activation row's chunk of 64 digits (ActivationRows).
constexpr int kChunkDigits = 128;

/// Values `first` and `second` of a lane are inputs c0 and c1 of the group. `digits` is the group's chunk, `step` its
/// pair {t, float(A)}.
__device__ __forceinline__ void quantise_group64(float first, float second, int c0, int c1, std::uint8_t* digits,
                                                 float2* step, int lane) {
  const unsigned m0 = float_bits(first) & 0x7fffffffU;
  const unsigned m1 = float_bits(second) & 0x7fffffffU;
  const unsigned top = __reduce_max_sync(kAllLanes, m0 > m1 ? m0 : m1);
  const bool finite = top < 0x7f800000U;
  const float t = finite ? bits_float(top) / 32767.0F : bits_float(0x7fc00000U);
  int total = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int a = 0;
    if (finite && t != 0.0F) {
      float q = (i == 0 ? first : second) / t;
      q = q > 32767.0F ? 32767.0F : q;
      q = q < -32767.0F ? -32767.0F : q;
      a = static_cast<int>(canon_round(q));
    }
    total += a;
    // Input c of a chunk: half m, lane quad j, place n of eight; even places come first.
    const int c = i == 0 ? c0 : c1;
    const int n = c % 8;
    std::uint8_t* at = digits + c % 32 / 8 * 32 + c / 32 * 8 + n % 2 * 4 + n / 2;
    at[0] = static_cast<std::uint8_t>(a >> 8);
    at[16] = static_cast<std::uint8_t>(a);
  }
  total = __reduce_add_sync(kAllLanes, total);
  if (lane == 0) *step = make_float2(t, static_cast<float>(total));
}

/// Quantises `groups` consecutive groups of x with all warps of a block; the next values are on their way meanwhile.
__device__ __forceinline__ void quantise_rows64(const float* x, int groups, std::uint8_t* digits, float2* steps,
                                                int warp, int warps, int lane) {
  const auto load = [&](int g) {
    return g < groups ? *reinterpret_cast<const float2*>(x + static_cast<std::int64_t>(g) * 64 + 2 * lane)
                      : make_float2(0.0F, 0.0F);
  };
  float2 next = load(warp);
#pragma unroll 1
  for (int g = warp; g < groups; g += warps) {
    const float2 two = next;
    next = load(g + warps);
    quantise_group64(two.x, two.y, 2 * lane, 2 * lane + 1, digits + g * kChunkDigits, steps + g, lane);
  }
}

}  // namespace lockstep::kernels::cuda
