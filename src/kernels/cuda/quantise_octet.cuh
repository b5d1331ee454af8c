// Eight neighbouring activations of a lane to 16-bit integers (docs/numerics.md N3): their digits are two stores, and
// the lanes of a group meet in few exchanges. For kernels of many rows.
#pragma once

#include "kernels/cuda/quick_math.cuh"

namespace lockstep::kernels::cuda {

constexpr int kOctet = 8;

/// Where the digits of the octet-th eight inputs lie, counted through all rows of whole chunks: place j of four, then
/// the half m.
__device__ __forceinline__ std::int64_t digits_of_octet(std::int64_t octet) {
  return octet / 8 * 128 + octet % 4 * 32 + octet % 8 / 4 * 8;
}

/// The digits of eight neighbours and, by the group's first lane, its step; kLanes lanes have one group.
template <int kLanes>
__device__ __forceinline__ void quantise_octet(const float (&values)[kOctet], std::uint8_t* digits, float2* step,
                                               bool there) {
  unsigned top = 0;
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    const unsigned magnitude = float_bits(values[i]) & 0x7fffffffU;
    top = magnitude > top ? magnitude : top;
  }
#pragma unroll
  for (int width = 1; width < kLanes; width *= 2) {
    const unsigned other = __shfl_xor_sync(kAllLanes, top, width);
    top = other > top ? other : top;
  }
  const bool finite = top < 0x7f800000U;
  const float t = finite ? bits_float(top) / 32767.0F : bits_float(0x7fc00000U);
  const bool divide = !(t >= kLeastStep && t <= kMostStep);
  const float reciprocal = 1.0F / t;
  int a[kOctet];
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    a[i] = 0;
    if (finite && t != 0.0F) {
      float q = divide ? values[i] / t : quick_quotient(values[i], t, reciprocal);
      q = q > 32767.0F ? 32767.0F : q;
      q = q < -32767.0F ? -32767.0F : q;
      a[i] = static_cast<int>(canon_round(q));
    }
  }
  int total = 0;
#pragma unroll
  for (int i = 0; i < kOctet; ++i) total += a[i];
#pragma unroll
  for (int width = 1; width < kLanes; width *= 2) total += __shfl_xor_sync(kAllLanes, total, width);
  if (!there) return;
  // Even places come first, then odd ones.
  uint2 high = make_uint2(0, 0);
  uint2 low = make_uint2(0, 0);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    unsigned& h = i % 2 == 0 ? high.x : high.y;
    unsigned& l = i % 2 == 0 ? low.x : low.y;
    h |= (static_cast<unsigned>(a[i] >> 8) & 0xffU) << (8 * (i / 2));
    l |= (static_cast<unsigned>(a[i]) & 0xffU) << (8 * (i / 2));
  }
  *reinterpret_cast<uint2*>(digits) = high;
  *reinterpret_cast<uint2*>(digits + 16) = low;
  if (lane_id() % kLanes == 0) *step = make_float2(t, static_cast<float>(total));
}

__device__ __forceinline__ void load_octet(const float* from, float (&values)[kOctet]) {
#pragma unroll
  for (int i = 0; i < kOctet; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + i);
    values[i] = four.x;
    values[i + 1] = four.y;
    values[i + 2] = four.z;
    values[i + 3] = four.w;
  }
}

}  // namespace lockstep::kernels::cuda
