// The choice of experts for a few rows, by every block for itself (docs/numerics.md N7).
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/few_experts.hpp"

namespace lockstep::kernels::cuda {

constexpr int kMostExperts = 512;
constexpr int kMostRanks = 16;
constexpr int kMostPairs = static_cast<int>(kFewExpertRows) * kMostRanks;
constexpr int kKeys = kMostExperts / 32;  ///< of a lane
constexpr int kRoutingWarps = 20;         ///< of the block that chooses

/// Softmax, selection and renormalisation of the router logits of a block's rows (docs/numerics.md N7).
/// Every block does it for itself: that costs less than a kernel in between.
struct Routing {
  float maxima[kFewExpertRows][kRoutingWarps];
  float sums[kFewExpertRows];
  std::int32_t chosen[kMostPairs];
  float weights[kMostPairs];
  std::int32_t expert[kMostPairs + 1], first[kMostPairs + 1], order[kMostPairs];
  std::int32_t runs;
  alignas(16) unsigned tops[kFewExpertRows][kKeys];  ///< the largest key of every 32 experts, see unlike()
  std::int32_t found[kFewExpertRows];                ///< candidates, of which the list has the first 32
  uint2 candidates[kFewExpertRows][32];              ///< {key, expert}
};

/// warp_max() by one instruction on keys; a negative zero becomes a positive one.
__device__ __forceinline__ float largest_of_lanes(float value) {
  const unsigned key = __reduce_max_sync(kAllLanes, ordered_bits(value));
  return bits_float((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key);
}

/// The key of set i with its last bits replaced, so that no two of the 16 sets have the same, and none a larger one.
__device__ __forceinline__ unsigned unlike(unsigned key, int i) {
  return (key & ~15U) | static_cast<unsigned>(15 - i);
}

/// Of 16 keys made unlike, each the largest of its set or 0, the rank-th largest (from 1) or a little less: at least
/// `rank` keys of the sets are not below it, so none of the `rank` largest is. 0 when there are fewer. The same in all
/// lanes.
__device__ __forceinline__ unsigned lower_bound_of(const unsigned (&tops)[kKeys], int rank, int lane) {
  static_assert(kKeys == 16);
  const auto* four = reinterpret_cast<const uint4*>(tops);
  const unsigned mine = tops[lane % kKeys];
  int larger = 0;
#pragma unroll
  for (int i = 0; i < kKeys / 4; ++i) {
    const uint4 other = four[i];
    larger += (other.x > mine ? 1 : 0) + (other.y > mine ? 1 : 0) + (other.z > mine ? 1 : 0) + (other.w > mine ? 1 : 0);
  }
  const unsigned found = __ballot_sync(kAllLanes, lane < kKeys && mine != 0 && larger == rank - 1);
  return found == 0 ? 0 : __shfl_sync(kAllLanes, mine, __ffs(static_cast<int>(found)) - 1) & ~15U;
}

/// The `ranks` largest of up to 32 candidates in order (key descending, expert ascending), one a lane.
__device__ __forceinline__ void rank_candidates(Routing& r, int row, const float* values, int ranks, int lane) {
  const int count = r.found[row];
  const uint2 mine = lane < count ? r.candidates[row][lane] : make_uint2(0, 0xffffffffU);
  int place = 0;
#pragma unroll 8
  for (int i = 0; i < count; ++i) {
    const uint2 other = r.candidates[row][i];
    place += other.x > mine.x || (other.x == mine.x && other.y < mine.y) ? 1 : 0;
  }
  if (lane >= count || place >= ranks) return;
  r.chosen[row * ranks + place] = static_cast<std::int32_t>(mine.y);
  r.weights[row * ranks + place] = values[mine.y];
}

/// The same among all experts, one after the other: for more candidates than lanes.
__device__ __forceinline__ void rank_all(Routing& r, int row, const float* values, int experts, int ranks, int lane) {
  unsigned before = 0xffffffffU;  // the last winner's key and expert
  unsigned winner = 0xffffffffU;
#pragma unroll 1
  for (int rank = 0; rank < ranks; ++rank) {
    unsigned best = 0;
    unsigned candidate = 0xffffffffU;
#pragma unroll 1
    for (int i = lane; i < experts; i += 32) {
      const unsigned key = ordered_bits(values[i]);
      const bool later = rank == 0 || key < before || (key == before && static_cast<unsigned>(i) > winner);
      if (!later || key <= best) continue;
      best = key;
      candidate = static_cast<unsigned>(i);
    }
    before = __reduce_max_sync(kAllLanes, best);
    winner = __reduce_min_sync(kAllLanes, best == before ? candidate : 0xffffffffU);
    if (winner >= static_cast<unsigned>(experts)) winner = static_cast<unsigned>(rank);  // only without numbers
    if (lane != 0) continue;
    r.chosen[row * ranks + rank] = static_cast<std::int32_t>(winner);
    r.weights[row * ranks + rank] = values[winner];
  }
}

/// `p` has the logits [tokens, experts] and how many experts (ranks) each row gets; `values` is scratch of a row each.
/// At most kTokens rows.
template <int kTokens, class Params>
__device__ __forceinline__ void choose(Routing& r, float (*values)[kMostExperts], const Params& p) {
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int warps = threads / 32;
  // All rows' values are asked for before the first is needed (a layer of four rows 127 to 124.7 us).
  float maxima[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) maxima[t] = t < p.tokens ? p.logits[t * p.experts] : 0.0F;
#pragma unroll 1
  for (int i = thread; i < p.experts; i += threads) {
    float x[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) x[t] = t < p.tokens ? p.logits[t * p.experts + i] : 0.0F;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      if (t < p.tokens) values[t][i] = x[t];
      maxima[t] = x[t] > maxima[t] ? x[t] : maxima[t];
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    if (t >= p.tokens) continue;
    const float maximum = largest_of_lanes(maxima[t]);
    if (lane == 0) r.maxima[t][warp] = maximum;
  }
  __syncthreads();
#pragma unroll 1
  for (int t = 0; t < p.tokens; ++t) {
    const float maximum = largest_of_lanes(r.maxima[t][lane < warps ? lane : 0]);
#pragma unroll 1
    for (int i = thread; i < p.experts; i += threads) values[t][i] = canon_exp(values[t][i] - maximum);
  }
  __syncthreads();
  if (warp < p.tokens) {
    float sum = 0.0F;
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      if (32 * k + lane < p.experts) sum += values[warp][32 * k + lane];
    }
    sum = fold_lanes(sum);
    if (lane == 0) r.sums[warp] = sum;
  }
  if (thread < p.tokens) r.found[thread] = 0;
  if (thread < p.tokens * kKeys) r.tops[thread / kKeys][thread % kKeys] = 0;  // of experts that are not there
  __syncthreads();
#pragma unroll 1
  for (int t = 0; t < p.tokens; ++t) {
#pragma unroll 1
    for (int base = 0; base < p.experts; base += threads) {
      const int i = base + thread;
      float value = 0.0F;
      if (i < p.experts) values[t][i] = value = values[t][i] / r.sums[t];
      const unsigned top = __reduce_max_sync(kAllLanes, i < p.experts ? ordered_bits(value) : 0);
      if (lane == 0 && i < p.experts) r.tops[t][i / 32] = unlike(top, i / 32);
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int t = 0; t < p.tokens; ++t) {
    const unsigned bound = lower_bound_of(r.tops[t], p.ranks, lane);
#pragma unroll 1
    for (int base = 0; base < p.experts; base += threads) {
      const int i = base + thread;
      const unsigned key = i < p.experts ? ordered_bits(values[t][i]) : 0;
      const bool good = i < p.experts && key >= bound;
      const unsigned group = __ballot_sync(kAllLanes, good);
      if (group == 0) continue;
      int place = 0;
      if (lane == 0) place = atomicAdd(&r.found[t], __popc(group));
      place = __shfl_sync(kAllLanes, place, 0) + __popc(group & ((1U << lane) - 1));
      if (good && place < 32) r.candidates[t][place] = make_uint2(key, static_cast<unsigned>(i));
    }
  }
  __syncthreads();
  if (warp < p.tokens) {
    if (r.found[warp] <= 32) {
      rank_candidates(r, warp, values[warp], p.ranks, lane);
    } else {
      rank_all(r, warp, values[warp], p.experts, p.ranks, lane);
    }
    __syncwarp();
    float all[kMostRanks];
#pragma unroll
    for (int rank = 0; rank < kMostRanks; ++rank) all[rank] = rank < p.ranks ? r.weights[warp * p.ranks + rank] : 0.0F;
    float total = 0.0F;
#pragma unroll
    for (int rank = 0; rank < kMostRanks; ++rank) total += all[rank];
    __syncwarp();
    if (lane < p.ranks) r.weights[warp * p.ranks + lane] = r.weights[warp * p.ranks + lane] / total;
  }
  __syncthreads();
  const int pairs = p.tokens * p.ranks;
  if (p.tokens == 1) {
    if (thread < pairs) {
      r.expert[thread] = r.chosen[thread];
      r.first[thread] = r.order[thread] = thread;
    }
    if (thread == 0) r.runs = pairs;
    __syncthreads();
    return;
  }
  // Pairs by expert; equal experts by row.
  if (thread < pairs) {
    const std::int32_t expert = r.chosen[thread];
    int place = 0;
    bool leads = true;
#pragma unroll 8
    for (int q = 0; q < pairs; ++q) {
      const std::int32_t other = r.chosen[q];
      if (other < expert || (other == expert && q < thread)) ++place;
      if (other == expert && q < thread) leads = false;
    }
    r.order[place] = thread;
    r.first[place] = leads ? 1 : 0;  // for now: whether a run begins here
  }
  __syncthreads();
  int run = -1;
  bool begins = false;
  if (thread < pairs) {
#pragma unroll 8
    for (int q = 0; q <= thread; ++q) run += r.first[q];
    begins = r.first[thread] != 0;
  }
  __syncthreads();
  if (begins) {
    r.expert[run] = r.chosen[r.order[thread]];
    r.first[run] = thread;
  }
  if (thread == pairs - 1) r.runs = run + 1;
  __syncthreads();
}

}  // namespace lockstep::kernels::cuda
