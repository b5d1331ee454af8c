// What the kernels for 9 to 16 activation rows share: a warp's segment of a weight tile arrives in shared memory all at
// once, and runs of one or two rows use the columns of the tensor cores for several groups (few.cuh).
#pragma once

#include "kernels/cuda/few.cuh"

namespace lockstep::kernels::cuda {

/// Starts copying the first `chunks` of up to kRoom chunks of a tile, codes and then pairs.
template <int kRoom, int kBits = 4>
__device__ __forceinline__ void stage_chunks(std::byte* stage, const std::byte* codes, const std::byte* pairs,
                                             int chunks, std::uint64_t policy, int lane) {
  constexpr int kPieces = kBits / 4;
  std::byte* to = stage + lane * 16;
  const std::byte* from = codes + lane * 16;
#pragma unroll
  for (int i = 0; i < kRoom * kPieces; ++i) {
    if (i < chunks * kPieces) copy_once_soon(to + i * 512, from + i * 512, policy);
  }
#pragma unroll
  for (int i = 0; i < kRoom * 4; i += 32) {
    if (i + lane < chunks * 4) copy_once_soon(to + kRoom * 128 * kBits + i * 16, pairs + (i + lane) * 16, policy);
  }
}

/// D = A * B, as mma_signed() and mma_unsigned() from zero.
__device__ __forceinline__ void mma_first_signed(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}
__device__ __forceinline__ void mma_first_unsigned(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

/// The products of a chunk's codes with digits as integers, {row g, row g + 8} x {column 2j, column 2j + 1}.
template <int kBits>
__device__ __forceinline__ void chunk_dots(const uint4* chunk, const uint4& h, const uint4& l, int (&dots)[4]) {
  unsigned a[4];
  unsigned b[4];
  unpack<kBits>(chunk, 0, a);
  unpack<kBits>(chunk, 1, b);
  int high[4];
  int low[4];
  mma_first_signed(high, a, h.x, h.y);
  mma_first_unsigned(low, a, l.x, l.y);
  mma_signed(high, b, h.z, h.w);
  mma_unsigned(low, b, l.z, l.w);
#pragma unroll
  for (int i = 0; i < 4; ++i) dots[i] = high[i] * 256 + low[i];
}

/// add_groups() of exactly kCount groups of 4 bits, without a branch: loads and products of all groups overlap. `codes`
/// and `pairs`: of the lane.
template <int kTokens, int kCount>
__device__ __forceinline__ void add_all(const uint4* codes, const uint2* pairs, const uint4* digits,
                                        const float2* steps0, const float2* steps1, int lane, float (&sums)[4]) {
  using At = Columns<kTokens>;
  const int quad = lane % 4;
#pragma unroll
  for (int base = 0; base < kCount; base += At::kGroups) {
    const int here = kCount - base < At::kGroups ? kCount - base : At::kGroups;
    const int mine = At::group(lane / 4);
    const uint4* from = digits + (base + (mine < here ? mine : 0)) * 8;
    const uint4 h = from[0];
    const uint4 l = from[1];
    int dots[4] = {0, 0, 0, 0};
#pragma unroll
    for (int g = 0; g < here; ++g) {
      const uint4 chunk = codes[(base + g) * 32];
      int found[4];
      chunk_dots<4>(&chunk, h, l, found);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // One token: a group has one column, so every second value is nobody's.
        if (kTokens == 1 && i % 2 != (At::kGroups - 1 - g) % 2) continue;
        const bool own = At::kGroups == 1 || At::group(2 * quad + i % 2) == g;
        dots[i] = own ? found[i] : dots[i];
      }
    }
    float r[4];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int group = At::group(2 * quad + c);
      const bool live = group < here;
      const int at = base + (live ? group : 0);
      const uint2 pair = pairs[at * 8];
      const float2 t = c == 0 ? steps0[at] : steps1[at];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned word = half == 0 ? pair.x : pair.y;
        const float scale = bits_float(word << 16);
        const float bias = bits_float(word & 0xffff0000U);
        const float value = canon_fma(scale * t.x, static_cast<float>(dots[2 * half + c]), (bias * t.x) * t.y);
        r[2 * half + c] = live ? value : 0.0F;
      }
    }
    add_in_order<kTokens>(r, sums);
  }
}

}  // namespace lockstep::kernels::cuda
