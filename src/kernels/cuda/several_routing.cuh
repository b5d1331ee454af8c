// The choice of experts for several rows and the pairs of row and expert in the order of experts, by one kernel
// (docs/numerics.md N7).
#pragma once

#include "kernels/cuda/few_routing.cuh"
#include "kernels/cuda/several_experts.hpp"

namespace lockstep::kernels::cuda {

constexpr int kMostChosen = static_cast<int>(kSeveralRows) * kMostRanks;
constexpr int kRouteThreads = kMostExperts;

/// Pairs (row, rank) sorted by expert.
struct SortedPairs {
  std::int32_t* words;
  int pairs;
  __device__ __forceinline__ std::int32_t& run_count() const { return words[0]; }
  __device__ __forceinline__ std::int32_t& expert(int run) const { return words[4 + run]; }
  __device__ __forceinline__ std::int32_t& first(int run) const { return words[4 + pairs + run]; }  ///< in order
  __device__ __forceinline__ std::int32_t& order(int place) const { return words[4 + 2 * pairs + place]; }
  __device__ __forceinline__ float* weights() const { return reinterpret_cast<float*>(words + 4 + 3 * pairs); }
  __device__ __forceinline__ int count(int run) const {
    return (run + 1 < run_count() ? first(run + 1) : pairs) - first(run);
  }
};

struct SeveralRoute {
  const float* logits;
  std::int32_t* choice;
  std::uint32_t* arrived;
  int rows, experts, ranks;
};

/// What choose() asks for.
struct RouteRow {
  const float* logits;
  int tokens, experts, ranks;
};

/// One block a row; the last one to have chosen sorts the pairs of all.
static __global__ void __launch_bounds__(kRouteThreads) several_route_kernel(SeveralRoute p) {
  __shared__ Routing routing;
  __shared__ float values[1][kMostExperts];
  __shared__ std::int32_t chosen[kMostChosen];
  __shared__ std::int32_t leads[kMostChosen];
  __shared__ int last;
  trigger_next_grid();
  wait_previous_grid();
  const int thread = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x);
  const int pairs = p.rows * p.ranks;
  const SortedPairs out{p.choice, pairs};
  choose<1>(routing, values, RouteRow{p.logits + static_cast<std::int64_t>(row) * p.experts, 1, p.experts, p.ranks});
  // Until they are sorted, the chosen experts lie where the order goes.
  if (thread < p.ranks) {
    out.order(row * p.ranks + thread) = routing.chosen[thread];
    out.weights()[row * p.ranks + thread] = routing.weights[thread];
    __threadfence();
  }
  __syncthreads();
  if (thread == 0) {
    const auto others = static_cast<unsigned>(p.rows - 1);
    last = atomicInc(p.arrived, others) == others ? 1 : 0;
    __threadfence();
  }
  __syncthreads();
  if (last == 0) return;
  if (thread < pairs) chosen[thread] = __ldcg(&out.order(thread));
  __syncthreads();
  // Pairs by expert; equal experts by row.
  int place = 0;
  if (thread < pairs) {
    const std::int32_t expert = chosen[thread];
    bool first = true;
#pragma unroll 8
    for (int q = 0; q < pairs; ++q) {
      const std::int32_t other = chosen[q];
      if (other < expert || (other == expert && q < thread)) ++place;
      if (other == expert && q < thread) first = false;
    }
    out.order(place) = thread;
    leads[place] = first ? 1 : 0;
  }
  __syncthreads();
  if (thread < 32) {
    int runs = 0;
#pragma unroll 1
    for (int base = 0; base < pairs; base += 32) {
      const int i = base + thread;
      const bool begins = i < pairs && leads[i] != 0;
      const unsigned all = __ballot_sync(kAllLanes, begins);
      if (begins) leads[i] = 1 + runs + __popc(all & ((1U << thread) - 1));
      runs += __popc(all);
    }
    if (thread == 0) out.run_count() = runs;
  }
  __syncthreads();
  if (thread < pairs && leads[place] != 0) {
    const int run = leads[place] - 1;
    out.expert(run) = chosen[thread];
    out.first(run) = place;
  }
}

}  // namespace lockstep::kernels::cuda
