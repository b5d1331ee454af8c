// Pairs of row and rank sorted by expert, so that each chosen expert is read once.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/residual.hpp"

namespace lockstep::kernels::cuda {
namespace {

struct SortParams {
  const std::int32_t* chosen;
  std::int32_t *order, *rows_of;
  ExpertRun* runs;
  std::int32_t* run_count;
  int pairs, ranks, experts;
};

constexpr int kSortThreads = 1024;
constexpr int kSortPairs = 2048;  ///< of a block: one block would wait for its own scattered writes
constexpr int kMostBlocks = 16;
constexpr int kAtOnce = 10;  ///< pairs of a thread on their way

/// Calls use(pair, expert) for all pairs.
template <class Use>
__device__ __forceinline__ void for_pairs(const SortParams& p, const Use& use) {
  for (int base = static_cast<int>(threadIdx.x); base < p.pairs; base += kAtOnce * kSortThreads) {
    int experts[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int pair = base + i * kSortThreads;
      experts[i] = pair < p.pairs ? p.chosen[pair] : -1;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (experts[i] >= 0) use(base + i * kSortThreads, experts[i]);
    }
  }
}

/// Counts per expert, prefix sums, placement. Every block counts all pairs and places those of its experts. The order
/// inside an expert does not matter: every pair is computed alone.
__global__ void __launch_bounds__(kSortThreads) sort_kernel(SortParams p) {
  trigger_next_grid();
  wait_previous_grid();
  extern __shared__ std::int32_t counts[];  // [experts] counts, then [experts] next places
  __shared__ int warp_places[32];
  __shared__ int warp_runs[32];
  std::int32_t* next = counts + p.experts;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const bool first_block = blockIdx.x == 0;
  for (int e = thread; e < p.experts; e += kSortThreads) counts[e] = 0;
  __syncthreads();
  for_pairs(p, [&](int, int expert) { atomicAdd(counts + expert, 1); });
  __syncthreads();
  int places = 0;  // before the present round of experts
  int runs = 0;
  for (int base = 0; base < p.experts; base += kSortThreads) {
    const int e = base + thread;
    const int count = e < p.experts ? counts[e] : 0;
    int place = count;
    int run = count > 0 ? 1 : 0;
    for (int width = 1; width < 32; width *= 2) {
      const int other_place = __shfl_up_sync(kAllLanes, place, static_cast<unsigned>(width));
      const int other_run = __shfl_up_sync(kAllLanes, run, static_cast<unsigned>(width));
      if (lane >= width) {
        place += other_place;
        run += other_run;
      }
    }
    if (lane == 31) {
      warp_places[thread / 32] = place;
      warp_runs[thread / 32] = run;
    }
    __syncthreads();
    int before_places = places;
    int before_runs = runs;
    for (int w = 0; w < 32; ++w) {
      if (w < thread / 32) {
        before_places += warp_places[w];
        before_runs += warp_runs[w];
      }
      places += warp_places[w];
      runs += warp_runs[w];
    }
    if (e < p.experts) {
      const int first = before_places + place - count;
      next[e] = first;
      if (count > 0 && first_block) p.runs[before_runs + run - 1] = {e, first, count};
    }
    __syncthreads();
  }
  if (thread == 0 && first_block) *p.run_count = runs;
  const auto block = static_cast<int>(blockIdx.x);
  const auto blocks = static_cast<int>(gridDim.x);  // a power of two
  for_pairs(p, [&](int pair, int expert) {
    if ((expert & (blocks - 1)) != block) return;
    const int place = atomicAdd(next + expert, 1);
    p.order[place] = pair;
    p.rows_of[place] = pair / p.ranks;
  });
}

}  // namespace

void sort_pairs(Queue& queue, const std::int32_t* chosen, std::int64_t pairs, std::int64_t ranks, std::int64_t experts,
                const PairLists& lists) {
  SortParams p{};
  p.chosen = chosen;
  p.order = lists.order;
  p.rows_of = lists.rows_of;
  p.runs = lists.runs;
  p.run_count = lists.run_count;
  p.pairs = static_cast<int>(pairs);
  p.ranks = static_cast<int>(ranks);
  p.experts = static_cast<int>(experts);
  unsigned blocks = 1;
  while (blocks < kMostBlocks && static_cast<std::int64_t>(blocks) * kSortPairs < pairs) blocks *= 2;
  launch(queue, sort_kernel, {blocks, 1, 1}, {kSortThreads, 1, 1},
         static_cast<std::size_t>(2 * experts) * sizeof(std::int32_t), p);
}

}  // namespace lockstep::kernels::cuda
