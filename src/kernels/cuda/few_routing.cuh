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
};

/// `p` has the logits [tokens, experts] and how many experts (ranks) each row gets; `values` is scratch of a row each.
template <class Params>
__device__ __forceinline__ void choose(Routing& r, float (*values)[kMostExperts], const Params& p) {
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int warps = threads / 32;
#pragma unroll 1
  for (int t = 0; t < p.tokens; ++t) {
    const float* logits = p.logits + static_cast<std::int64_t>(t) * p.experts;
    float maximum = logits[0];
#pragma unroll 1
    for (int i = thread; i < p.experts; i += threads) {
      const float x = logits[i];
      values[t][i] = x;
      maximum = x > maximum ? x : maximum;
    }
#pragma unroll
    for (int width = 16; width > 0; width /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, maximum, width);
      maximum = other > maximum ? other : maximum;
    }
    if (lane == 0) r.maxima[t][warp] = maximum;
  }
  __syncthreads();
#pragma unroll 1
  for (int t = 0; t < p.tokens; ++t) {
    float maximum = r.maxima[t][0];
#pragma unroll 1
    for (int w = 1; w < warps; ++w) maximum = r.maxima[t][w] > maximum ? r.maxima[t][w] : maximum;
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
  __syncthreads();
#pragma unroll 1
  for (int t = 0; t < p.tokens; ++t) {
#pragma unroll 1
    for (int i = thread; i < p.experts; i += threads) values[t][i] = values[t][i] / r.sums[t];
  }
  __syncthreads();
  if (warp < p.tokens) {
    unsigned mine[kKeys];
#pragma unroll
    for (int k = 0; k < kKeys; ++k) {
      mine[k] = 32 * k + lane < p.experts ? ordered_bits(values[warp][32 * k + lane]) : 0;
    }
    float total = 0.0F;
#pragma unroll 1
    for (int rank = 0; rank < p.ranks; ++rank) {
      unsigned best = 0;
#pragma unroll
      for (int k = 0; k < kKeys; ++k) best = mine[k] > best ? mine[k] : best;
      const unsigned top = __reduce_max_sync(kAllLanes, best);
      unsigned candidate = 0xffffffffU;
      if (best == top) {
#pragma unroll
        for (int k = kKeys - 1; k >= 0; --k) {
          if (mine[k] == top) candidate = static_cast<unsigned>(32 * k + lane);
        }
      }
      const unsigned winner = __reduce_min_sync(kAllLanes, candidate);
      if (candidate == winner) {
#pragma unroll
        for (int k = 0; k < kKeys; ++k) mine[k] = static_cast<unsigned>(32 * k + lane) == winner ? 0 : mine[k];
      }
      const float value = values[warp][winner];
      if (lane == 0) {
        r.chosen[warp * p.ranks + rank] = static_cast<std::int32_t>(winner);
        r.weights[warp * p.ranks + rank] = value;
      }
      total += value;
    }
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
#pragma unroll 1
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
#pragma unroll 1
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
