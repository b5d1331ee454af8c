// Neighbouring places of the hidden dimension in one thread, for elementwise kernels of many rows.
#pragma once

#include "kernels/cuda/device.cuh"

namespace lockstep::kernels::cuda {

constexpr int kRowThreads = 128;  ///< of blocks that belong to one row

/// Four, loaded and stored at once where the dimension is a multiple of four, or one.
template <int kPlaces>
struct Places {
  float v[kPlaces];
  __device__ __forceinline__ void load(const float* from) {
    if constexpr (kPlaces == 4) {
      const float4 four = *reinterpret_cast<const float4*>(from);
      v[0] = four.x;
      v[1] = four.y;
      v[2] = four.z;
      v[3] = four.w;
    } else {
      v[0] = *from;
    }
  }
  __device__ __forceinline__ void store(float* to) const {
    if constexpr (kPlaces == 4) {
      *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
    } else {
      *to = v[0];
    }
  }
  __device__ __forceinline__ void add(float weight, const Places& other) {
#pragma unroll
    for (int i = 0; i < kPlaces; ++i) v[i] = canon_fma(weight, other.v[i], v[i]);
  }
};

/// Blocks: x rows, y places of the hidden dimension.
template <int kPlaces>
inline Extent blocks_of(std::int64_t rows, std::int64_t hidden) {
  return {static_cast<unsigned>(rows), blocks_for(hidden, kRowThreads * kPlaces), 1};
}
template <int kPlaces>
__device__ __forceinline__ int place_of_thread() {
  return static_cast<int>(blockIdx.y * kRowThreads + threadIdx.x) * kPlaces;
}

}  // namespace lockstep::kernels::cuda
