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

__device__ __forceinline__ void load_keys(const float* from, float (&keys)[kSegmentKeys]) {
#pragma unroll
  for (int i = 0; i < kSegmentKeys; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + i);
    keys[i] = four.x;
    keys[i + 1] = four.y;
    keys[i + 2] = four.z;
    keys[i + 3] = four.w;
  }
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

/// update_and_read() of a row and decay_and_match() of the next one, whose keys take the place of this one's, in one
/// pass: two independent chains of sums instead of one after the other.
__device__ __forceinline__ float update_read_and_match(float (&state)[kSegmentKeys], float (&keys)[kSegmentKeys],
                                                       float delta, const float* q, const float* next_keys, float decay,
                                                       float& match) {
  float read = 0.0F;
  match = 0.0F;
#pragma unroll
  for (int i = 0; i < kSegmentKeys; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(q + i);
    const float4 next = *reinterpret_cast<const float4*>(next_keys + i);
    const float query[4] = {four.x, four.y, four.z, four.w};
    const float key[4] = {next.x, next.y, next.z, next.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float updated = canon_fma(keys[i + k], delta, state[i + k]);
      read = canon_fma(updated, query[k], read);
      keys[i + k] = key[k];
      state[i + k] = updated * decay;
      match = canon_fma(state[i + k], keys[i + k], match);
    }
  }
  return read;
}

}  // namespace lockstep::kernels::cuda
