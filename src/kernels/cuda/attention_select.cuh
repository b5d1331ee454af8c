// The choice of a row's best groups by one cluster of blocks, which see each other's shared memory.
//
// Every block keeps some keys (ordered_bits() of scores). The budget-th largest is found in passes: a pass
// counts the keys of a window below the largest one in 4,096 bins of equal width, and the bin that holds the wanted key
// is the next window. The first window is two octaves: the whole range would put most keys into a few bins, whose
// counting takes turns. Counts are integers, so their order means nothing.
#pragma once

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/device.cuh"

namespace lockstep::kernels::cuda {

constexpr int kCluster = 8;  ///< blocks of a row
constexpr int kSelectThreads = 512;
constexpr int kSelectWarps = kSelectThreads / 32;
constexpr int kBins = 4096;
constexpr int kCoarse = 64;      ///< parts of the bins
constexpr int kFirstShift = 12;  ///< bins of the first window
constexpr int kWholeShift = 20;  ///< bins over all numbers
constexpr int kPasses = 4;       ///< the first window, all numbers, and 20 bits more in two passes

__device__ __forceinline__ int cluster_rank() {
  return static_cast<int>(blockIdx.x) % kCluster;
}

struct SelectShared {
  unsigned bins[2][kBins];                      ///< of even and odd passes
  unsigned coarse[kPasses][kCluster][kCoarse];  ///< sums of kBins / kCoarse bins, of every block
  unsigned maxima[kCluster];
  uint2 totals[kCluster];  ///< keys of every block above and equal to the threshold
  uint2 warp_totals[kSelectWarps];
  unsigned warp_maxima[kSelectWarps];
  unsigned smallest, largest;      ///< of the wanted key's bin
  unsigned candidates[32], count;  ///< its keys
  unsigned bin, before, inside;    ///< the wanted key's bin, keys above it and in it; bin == kBins: there are too few
};

/// Prefix sums over a warp.
__device__ __forceinline__ unsigned warp_prefix(unsigned x, int lane) {
#pragma unroll
  for (int width = 1; width < 32; width *= 2) {
    const unsigned other = __shfl_up_sync(kAllLanes, x, static_cast<unsigned>(width));
    if (lane >= width) x += other;
  }
  return x;
}

/// Two neighbouring counts a lane, from the first on: the place where their running sum reaches `wanted`, and the sum
/// before it. By one warp; 64 where it does not.
__device__ __forceinline__ int reach(uint2 counts, unsigned wanted, unsigned& before, unsigned& inside, int lane) {
  const unsigned inclusive = warp_prefix(counts.x + counts.y, lane);
  const unsigned reached = __ballot_sync(kAllLanes, inclusive >= wanted);
  if (reached == 0) return 64;
  const int holder = __ffs(static_cast<int>(reached)) - 1;
  const unsigned start = inclusive - counts.x - counts.y;
  const bool second = start + counts.x < wanted;
  before = __shfl_sync(kAllLanes, second ? start + counts.x : start, holder);
  inside = __shfl_sync(kAllLanes, second ? counts.y : counts.x, holder);
  return 2 * holder + __shfl_sync(kAllLanes, second ? 1 : 0, holder);
}

constexpr int kMine = kBins / kSelectThreads;  ///< bins of a thread
constexpr int kTogether = 64 / kMine;          ///< threads that have a part of the bins
static_assert(kBins == 64 * kCoarse && kCoarse == 64 && kMine % 4 == 0 && kTogether > 0);

/// The sum of a part of the bins, in all threads that have it.
__device__ __forceinline__ unsigned part_sum(const unsigned* bins) {
  unsigned sum = 0;
#pragma unroll
  for (int i = 0; i < kMine / 4; ++i) {
    const uint4 four = reinterpret_cast<const uint4*>(bins)[kMine / 4 * static_cast<int>(threadIdx.x) + i];
    sum += four.x + four.y + four.z + four.w;
  }
#pragma unroll
  for (int width = 1; width < kTogether; width *= 2) sum += __shfl_xor_sync(kAllLanes, sum, width);
  return sum;
}

__device__ __forceinline__ void empty_bins(unsigned* bins, int thread, int threads) {
  for (int i = thread; i < kBins / 4; i += threads) reinterpret_cast<uint4*>(bins)[i] = make_uint4(0, 0, 0, 0);
}

/// Before the keys are known: empties the bins and says that this block has begun. cluster_wait() must follow.
__device__ __forceinline__ void begin_select(SelectShared& shared) {
  empty_bins(shared.bins[0], static_cast<int>(threadIdx.x), kSelectThreads);
  empty_bins(shared.bins[1], static_cast<int>(threadIdx.x), kSelectThreads);
  cluster_arrive();
}

/// Which keys are taken: those above `threshold`, and of the equal ones the first `equals`.
struct Choice {
  unsigned threshold;
  unsigned equals;
};

/// A block's keys in shared memory, of groups begin to end. A warp takes consecutive ones.
struct Keys {
  const unsigned* key;  ///< of the thread's first group; the next ones are 32 further
  int first, end;       ///< groups
  int each;             ///< keys of a thread that may exist, the same in all threads
  __device__ __forceinline__ Keys(const unsigned* keys, int begin, int end_group, int size)
      : end(end_group), each((size + kSelectThreads - 1) / kSelectThreads) {
    const int thread = static_cast<int>(threadIdx.x);
    const int in_block = thread / 32 * each * 32 + thread % 32;
    key = keys + in_block;
    first = begin + in_block;
  }
  [[nodiscard]] __device__ __forceinline__ bool has(int i) const { return first + 32 * i < end; }
};

/// Counts the block's keys of one window: those of at most `top` and less than `last + 1` below it.
__device__ __forceinline__ void count_keys(unsigned* bins, const Keys& keys, unsigned top, unsigned last, int shift) {
  const int lane = lane_id();
#pragma unroll 2
  for (int i = 0; i < keys.each; ++i) {
    const unsigned key = keys.has(i) ? keys.key[32 * i] : 0;
    const unsigned below = top - key;
    const bool inside = keys.has(i) && key <= top && below <= last;
    const unsigned mask = __ballot_sync(kAllLanes, inside);
    if (mask == 0) continue;
    // Equal scores would take turns.
    const int leader = __ffs(static_cast<int>(mask)) - 1;
    const unsigned bin = below >> shift;
    const unsigned first = __shfl_sync(kAllLanes, bin, leader);
    if (__all_sync(kAllLanes, !inside || bin == first)) {
      if (lane == leader) atomicAdd(bins + bin, static_cast<unsigned>(__popc(mask)));
    } else if (inside) {
      atomicAdd(bins + bin, 1U);
    }
  }
}

/// Leaves the bin of the `wanted`-th key of a block alone in shared.bin, shared.before and shared.inside.
__device__ __forceinline__ void find_own_bin(SelectShared& shared, int pass, unsigned wanted) {
  const int thread = static_cast<int>(threadIdx.x);
  unsigned* bins = shared.bins[pass % 2];
  __syncthreads();
  const unsigned sum = part_sum(bins);
  if (thread % kTogether == 0) shared.coarse[0][0][thread / kTogether] = sum;
  __syncthreads();
  if (thread < 32) {
    unsigned before = 0;
    unsigned inside = 0;
    const int part = reach(reinterpret_cast<const uint2*>(shared.coarse[0][0])[thread], wanted, before, inside, thread);
    int bin = kBins;
    if (part < kCoarse) {
      unsigned more = 0;
      bin = part * 64 +
            reach(reinterpret_cast<const uint2*>(bins + part * 64)[thread], wanted - before, more, inside, thread);
      before += more;
    }
    if (thread == 0) {
      shared.bin = static_cast<unsigned>(bin);
      shared.before = before;
      shared.inside = inside;
    }
  } else if (pass > 0) {
    empty_bins(shared.bins[(pass + 1) % 2], thread - 32, kSelectThreads - 32);
  }
  __syncthreads();
}

/// The counts of the cluster: leaves the bin of the `wanted`-th key in shared.bin, shared.before and shared.inside.
__device__ __forceinline__ void find_bin(SelectShared& shared, int pass, unsigned wanted) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  unsigned* bins = shared.bins[pass % 2];
  __syncthreads();
  const unsigned sum = part_sum(bins);
#pragma unroll
  for (int r = 0; r < kCluster; r += kTogether) {
    const int to = r + thread % kTogether;
    if (to < kCluster) store_remote(remote(&shared.coarse[pass][cluster_rank()][thread / kTogether], to), sum);
  }
  cluster_arrive();
  cluster_wait();
  if (thread < 32) {
    uint2 counts = make_uint2(0, 0);
#pragma unroll
    for (int r = 0; r < kCluster; ++r) {
      const uint2 two = reinterpret_cast<const uint2*>(shared.coarse[pass][r])[lane];
      counts.x += two.x;
      counts.y += two.y;
    }
    unsigned before = 0;
    unsigned inside = 0;
    const int part = reach(counts, wanted, before, inside, lane);
    int bin = kBins;
    if (part < kCoarse) {
      counts = make_uint2(0, 0);
      uint2 two[kCluster];
#pragma unroll
      for (int r = 0; r < kCluster; ++r) two[r] = load_remote(remote(bins + part * 64 + 2 * lane, r));
#pragma unroll
      for (int r = 0; r < kCluster; ++r) {
        counts.x += two[r].x;
        counts.y += two[r].y;
      }
      unsigned more = 0;
      bin = part * 64 + reach(counts, wanted - before, more, inside, lane);
      before += more;
    }
    if (lane == 0) {
      shared.bin = static_cast<unsigned>(bin);
      shared.before = before;
      shared.inside = inside;
    }
  } else if (pass > 0) {
    // Nobody looks at the other bins any more: all are past this pass's barrier.
    empty_bins(shared.bins[(pass + 1) % 2], thread - 32, kSelectThreads - 32);
  }
  __syncthreads();
}

/// The largest key of the cluster, or of the block alone.
template <bool kAlone>
__device__ __forceinline__ unsigned largest_key(SelectShared& shared, const Keys& keys) {
  const int thread = static_cast<int>(threadIdx.x);
  unsigned most = 0;
#pragma unroll 4
  for (int i = 0; i < keys.each; ++i) {
    const unsigned key = keys.has(i) ? keys.key[32 * i] : 0;
    most = key > most ? key : most;
  }
  most = __reduce_max_sync(kAllLanes, most);
  if (thread % 32 == 0) shared.warp_maxima[thread / 32] = most;
  __syncthreads();
  if constexpr (kAlone) return __reduce_max_sync(kAllLanes, shared.warp_maxima[thread % kSelectWarps]);
  if (thread < 32) {
    most = __reduce_max_sync(kAllLanes, shared.warp_maxima[thread % kSelectWarps]);
    if (thread < kCluster) store_remote(remote(&shared.maxima[cluster_rank()], thread), most);
  }
  cluster_arrive();
  cluster_wait();
  most = 0;
#pragma unroll
  for (int r = 0; r < kCluster; ++r) most = shared.maxima[r] > most ? shared.maxima[r] : most;
  return most;
}

/// The choice of the `wanted` largest of the cluster's keys, or of the block's alone; there are more than those.
template <bool kAlone>
__device__ __forceinline__ Choice choose_keys(SelectShared& shared, const Keys& keys, unsigned wanted) {
  unsigned top = largest_key<kAlone>(shared, keys);
  int shift = kFirstShift;
  unsigned last = (static_cast<unsigned>(kBins) << kFirstShift) - 1;
#pragma unroll 1
  for (int pass = 0;; ++pass) {
    count_keys(shared.bins[pass % 2], keys, top, last, shift);
    if constexpr (kAlone) {
      find_own_bin(shared, pass, wanted);
    } else {
      find_bin(shared, pass, wanted);
    }
    const unsigned bin = shared.bin;
    if (bin == kBins) {
      shift = kWholeShift;
      last = ~0U;
      continue;
    }
    wanted -= shared.before;
    top -= bin << shift;
    last = (1U << shift) - 1;
    if (shift == 0) return {top, wanted};
    // All keys of the bin: those above what lies below it.
    if (shared.inside == wanted && top > last) return {top - last - 1, 0};
    shift = shift > 12 ? shift - 12 : 0;
  }
}

/// Whether a key is that of a finite number, and the number.
__device__ __forceinline__ bool finite_key(unsigned key) {
  return key >= 0x00800000U && key <= 0xff7fffffU;
}
__device__ __forceinline__ float key_value(unsigned key) {
  return bits_float((key & 0x80000000U) != 0 ? key & 0x7fffffffU : ~key);
}

/// The bin of a key on a scale that is even in the scores: falls with the score, as every step of it does.
__device__ __forceinline__ unsigned even_bin(unsigned key, float top, float scale) {
  const auto bin = static_cast<unsigned>((top - key_value(key)) * scale);
  return bin < kBins ? bin : kBins - 1;
}

/// Calls use(key) for all keys of a block, each by some thread.
template <class Use>
__device__ __forceinline__ void each_key(const unsigned* keys, int groups, Use use) {
#pragma unroll 1
  for (int i = 4 * static_cast<int>(threadIdx.x); i < groups; i += 4 * kSelectThreads) {
    const uint4 four = *reinterpret_cast<const uint4*>(keys + i);
    const unsigned key[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (i + k < groups) use(key[k]);
    }
  }
}

/// The choice of the `wanted` largest of up to 32 keys. By every warp for itself: a key is the wanted one if fewer are
/// larger, and not fewer at least as large.
__device__ __forceinline__ Choice choose_candidate(const unsigned* candidates, unsigned count, unsigned wanted) {
  const int lane = lane_id();
  const unsigned own = candidates[lane];
  unsigned larger = 0;
  unsigned equal = 0;
#pragma unroll 4
  for (int i = 0; i < static_cast<int>(count); ++i) {
    const unsigned other = __shfl_sync(kAllLanes, own, i);
    larger += other > own ? 1 : 0;
    equal += other == own ? 1 : 0;
  }
  const bool is_it = lane < static_cast<int>(count) && larger < wanted && wanted <= larger + equal;
  const int holder = __ffs(static_cast<int>(__ballot_sync(kAllLanes, is_it))) - 1;
  return {__shfl_sync(kAllLanes, own, holder), wanted - __shfl_sync(kAllLanes, larger, holder)};
}

/// choose_keys() of a block alone, for usual scores in one pass: bins on a scale that is even in the scores hold few
/// keys each, and a warp looks at those of the one that counts.
__device__ __forceinline__ Choice choose_own(SelectShared& shared, const unsigned* all, int groups, unsigned wanted) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  unsigned most = 0;
  unsigned least = ~0U;
  each_key(all, groups, [&](unsigned key) {
    most = key > most ? key : most;
    least = key < least ? key : least;
  });
  most = __reduce_max_sync(kAllLanes, most);
  least = __reduce_min_sync(kAllLanes, least);
  if (lane == 0) shared.warp_totals[thread / 32] = make_uint2(most, least);
  if (thread == 0) {
    shared.smallest = ~0U;
    shared.largest = 0;
    shared.count = 0;
  }
  __syncthreads();
  const uint2 of_warp = shared.warp_totals[lane % kSelectWarps];
  most = __reduce_max_sync(kAllLanes, of_warp.x);
  least = __reduce_min_sync(kAllLanes, of_warp.y);
  if (most == least) {
    __syncthreads();
    return {most, wanted};
  }
  const float top = key_value(most);
  const float scale = static_cast<float>(kBins - 1) / (top - key_value(least));
  if (finite_key(most) && finite_key(least) && scale > 0.0F && scale < 1e30F) {
    each_key(all, groups, [&](unsigned key) { atomicAdd(shared.bins[0] + even_bin(key, top, scale), 1U); });
    find_own_bin(shared, 0, wanted);
    const unsigned bin = shared.bin;
    const unsigned inside = shared.inside;
    const unsigned left = wanted - shared.before;
    each_key(all, groups, [&](unsigned key) {
      if (even_bin(key, top, scale) != bin) return;
      if (inside <= 32) {
        shared.candidates[atomicAdd(&shared.count, 1U)] = key;
      } else {
        atomicMin(&shared.smallest, key);
        atomicMax(&shared.largest, key);
      }
    });
    __syncthreads();
    if (inside <= 32) return choose_candidate(shared.candidates, inside, left);
    if (shared.smallest == shared.largest) return {shared.smallest, left};
    empty_bins(shared.bins[0], thread, kSelectThreads);
  }
  __syncthreads();
  return choose_keys<true>(shared, Keys(all, 0, groups, groups), wanted);
}

/// Calls take(group, place) for every chosen key of the block; places ascend with the groups of the cluster, or of the
/// block alone.
template <bool kAlone, class Take>
__device__ __forceinline__ void emit_keys(SelectShared& shared, const Keys& keys, const Choice& choice, Take take) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  uint2 mine = make_uint2(0, 0);
#pragma unroll 2
  for (int i = 0; i < keys.each; ++i) {
    const bool has = keys.has(i);
    const unsigned key = has ? keys.key[32 * i] : 0;
    mine.x += static_cast<unsigned>(__popc(__ballot_sync(kAllLanes, has && key > choice.threshold)));
    mine.y += static_cast<unsigned>(__popc(__ballot_sync(kAllLanes, has && key == choice.threshold)));
  }
  if (lane == 0) shared.warp_totals[warp] = mine;
  __syncthreads();
  if (warp == 0) {
    const uint2 of_warp = lane < kSelectWarps ? shared.warp_totals[lane] : make_uint2(0, 0);
    const unsigned above = warp_prefix(of_warp.x, lane);
    const unsigned equal = warp_prefix(of_warp.y, lane);
    if (lane < kSelectWarps) shared.warp_totals[lane] = make_uint2(above - of_warp.x, equal - of_warp.y);
    const unsigned all_above = __shfl_sync(kAllLanes, above, 31);
    const unsigned all_equal = __shfl_sync(kAllLanes, equal, 31);
    if (!kAlone && lane < kCluster) {
      const unsigned to = remote(&shared.totals[cluster_rank()], lane);
      store_remote(to, all_above);
      store_remote(to + 4, all_equal);
    }
  }
  if constexpr (kAlone) {
    __syncthreads();
  } else {
    cluster_arrive();
    cluster_wait();
  }
  uint2 before = shared.warp_totals[warp];
#pragma unroll
  for (int r = 0; r < kCluster; ++r) {
    if (kAlone || r >= cluster_rank()) continue;
    before.x += shared.totals[r].x;
    before.y += shared.totals[r].y;
  }
  const unsigned lower = (1U << lane) - 1U;
#pragma unroll 1
  for (int i = 0; i < keys.each; ++i) {
    const bool has = keys.has(i);
    const unsigned key = has ? keys.key[32 * i] : 0;
    const bool is_above = has && key > choice.threshold;
    const bool is_equal = has && key == choice.threshold;
    const unsigned above = __ballot_sync(kAllLanes, is_above);
    const unsigned equal = __ballot_sync(kAllLanes, is_equal);
    const unsigned equals = before.y + static_cast<unsigned>(__popc(equal & lower));
    const unsigned place =
        before.x + static_cast<unsigned>(__popc(above & lower)) + (equals < choice.equals ? equals : choice.equals);
    if (is_above || (is_equal && equals < choice.equals)) take(keys.first + 32 * i, static_cast<int>(place));
    before.x += static_cast<unsigned>(__popc(above));
    before.y += static_cast<unsigned>(__popc(equal));
  }
}

}  // namespace lockstep::kernels::cuda
