// The positions that a row attends to, on CUDA: scores of pooled index keys and their deterministic choice.
#include "kernels/cuda/attention.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kGroupsPerWarp = 8;
constexpr int kHeadsAtOnce = 4;

/// One warp per kGroupsPerWarp groups of a row, kHeadsAtOnce index heads at a
/// time. Blocks in y are rows.
__global__ void __launch_bounds__(32 * kWarps) score_kernel(AttendParams p) {
  extern __shared__ float query[];  // [index_heads, rounded up to kHeadsAtOnce][index_dim]
  trigger_next_grid();
  wait_previous_grid();
  const AttentionShape& s = p.shape;
  const int row = p.first_row + static_cast<int>(blockIdx.y);
  const RowPlace place = place_row(p, row);
  const std::int64_t groups = (place.position + 1) / s.ratio;
  if (groups <= s.budget) return;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kWarps * kGroupsPerWarp;
  if (begin >= groups) return;
  const int size = s.index_heads * s.index_dim;
  const int padded = (s.index_heads + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce * s.index_dim;
  for (int i = static_cast<int>(threadIdx.x); i < padded; i += static_cast<int>(blockDim.x)) {
    query[i] = i < size ? p.index_q[static_cast<std::int64_t>(row) * size + i] : 0.0F;
  }
  __syncthreads();
  const int lane = lane_id();
  const float scale = canon_rsqrt(static_cast<float>(s.index_dim));
  const int per_page = kPage / s.ratio;
  const std::int64_t first = begin + static_cast<int>(threadIdx.x) / 32 * kGroupsPerWarp;
  if (first >= groups) return;
  const std::byte* keys[kGroupsPerWarp];
  std::int64_t at[kGroupsPerWarp];
#pragma unroll
  for (int j = 0; j < kGroupsPerWarp; ++j) {
    const std::int64_t g = first + j < groups ? first + j : groups - 1;
    keys[j] = place.run->pages[g / per_page] + place.run->layer_offset + s.index_offset;
    at[j] = g % per_page * s.index_dim;
  }
  float total = 0.0F;  // of group lane / kHeadsAtOnce
  for (int h0 = 0; h0 < s.index_heads; h0 += kHeadsAtOnce) {
    float sums[32];  // [group][head]
#pragma unroll
    for (int i = 0; i < 32; ++i) sums[i] = 0.0F;
    for (int i = lane; i < s.index_dim; i += 32) {
#pragma unroll
      for (int j = 0; j < kGroupsPerWarp; ++j) {
        const float key = load_element(keys[j], s.type, at[j] + i);
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h) {
          sums[j * kHeadsAtOnce + h] = canon_fma(query[(h0 + h) * s.index_dim + i], key, sums[j * kHeadsAtOnce + h]);
        }
      }
    }
    const float dot = fold_transposed(sums, lane);
    const float part = dot > 0.0F ? dot : dot * 0.0F;  // keeps NaN
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
      const float of_head = __shfl_sync(kAllLanes, part, lane / kHeadsAtOnce * kHeadsAtOnce + h);
      if (h0 + h < s.index_heads) total += of_head;
    }
  }
  const std::int64_t g = first + lane / kHeadsAtOnce;
  if (lane % kHeadsAtOnce == 0 && g < groups) {
    p.scratch.scores[static_cast<std::int64_t>(blockIdx.y) * p.scratch.most_groups + g] = total * scale;
  }
}

constexpr int kScoreRows = 16;  ///< of a block of score_rows_kernel
constexpr int kScoreHeads = 4;
constexpr int kScoreDim = 128;

/// score_kernel for many rows of kScoreHeads index heads of kScoreDim: a warp keeps the keys of its groups in registers
/// and goes through the rows. Blocks in y are kScoreRows rows.
__global__ void __launch_bounds__(32 * kWarps) score_rows_kernel(AttendParams p) {
  __shared__ float query[kScoreRows][kScoreHeads * kScoreDim];
  trigger_next_grid();
  wait_previous_grid();
  const AttentionShape& s = p.shape;
  const int in_piece = static_cast<int>(blockIdx.y) * kScoreRows;
  const int rows = p.rows - in_piece < kScoreRows ? p.rows - in_piece : kScoreRows;
  const float* from = p.index_q + static_cast<std::int64_t>(p.first_row + in_piece) * (kScoreHeads * kScoreDim);
  for (int i = static_cast<int>(threadIdx.x); i < rows * kScoreHeads * kScoreDim; i += static_cast<int>(blockDim.x)) {
    query[i / (kScoreHeads * kScoreDim)][i % (kScoreHeads * kScoreDim)] = from[i];
  }
  __syncthreads();
  const int lane = lane_id();
  const float scale = canon_rsqrt(static_cast<float>(kScoreDim));
  const int per_page = kPage / s.ratio;
  const std::int64_t first =
      (static_cast<std::int64_t>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32) * kGroupsPerWarp;
  float keys[kGroupsPerWarp][kScoreDim / 32];
  int loaded = -1;  // run of the keys
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    int r = 0;
    while (p.first_row + in_piece + row >= p.runs[r].first_row + p.runs[r].rows) ++r;
    const std::int64_t run_start = *p.runs[r].position;
    const std::int64_t groups = (run_start + p.first_row + in_piece + row - p.runs[r].first_row + 1) / s.ratio;
    if (groups <= s.budget || first >= groups) continue;
    if (r != loaded) {
      loaded = r;
      // Groups that only later rows have exist as well.
      const std::int64_t last = (run_start + p.runs[r].rows) / s.ratio - 1;
#pragma unroll
      for (int j = 0; j < kGroupsPerWarp; ++j) {
        const std::int64_t g = first + j < last ? first + j : last;
        const std::byte* page = p.runs[r].pages[g / per_page] + p.runs[r].layer_offset + s.index_offset;
#pragma unroll
        for (int i = 0; i < kScoreDim / 32; ++i) {
          keys[j][i] = load_element(page, s.type, g % per_page * kScoreDim + 32 * i + lane);
        }
      }
    }
    float sums[32];  // [group][head]
#pragma unroll
    for (int i = 0; i < 32; ++i) sums[i] = 0.0F;
#pragma unroll
    for (int i = 0; i < kScoreDim / 32; ++i) {
#pragma unroll
      for (int h = 0; h < kScoreHeads; ++h) {
        const float q = query[row][h * kScoreDim + 32 * i + lane];
#pragma unroll
        for (int j = 0; j < kGroupsPerWarp; ++j) {
          sums[j * kScoreHeads + h] = canon_fma(q, keys[j][i], sums[j * kScoreHeads + h]);
        }
      }
    }
    const float dot = fold_transposed(sums, lane);
    const float part = dot > 0.0F ? dot : dot * 0.0F;  // keeps NaN
    float total = 0.0F;                                // of group lane / kScoreHeads
#pragma unroll
    for (int h = 0; h < kScoreHeads; ++h) {
      total += __shfl_sync(kAllLanes, part, lane / kScoreHeads * kScoreHeads + h);
    }
    const std::int64_t g = first + lane / kScoreHeads;
    if (lane % kScoreHeads == 0 && g < groups) {
      p.scratch.scores[(in_piece + row) * p.scratch.most_groups + g] = total * scale;
    }
  }
}

constexpr int kSelectThreads = 1024;

/// Exclusive prefix sum over the block; `total` receives the sum.
__device__ int block_prefix(int value, int* warp_sums, int& total) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  int inclusive = value;
  for (int width = 1; width < 32; width *= 2) {
    const int other = __shfl_up_sync(kAllLanes, inclusive, static_cast<unsigned>(width));
    if (lane >= width) inclusive += other;
  }
  __syncthreads();
  if (lane == 31) warp_sums[thread / 32] = inclusive;
  __syncthreads();
  if (thread < 32) {
    const int mine = warp_sums[lane];
    int sum = mine;
    for (int width = 1; width < 32; width *= 2) {
      const int other = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(width));
      if (lane >= width) sum += other;
    }
    warp_sums[lane] = sum - mine;
    if (lane == 31) warp_sums[32] = sum;
  }
  __syncthreads();
  total = warp_sums[32];
  return warp_sums[thread / 32] + inclusive - value;
}

/// The attended positions of a row in ascending order. The budget-th largest
/// score is found digit by digit; of equal scores the lowest groups are taken.
/// One block per row.
__global__ void __launch_bounds__(kSelectThreads) select_kernel(AttendParams p) {
  trigger_next_grid();
  wait_previous_grid();
  __shared__ int histogram[256];
  __shared__ int warp_sums[33];
  __shared__ unsigned prefix;
  __shared__ int wanted;
  const AttentionShape& s = p.shape;
  const int thread = static_cast<int>(threadIdx.x);
  const RowPlace place = place_row(p, p.first_row + static_cast<int>(blockIdx.x));
  const std::int64_t groups = (place.position + 1) / s.ratio;
  const auto tail = static_cast<int>(place.position + 1 - groups * s.ratio);
  std::int32_t* list = p.scratch.positions + static_cast<std::int64_t>(blockIdx.x) * s.width();
  const float* scores = p.scratch.scores + static_cast<std::int64_t>(blockIdx.x) * p.scratch.most_groups;
  int taken = 0;
  if (groups <= s.budget) {
    taken = static_cast<int>(groups * s.ratio);
    for (int i = thread; i < taken; i += kSelectThreads) list[i] = i;
  } else {
    if (thread == 0) {
      prefix = 0;
      wanted = s.budget;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
      for (int i = thread; i < 256; i += kSelectThreads) histogram[i] = 0;
      __syncthreads();
      const unsigned high = prefix;
      // Scores resemble each other: equal digits of a warp are counted
      // together.
      for (std::int64_t base = 0; base < groups; base += kSelectThreads) {
        const std::int64_t g = base + thread;
        const unsigned key = g < groups ? ordered_bits(scores[g]) : 0;
        const bool counts = g < groups && (shift == 24 || key >> (shift + 8) == high);
        const unsigned digit = counts ? key >> shift & 255U : 256U;
        const unsigned same = __match_any_sync(kAllLanes, digit);
        if (counts && (same & ((1U << (thread % 32)) - 1U)) == 0) atomicAdd(histogram + digit, __popc(same));
      }
      __syncthreads();
      if (thread == 0) {
        int digit = 255;
        int left = wanted;
        while (histogram[digit] < left) left -= histogram[digit--];
        wanted = left;
        prefix = high << 8 | static_cast<unsigned>(digit);
      }
      __syncthreads();
    }
    // All groups above the threshold, and the first `wanted` of those equal to
    // it.
    const unsigned threshold = prefix;
    const int equal_wanted = wanted;
    int equal_before = 0;
    for (std::int64_t base = 0; base < groups; base += kSelectThreads) {
      const std::int64_t g = base + thread;
      const unsigned key = g < groups ? ordered_bits(scores[g]) : 0;
      const bool equal = g < groups && key == threshold;
      int equals = 0;
      const int equal_rank = equal_before + block_prefix(equal ? 1 : 0, warp_sums, equals);
      const bool take = g < groups && (key > threshold || (equal && equal_rank < equal_wanted));
      int takes = 0;
      const int place_in = taken + block_prefix(take ? 1 : 0, warp_sums, takes) * s.ratio;
      if (take) {
        for (int i = 0; i < s.ratio; ++i) list[place_in + i] = static_cast<std::int32_t>(g * s.ratio + i);
      }
      equal_before += equals;
      taken += takes * s.ratio;
    }
  }
  if (thread < tail) list[taken + thread] = static_cast<std::int32_t>(groups * s.ratio + thread);
  if (thread == 0) p.scratch.counts[blockIdx.x] = taken + tail;
}

}  // namespace

void choose_positions(Queue& queue, const AttendParams& p) {
  const AttentionShape& s = p.shape;
  const auto rows = static_cast<unsigned>(p.rows);
  if (p.scratch.most_groups > s.budget && p.rows >= kScoreRows && s.index_heads == kScoreHeads &&
      s.index_dim == kScoreDim) {
    launch(queue, score_rows_kernel,
           {blocks_for(p.scratch.most_groups, kWarps * kGroupsPerWarp), blocks_for(p.rows, kScoreRows), 1},
           {32 * kWarps, 1, 1}, 0, p);
  } else if (p.scratch.most_groups > s.budget) {
    launch(queue, score_kernel, {blocks_for(p.scratch.most_groups, kWarps * kGroupsPerWarp), rows, 1},
           {32 * kWarps, 1, 1},
           static_cast<std::size_t>((s.index_heads + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce * s.index_dim) *
               sizeof(float),
           p);
  }
  launch(queue, select_kernel, {rows, 1, 1}, {kSelectThreads, 1, 1}, 0, p);
}

}  // namespace lockstep::kernels::cuda
