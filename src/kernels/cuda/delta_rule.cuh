// One lane's part of the gated delta rule (docs/numerics.md N6): 32 keys of one value column, in registers.
#pragma once

#include "kernels/cuda/device.cuh"

namespace lockstep::kernels::cuda {

constexpr int kSegmentKeys = 32;  ///< of one lane
/// Of a segment in shared memory, so that the segments of a line lie in different banks.
constexpr int kPaddedKeys = kSegmentKeys + 4;

/// Adds the sums of a warp's kSegments groups of lanes pairwise: (0+1)+(2+3).
template <int kSegments>
__device__ __forceinline__ float add_segments(float sum) {
#pragma unroll
  for (int width = 32 / kSegments; width < 32; width *= 2) sum += __shfl_xor_sync(kAllLanes, sum, width);
  return sum;
}

__device__ __forceinline__ void load_four(const float* from, float* to) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  to[0] = four.x;
  to[1] = four.y;
  to[2] = four.z;
  to[3] = four.w;
}

__device__ __forceinline__ void load_keys(const float* from, float (&keys)[kSegmentKeys]) {
#pragma unroll
  for (int i = 0; i < kSegmentKeys; i += 4) load_four(from + i, keys + i);
}

/// A row's first pass: the state decays; the result is its segment's product with the keys.
__device__ __forceinline__ float decay_and_match(float (&state)[kSegmentKeys], float decay,
                                                 const float (&keys)[kSegmentKeys]) {
  float match = 0.0F;
#pragma unroll
  for (int i = 0; i < kSegmentKeys; ++i) {
    state[i] = state[i] * decay;
    match = canon_fma(state[i], keys[i], match);
  }
  return match;
}

/// Its second pass: the state takes the delta; the result is its segment's product with the query.
__device__ __forceinline__ float update_and_read(float (&state)[kSegmentKeys], const float (&keys)[kSegmentKeys],
                                                 float delta, const float* q) {
  float read = 0.0F;
#pragma unroll
  for (int i = 0; i < kSegmentKeys; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(q + i);
    const float query[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      state[i + k] = canon_fma(keys[i + k], delta, state[i + k]);
      read = canon_fma(state[i + k], query[k], read);
    }
  }
  return read;
}

}  // namespace lockstep::kernels::cuda
