// What the kernels for up to eight activation rows share: a warp's segment of a weight tile passes through shared
// memory, so that it is on its way before the kernel in front has ended, and meets the rows on the tensor cores.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/mma.cuh"
#include "numerics/affine.hpp"

namespace lockstep::kernels::cuda {

constexpr int kSegmentChunks = kSegmentInputs / 64;

/// Bytes of `chunks` chunks of a tile with groups of 64 and bf16 pairs: codes, then pairs.
template <int kBits>
constexpr int few_stage_bytes(int chunks) {
  return chunks * (128 * kBits + 64);
}

/// Starts copying `chunks` chunks of a tile. `codes` and `pairs` point to the first of them.
template <int kBits>
__device__ __forceinline__ void stage_tile(std::byte* stage, const std::byte* codes, const std::byte* pairs, int chunks,
                                           int room, int lane) {
  constexpr int kPieces = kBits / 4;
#pragma unroll 1
  for (int i = 0; i < chunks * kPieces; ++i) copy_soon(stage + (i * 32 + lane) * 16, codes + (i * 32 + lane) * 16);
  std::byte* to = stage + room * 128 * kBits;
#pragma unroll 1
  for (int i = lane; i < chunks * 4; i += 32) copy_soon(to + i * 16, pairs + i * 16);
}

/// Adds the groups first..first+count of a staged tile to sums {row g, row g + 8} x {column 2j, column 2j + 1}, one
/// after the other; with kSingle only of column 0. `digits` are the lane's column's digits of group 0, `steps` those of
/// the columns 2j and 2j + 1.
template <int kBits, bool kSingle>
__device__ __forceinline__ void add_groups(const std::byte* stage, int room, int first, int count, const uint4* digits,
                                           bool live, const float2* steps0, const float2* steps1, int lane,
                                           float (&sums)[4]) {
  constexpr int kPieces = kBits / 4;
  const uint4* codes = reinterpret_cast<const uint4*>(stage) + first * 32 * kPieces + lane;
  const uint2* pairs = reinterpret_cast<const uint2*>(stage + room * 128 * kBits) + first * 8 + lane / 4;
#pragma unroll 4
  for (int i = 0; i < count; ++i) {
    uint4 chunk[kPieces];
#pragma unroll
    for (int k = 0; k < kPieces; ++k) chunk[k] = codes[(i * kPieces + k) * 32];
    uint4 h = make_uint4(0, 0, 0, 0);
    uint4 l = h;
    if (live) {
      h = digits[(first + i) * 8];
      l = digits[(first + i) * 8 + 1];
    }
    int high[4] = {0, 0, 0, 0};
    int low[4] = {0, 0, 0, 0};
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      unsigned a[4];
      unpack<kBits>(chunk, m, a);
      mma_signed(high, a, m == 0 ? h.x : h.z, m == 0 ? h.y : h.w);
      mma_unsigned(low, a, m == 0 ? l.x : l.z, m == 0 ? l.y : l.w);
    }
    const uint2 pair = pairs[i * 8];
#pragma unroll
    for (int c = 0; c < (kSingle ? 1 : 2); ++c) {
      const float2 t = c == 0 ? steps0[first + i] : steps1[first + i];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned word = half == 0 ? pair.x : pair.y;
        const float scale = bits_float(word << 16);
        const float bias = bits_float(word & 0xffff0000U);
        const float dot = static_cast<float>(high[2 * half + c] * 256 + low[2 * half + c]);
        sums[2 * half + c] += canon_fma(scale * t.x, dot, (bias * t.x) * t.y);
      }
    }
  }
}

constexpr int kMostStreams = 4;

/// What an output of a block meets in the wide residual: fetched all at once, before it is needed.
struct TailValues {
  float x[kMostStreams], gain[kMostStreams];

  __device__ __forceinline__ void load(const float* wide, const float* inject, int streams, int token, int hidden,
                                       int row) {
#pragma unroll
    for (int s = 0; s < kMostStreams; ++s) {
      if (s >= streams) continue;
      x[s] = wide[(static_cast<std::int64_t>(token) * streams + s) * hidden + row];
      gain[s] = inject[token * streams + s];
    }
  }
  __device__ __forceinline__ void store(float* wide, int streams, int token, int hidden, int row, float y) const {
#pragma unroll
    for (int s = 0; s < kMostStreams; ++s) {
      if (s >= streams) continue;
      wide[(static_cast<std::int64_t>(token) * streams + s) * hidden + row] = canon_fma(gain[s], y, x[s]);
    }
  }
};

/// Waits for all of a part of a block's warps.
__device__ __forceinline__ void part_barrier(int which, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(which + 1), "r"(threads) : "memory");
}

}  // namespace lockstep::kernels::cuda
