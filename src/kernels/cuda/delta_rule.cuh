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

/// update_and_read() of a row and decay_and_match() of the next one in one pass: two independent chains of sums instead
/// of one after the other. `keys` and `query` are the row's, `next_keys` the next row's. What has been used makes room
/// at once: `keys` receives the keys of the row after the next from `keys_from`, `query` the query of the next row from
/// `query_from`, so that loads have a whole row's time.
__device__ __forceinline__ float flow_row(float (&state)[kSegmentKeys], float (&keys)[kSegmentKeys],
                                          const float (&next_keys)[kSegmentKeys], float (&query)[kSegmentKeys],
                                          float delta, float next_decay, const float* keys_from,
                                          const float* query_from, float& match) {
  float read = 0.0F;
  match = 0.0F;
#pragma unroll
  for (int i = 0; i < kSegmentKeys; i += 4) {
#pragma unroll
    for (int k = i; k < i + 4; ++k) {
      const float updated = canon_fma(keys[k], delta, state[k]);
      read = canon_fma(updated, query[k], read);
      state[k] = updated * next_decay;
      match = canon_fma(state[k], next_keys[k], match);
    }
    const float4 four = *reinterpret_cast<const float4*>(keys_from + i);
    const float4 coming = *reinterpret_cast<const float4*>(query_from + i);
    keys[i] = four.x;
    keys[i + 1] = four.y;
    keys[i + 2] = four.z;
    keys[i + 3] = four.w;
    query[i] = coming.x;
    query[i + 1] = coming.y;
    query[i + 2] = coming.z;
    query[i + 3] = coming.w;
  }
  return read;
}

}  // namespace lockstep::kernels::cuda
