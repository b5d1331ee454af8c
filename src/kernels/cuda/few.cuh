// What the kernels for up to eight activation rows share: a warp's segment of a weight tile passes through shared
// memory, so that it is on its way before the kernel in front has ended, and meets the rows on the tensor cores.
#pragma once

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/mma.cuh"
#include "numerics/affine.hpp"

namespace lockstep::kernels::cuda {

constexpr int kSegmentChunks = kSegmentInputs / 64;

/// number / divisor for numbers up to 31 without a division, which costs a kernel's first instructions dearly.
__host__ __device__ constexpr unsigned part_factor(int divisor) {
  return 65536U / static_cast<unsigned>(divisor) + 1;
}
__device__ __forceinline__ int part_of(int number, unsigned factor) {
  return static_cast<int>(static_cast<unsigned>(number) * factor >> 16);
}

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
  const std::uint64_t policy = once_policy();
#pragma unroll 1
  for (int i = 0; i < chunks * kPieces; ++i) {
    copy_once_soon(stage + (i * 32 + lane) * 16, codes + (i * 32 + lane) * 16, policy);
  }
  std::byte* to = stage + room * 128 * kBits;
#pragma unroll 1
  for (int i = lane; i < chunks * 4; i += 32) copy_once_soon(to + i * 16, pairs + i * 16, policy);
}

/// Which token and which of kGroups consecutive groups an mma's column stands for: the eight columns hold kTokens
/// tokens of 8 / kTokens groups, later groups in lower columns, so that a sum over groups ends in the lanes of quad 0.
template <int kTokens>
struct Columns {
  static_assert(kTokens == 1 || kTokens == 2 || kTokens == 4 || kTokens == 8);
  static constexpr int kGroups = 8 / kTokens;
  static __device__ __forceinline__ int token(int column) { return column % kTokens; }
  static __device__ __forceinline__ int group(int column) { return kGroups - 1 - column / kTokens; }
};

/// Adds the results of one round's groups to sums, in ascending order of groups; right in the lanes of the last group's
/// columns, which are those of the first quads.
template <int kTokens>
__device__ __forceinline__ void add_in_order(const float (&r)[4], float (&sums)[4]) {
  if constexpr (kTokens == 8) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] += r[i];
  } else if constexpr (kTokens == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = (sums[i] + __shfl_down_sync(kAllLanes, r[i], 2)) + r[i];
  } else {
    // The running sums go from the lanes of quad 3 down to those of quad 0; they start where they were left.
#pragma unroll
    for (int i = 0; i < (kTokens == 1 ? 2 : 4); ++i) {
      const int at = kTokens == 1 ? 2 * i : i;
      float sum = __shfl_sync(kAllLanes, sums[at], lane_id() & 28);
#pragma unroll
      for (int quad = 3; quad >= 0; --quad) {
        if constexpr (kTokens == 1) sum += r[at + 1];
        sum += r[at];
        if (quad > 0) sum = __shfl_down_sync(kAllLanes, sum, 1);
      }
      sums[at] = sum;
    }
  }
}

/// Adds the groups first..first+count of a staged tile to sums {row g, row g + 8} x {column 2j, column 2j + 1}, one
/// after the other; right where the column is below kTokens. `digits` are those of group 0 of the lane's token,
/// Columns::token(lane / 4), the lane's quad first; `steps0` and `steps1` those of the tokens of columns 2j and 2j + 1.
///
/// The columns stand for several groups: each meets the codes of all of them, and its own group's result is kept. So
/// what follows the tensor cores is done once for all lanes instead of once a group for a quarter of them.
template <int kBits, int kTokens>
__device__ __forceinline__ void add_groups(const std::byte* stage, int room, int first, int count, const uint4* digits,
                                           const float2* steps0, const float2* steps1, int lane, float (&sums)[4]) {
  using At = Columns<kTokens>;
  constexpr int kPieces = kBits / 4;
  const int quad = lane % 4;
  const uint4* codes = reinterpret_cast<const uint4*>(stage) + first * 32 * kPieces + lane;
  const uint2* pairs = reinterpret_cast<const uint2*>(stage + room * 128 * kBits) + first * 8 + lane / 4;
#pragma unroll 1
  for (int base = 0; base < count; base += At::kGroups) {
    const int left = count - base;
    const int mine = At::group(lane / 4);
    const uint4* from = digits + (first + base + (mine < left ? mine : 0)) * 8;
    const uint4 h = from[0];
    const uint4 l = from[1];
    int high[4] = {0, 0, 0, 0};
    int low[4] = {0, 0, 0, 0};
#pragma unroll
    for (int g = 0; g < At::kGroups; ++g) {
      if (g > 0 && g >= left) continue;
      uint4 chunk[kPieces];
#pragma unroll
      for (int k = 0; k < kPieces; ++k) chunk[k] = codes[((base + g) * kPieces + k) * 32];
      int signed_digits[4] = {0, 0, 0, 0};
      int unsigned_digits[4] = {0, 0, 0, 0};
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        unsigned a[4];
        unpack<kBits>(chunk, m, a);
        mma_signed(signed_digits, a, m == 0 ? h.x : h.z, m == 0 ? h.y : h.w);
        mma_unsigned(unsigned_digits, a, m == 0 ? l.x : l.z, m == 0 ? l.y : l.w);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // One token: a group has one column, so every second value is nobody's.
        if (kTokens == 1 && i % 2 != (At::kGroups - 1 - g) % 2) continue;
        const bool own = At::kGroups == 1 || At::group(2 * quad + i % 2) == g;
        high[i] = own ? signed_digits[i] : high[i];
        low[i] = own ? unsigned_digits[i] : low[i];
      }
    }
    float r[4];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int group = At::group(2 * quad + c);
      const bool live = group < left;
      const int at = base + (live ? group : 0);
      const uint2 pair = pairs[at * 8];
      const float2 t = c == 0 ? steps0[first + at] : steps1[first + at];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const unsigned word = half == 0 ? pair.x : pair.y;
        const float scale = bits_float(word << 16);
        const float bias = bits_float(word & 0xffff0000U);
        const float dot = static_cast<float>(high[2 * half + c] * 256 + low[2 * half + c]);
        const float value = canon_fma(scale * t.x, dot, (bias * t.x) * t.y);
        r[2 * half + c] = live ? value : 0.0F;
      }
    }
    add_in_order<kTokens>(r, sums);
  }
}

/// What multiply_group() multiplies its results by.
template <int kBits>
constexpr int kCodeFactor = kBits == 4 ? 16 : 1;

/// The products of a group's codes with the B operand of its 64 inputs (one column of digits a lane), times
/// kCodeFactor.
///
/// Nibbles are not shifted, since integer instructions take a scheduler two cycles each: sums of the low ones are
/// multiplied by 16, and the high ones, which count 16 times where they are, added.
template <int kBits>
__device__ __forceinline__ void multiply_group(const uint4* codes, const unsigned (&b)[4], int (&dots)[4]) {
  const uint4 c = codes[0];
  if constexpr (kBits == 4) {
    constexpr unsigned kLow = 0x0f0f0f0fU;
    const unsigned low[4] = {c.x & kLow, c.y & kLow, c.z & kLow, c.w & kLow};
    mma_first(dots, low, b[0], b[2]);
#pragma unroll
    for (int i = 0; i < 4; ++i) dots[i] *= 16;
    const unsigned high[4] = {c.x & ~kLow, c.y & ~kLow, c.z & ~kLow, c.w & ~kLow};
    mma_next(dots, high, b[1], b[3]);
  } else {
    const uint4 d = codes[32];
    const unsigned first[4] = {c.x, c.y, c.z, c.w};
    const unsigned second[4] = {d.x, d.y, d.z, d.w};
    mma_first(dots, first, b[0], b[1]);
    mma_next(dots, second, b[2], b[3]);
  }
}

/// The sum of the groups first..first+count of a staged tile for one activation row, one group after the other: that of
/// output row lane / 4 in the lanes of quad 0, of row lane / 4 + 8 in those of quad 1. `digits` and `steps` are those
/// of the row's group 0.
///
/// Of a row the tensor cores see a column of high digits h, one of low digits less 128 and two constant ones, 1 and
/// -128: 256 h + (l - 128) and 256 * 1 - 128 add up to the value that the digits stand for, all with signed digits, so
/// one product does where add_groups() needs two. Two groups share the eight columns: each of both products meets the
/// columns of both, and a lane keeps what its columns have of their own group. The two constant columns lie beside the
/// others' lanes, so that one exchange completes one sum a lane.
template <int kBits>
__device__ __forceinline__ float add_groups_of_row(const std::byte* stage, int room, int first, int count,
                                                   const uint4* digits, const float2* steps, int lane) {
  constexpr int kGroup = 8 * kBits;  // codes of a group, in 16 bytes
  const int quad = lane % 4;
  const int column = lane / 4;
  const int gives = column / 4;  // the group of a pair whose column it gives
  const int keeps = quad / 2;    // and whose results it keeps
  const bool lower = quad % 2 != 0;
  const unsigned mask = column % 4 < 2 ? 0xffffffffU : 0U;
  const unsigned flip = column % 4 == 0 ? 0U : (column % 4 == 2 ? 0x01010101U : 0x80808080U);
  const uint4* codes = reinterpret_cast<const uint4*>(stage) + first * kGroup + lane;
  const unsigned* pairs =
      reinterpret_cast<const unsigned*>(stage + room * 128 * kBits) + (first + keeps) * 16 + column * 2 + quad % 2;
  digits += (first + gives) * 8 + quad * 2 + column % 2;
  steps += first + keeps;
  const auto value_of = [&](int base, int next) {
    const uint4 d = digits[base * 8];
    const unsigned b[4] = {(d.x & mask) ^ flip, (d.y & mask) ^ flip, (d.z & mask) ^ flip, (d.w & mask) ^ flip};
    int dots[2][4];
    multiply_group<kBits>(codes + base * kGroup, b, dots[0]);
    multiply_group<kBits>(codes + (base + next) * kGroup, b, dots[1]);
    int own[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) own[i] = keeps == 0 ? dots[0][i] : dots[1][i];
    const int upper_part = own[0] * 256 + own[1];
    const int lower_part = own[2] * 256 + own[3];
    const int other = __shfl_xor_sync(kAllLanes, lower ? upper_part : lower_part, 1);
    const float dot =
        static_cast<float>((lower ? lower_part : upper_part) + other) * (1.0F / static_cast<float>(kCodeFactor<kBits>));
    const unsigned word = pairs[base * 16];
    const float2 t = steps[base];
    const float scale = bits_float(word << 16);
    const float bias = bits_float(word & 0xffff0000U);
    return canon_fma(scale * t.x, dot, (bias * t.x) * t.y);
  };
  float sum = 0.0F;
#pragma unroll 2
  for (int base = 0; base + 1 < count; base += 2) {
    const float value = value_of(base, 1);
    sum += value;
    sum += __shfl_down_sync(kAllLanes, value, 2);
  }
  if (count % 2 != 0) {  // the last one alone, in both places
    digits -= gives * 8;
    pairs -= keeps * 16;
    steps -= keeps;
    sum += value_of(count - 1, 0);
  }
  return sum;
}

/// stage_tile() by one thread, with bulk copies: fewer instructions, but less of the memory's bandwidth in a long run
/// of tiles (head of one row 94 us instead of 88).
template <int kBits>
__device__ __forceinline__ void stage_tile_at_once(std::byte* stage, const std::byte* codes, const std::byte* pairs,
                                                   int chunks, int room, Arrival& arrival) {
  const std::uint64_t policy = once_policy();
  const auto code_bytes = static_cast<unsigned>(chunks * 128 * kBits);
  const auto pair_bytes = static_cast<unsigned>(chunks * 64);
  arrival_begin(arrival, code_bytes + pair_bytes);
  bulk_copy_once(stage, codes, code_bytes, arrival, policy);
  bulk_copy_once(stage + room * 128 * kBits, pairs, pair_bytes, arrival, policy);
  arrival_sent(arrival);
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
