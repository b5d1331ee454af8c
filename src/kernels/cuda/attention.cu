#include "kernels/cuda/attention.hpp"

#include "kernels/cuda/device.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kMaxRuns = 16;
constexpr int kPage = 64;
constexpr int kBlock = 64;  ///< attended positions of a block

struct StoreParams {
  AttentionRun runs[kMaxRuns];
  int count, first_row, rows;
  AttentionShape shape;
  AttentionWeightVectors weights;
  AttentionInput input;
  float *q, *index_q;
};

/// The run of `row` and the row's position.
struct RowPlace {
  const AttentionRun* run;
  std::int64_t position;
  int in_run;
};
template <class Params>
__device__ __forceinline__ RowPlace place_row(const Params& p, int row) {
  int r = 0;
  while (row >= p.runs[r].first_row + p.runs[r].rows) ++r;
  const int in_run = row - p.runs[r].first_row;
  return {&p.runs[r], *p.runs[r].position + in_run, in_run};
}

/// Norm and rotation of n values by one warp; `x` is read through `get` and the
/// result stays in `line`.
template <class Get>
__device__ __forceinline__ void norm_rope(const AttentionShape& s, Get get, const float* weight, int n,
                                          std::int64_t position, float* line, int lane) {
  float sum = 0.0F;
  for (int first = lane; first < n; first += 32 * 8) {
    float values[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) values[k] = first + 32 * k < n ? get(first + 32 * k) : 0.0F;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (first + 32 * k >= n) continue;
      line[first + 32 * k] = values[k];
      sum = canon_fma(values[k], values[k], sum);
    }
  }
  const float mean = fold_lanes(sum) / static_cast<float>(n);
  const float inverse = canon_rsqrt(mean + s.eps);
  for (int i = lane; i < n; i += 32) line[i] = (line[i] * inverse) * weight[i];
  __syncwarp();
  for (int i = lane; i < s.half; i += 32) {
    const float a = line[i];
    const float b = line[i + s.half];
    const float c = s.cos[position * s.half + i];
    const float d = s.sin[position * s.half + i];
    line[i] = canon_fma(a, c, -(b * d));
    line[i + s.half] = canon_fma(b, c, a * d);
  }
  __syncwarp();
}

__device__ __forceinline__ float rounded(const AttentionShape& s, float x) {
  return s.type == ElementType::F32 ? x : bf16_to_float(float_to_bf16(x));
}

/// One warp per vector of a row: query heads and index queries (when wanted),
/// key heads, and the pooled index key of a group that the row completes.
__global__ void store_kernel(StoreParams p) {
  trigger_next_grid();
  wait_previous_grid();
  extern __shared__ float lines[];
  const AttentionShape& s = p.shape;
  const int queries = p.q == nullptr ? 0 : s.heads;
  const int index_queries = p.q == nullptr ? 0 : s.index_heads;
  const int per_row = queries + index_queries + s.kv_heads + 1;
  const int item = warp_item();
  if (item >= p.rows * per_row) return;
  const int lane = lane_id();
  const int most = s.dim > s.index_dim ? s.dim : s.index_dim;
  float* line = lines + static_cast<int>(threadIdx.x) / 32 * most;
  const std::int64_t row = p.first_row + item / per_row;
  const RowPlace place = place_row(p, static_cast<int>(row));
  int kind = item % per_row;
  if (kind < queries) {
    const float* x = p.input.q_gate + (row * s.heads + kind) * 2 * s.dim;
    norm_rope(
        s, [x](int i) { return x[i]; }, p.weights.q_norm, s.dim, place.position, line, lane);
    float* out = p.q + (row * s.heads + kind) * s.dim;
    for (int i = lane; i < s.dim; i += 32) out[i] = line[i];
    return;
  }
  kind -= queries;
  if (kind < index_queries) {
    const float* x = p.input.index_qk + (row * (s.index_heads + 1) + kind) * s.index_dim;
    norm_rope(
        s, [x](int i) { return x[i]; }, p.weights.index_q_norm, s.index_dim, place.position, line, lane);
    float* out = p.index_q + (row * s.index_heads + kind) * s.index_dim;
    for (int i = lane; i < s.index_dim; i += 32) out[i] = line[i];
    return;
  }
  kind -= index_queries;
  std::byte* page = place.run->pages[place.position / kPage] + place.run->layer_offset;
  const std::int64_t in_page = place.position % kPage;
  if (kind < s.kv_heads) {
    const std::int64_t from = (row * s.kv_heads + kind) * s.dim;
    const std::int64_t to = (in_page * s.kv_heads + kind) * s.dim;
    const float* x = p.input.k + from;
    norm_rope(
        s, [x](int i) { return x[i]; }, p.weights.k_norm, s.dim, place.position, line, lane);
    for (int i = lane; i < s.dim; i += 32) {
      store_element(page + s.keys_offset, s.type, to + i, line[i]);
      store_element(page + s.values_offset, s.type, to + i, p.input.v[from + i]);
    }
    return;
  }
  if ((place.position + 1) % s.ratio != 0) return;
  // Raw keys of this call's rows come from the projection, older ones from the
  // ring.
  const std::int64_t first = place.position + 1 - s.ratio;
  const std::int64_t first_of_run = place.position - place.in_run;
  const auto raw = [&](std::int64_t position, int i) {
    if (position < first_of_run) return place.run->raw_keys[position % s.ring * s.index_dim + i];
    const std::int64_t from = place.run->first_row + (position - first_of_run);
    return rounded(s, p.input.index_qk[(from * (s.index_heads + 1) + s.index_heads) * s.index_dim + i]);
  };
  const auto mean = [&](int i) {
    float sum = raw(first, i);
    for (int r = 1; r < s.ratio; ++r) sum += raw(first + r, i);
    return sum / static_cast<float>(s.ratio);
  };
  norm_rope(s, mean, p.weights.index_k_norm, s.index_dim, first, line, lane);
  for (int i = lane; i < s.index_dim; i += 32) {
    store_element(page + s.index_offset, s.type, in_page / s.ratio * s.index_dim + i, line[i]);
  }
}

/// After store_kernel, which reads the ring: the newest raw keys of every run.
/// Blocks are places of the ring and runs.
__global__ void ring_kernel(StoreParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const AttentionShape& s = p.shape;
  const AttentionRun& run = p.runs[blockIdx.y];
  const int back = static_cast<int>(blockIdx.x);  // 0 is the newest row
  if (back >= run.rows) return;
  const std::int64_t in_run = run.rows - 1 - back;
  const std::int64_t position = *run.position + in_run;
  const std::int64_t row = run.first_row + in_run;
  for (int i = static_cast<int>(threadIdx.x); i < s.index_dim; i += static_cast<int>(blockDim.x)) {
    run.raw_keys[position % s.ring * s.index_dim + i] =
        rounded(s, p.input.index_qk[(row * (s.index_heads + 1) + s.index_heads) * s.index_dim + i]);
  }
}

struct AttendParams {
  AttentionRun runs[kMaxRuns];
  int count, first_row, rows;  ///< rows of this piece
  AttentionShape shape;
  const float *q, *index_q, *q_gate;
  AttentionScratch scratch;
  float* out;
};

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

__device__ __forceinline__ unsigned ordered_bits(float value) {
  const unsigned bits = float_bits(value + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

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

constexpr int kAttendThreads = 256;
constexpr int kKeysPerWarp = kBlock / (kAttendThreads / 32);
constexpr int kFewHeads = 4;  ///< query heads of a block
constexpr int kManyHeads = 12;
constexpr int kWideDim = 256;  ///< of the kernel for many heads
constexpr int kWideRows = 8;

/// One block of attended positions for up to kHeads query heads, a multiple of
/// four, of one key head. Grid: x blocks, y parts of the heads, z rows. The
/// partial result is [dim] values, maximum, sum. kDim: the dimension, or 0 for
/// any.
template <bool kStaged, int kHeads, int kDim>
__global__ void __launch_bounds__(kAttendThreads, 2) attend_kernel(AttendParams p) {
  extern __shared__ float4 storage[];  // queries [kHeads, dim]; staged:
                                       // keys and values [kBlock, dim] in bf16
  trigger_next_grid();
  wait_previous_grid();
  auto* query = reinterpret_cast<float*>(storage);
  __shared__ float scores[kHeads][kBlock];
  __shared__ float4 shares[kBlock][kHeads / 4];  // of a key in the sums: those of four heads lie together
  __shared__ const std::byte* rows[kBlock];
  const AttentionShape& s = p.shape;
  const int dim = kDim != 0 ? kDim : s.dim;
  const int count = p.scratch.counts[blockIdx.z];
  const int begin = static_cast<int>(blockIdx.x) * kBlock;
  if (begin >= count) return;
  const int size = count - begin < kBlock ? count - begin : kBlock;
  const int shared = s.heads / s.kv_heads;
  const int parts = (shared + kHeads - 1) / kHeads;
  const int kv_head = static_cast<int>(blockIdx.y) / parts;
  const int head0 = kv_head * shared + static_cast<int>(blockIdx.y) % parts * kHeads;
  const int left = (kv_head + 1) * shared - head0;
  const int heads = left < kHeads ? left : kHeads;
  const int row = p.first_row + static_cast<int>(blockIdx.z);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const RowPlace place = place_row(p, row);
  const std::int32_t* positions = p.scratch.positions + static_cast<std::int64_t>(blockIdx.z) * s.width() + begin;
  if (thread < kBlock) {
    const std::int64_t position = positions[thread < size ? thread : 0];
    const std::int64_t at = (position % kPage * s.kv_heads + kv_head) * dim;
    rows[thread] =
        place.run->pages[position / kPage] + place.run->layer_offset + at * (s.type == ElementType::F32 ? 4 : 2);
  }
  auto* staged_keys = reinterpret_cast<std::uint16_t*>(query + kHeads * dim);
  auto* staged_values = staged_keys + kBlock * dim;
  if constexpr (kStaged) {
    __syncthreads();
    const int pieces = dim / 8;  // of 16 bytes
    for (int i = thread; i < size * pieces; i += kAttendThreads) {
      copy_soon(staged_keys + i * 8, rows[i / pieces] + s.keys_offset + i % pieces * 16);
    }
    copies_made();
    for (int i = thread; i < size * pieces; i += kAttendThreads) {
      copy_soon(staged_values + i * 8, rows[i / pieces] + s.values_offset + i % pieces * 16);
    }
    copies_made();
  }
  for (int i = thread; i < kHeads * dim; i += kAttendThreads) {
    query[i] = i < heads * dim ? p.q[(static_cast<std::int64_t>(row) * s.heads + head0) * dim + i] : 0.0F;
  }
  if constexpr (kStaged) wait_copies<1>();
  __syncthreads();
  const float scale = canon_rsqrt(static_cast<float>(dim));
  {
    float sums[kHeads / 4][32];  // of four heads: [key of the warp][head]
#pragma unroll
    for (int f = 0; f < kHeads / 4; ++f) {
#pragma unroll
      for (int i = 0; i < 32; ++i) sums[f][i] = 0.0F;
    }
#pragma unroll(kHeads == kFewHeads ? 4 : 1)
    for (int i = lane; i < dim; i += 32) {
      float q[kHeads];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) q[h] = query[h * dim + i];
#pragma unroll
      for (int j = 0; j < kKeysPerWarp; ++j) {
        const int k = warp * kKeysPerWarp + j;
        const float key =
            kStaged ? bf16_to_float(staged_keys[k * dim + i]) : load_element(rows[k] + s.keys_offset, s.type, i);
#pragma unroll
        for (int h = 0; h < kHeads; ++h) sums[h / 4][j * 4 + h % 4] = canon_fma(q[h], key, sums[h / 4][j * 4 + h % 4]);
      }
    }
#pragma unroll
    for (int f = 0; f < kHeads / 4; ++f) {
      const float dot = fold_transposed(sums[f], lane);
      scores[4 * f + lane % 4][warp * kKeysPerWarp + lane / 4] = dot * scale;
    }
  }
  __syncthreads();
  const int blocks = s.blocks();
  const auto partial = [&](int h) {
    const std::int64_t at = (static_cast<std::int64_t>(blockIdx.z) * s.heads + head0 + h) * blocks + blockIdx.x;
    return p.scratch.partial + at * (dim + 2);
  };
  for (int h = warp; h < heads; h += kAttendThreads / 32) {
    const bool has0 = lane < size;
    const bool has1 = lane + 32 < size;
    const float s0 = scores[h][has0 ? lane : 0];
    const float s1 = scores[h][has1 ? lane + 32 : 0];
    float maximum = s1 > s0 ? s1 : s0;
#pragma unroll
    for (int width = 16; width > 0; width /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, maximum, width);
      maximum = other > maximum ? other : maximum;
    }
    const float p0 = has0 ? canon_exp(s0 - maximum) : 0.0F;
    const float p1 = has1 ? canon_exp(s1 - maximum) : 0.0F;
    reinterpret_cast<float*>(shares[lane])[h] = p0;
    reinterpret_cast<float*>(shares[lane + 32])[h] = p1;
    const float sum = fold_lanes(p0 + p1);
    if (lane == 0) {
      partial(h)[dim] = maximum;
      partial(h)[dim + 1] = sum;
    }
  }
  if constexpr (kStaged) wait_copies<0>();
  __syncthreads();
  for (int d = thread; d < dim; d += kAttendThreads) {
    float out[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) out[h] = 0.0F;
#pragma unroll 4
    for (int j = 0; j < size; ++j) {
      const float value =
          kStaged ? bf16_to_float(staged_values[j * dim + d]) : load_element(rows[j] + s.values_offset, s.type, d);
#pragma unroll
      for (int f = 0; f < kHeads / 4; ++f) {
        const float4 four = shares[j][f];
        out[4 * f] = canon_fma(four.x, value, out[4 * f]);
        out[4 * f + 1] = canon_fma(four.y, value, out[4 * f + 1]);
        out[4 * f + 2] = canon_fma(four.z, value, out[4 * f + 2]);
        out[4 * f + 3] = canon_fma(four.w, value, out[4 * f + 3]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (h < heads) partial(h)[d] = out[h];
    }
  }
}

constexpr int kMergeAhead = 16;

/// Merges the blocks of one row and head in ascending order, divides and gates.
/// Grid: x heads, y rows.
__global__ void __launch_bounds__(kAttendThreads) merge_kernel(AttendParams p) {
  trigger_next_grid();
  wait_previous_grid();
  extern __shared__ float factors[];  // [blocks] old, [blocks] new, [blocks] sums; then the total
  const AttentionShape& s = p.shape;
  const int count = p.scratch.counts[blockIdx.y];
  const int blocks = (count + kBlock - 1) / kBlock;
  const int head = static_cast<int>(blockIdx.x);
  const std::int64_t row = p.first_row + static_cast<int>(blockIdx.y);
  const std::int64_t stride = s.dim + 2;
  const float* partial =
      p.scratch.partial + (static_cast<std::int64_t>(blockIdx.y) * s.heads + head) * s.blocks() * stride;
  float* new_factors = factors + s.blocks();
  float* sums = new_factors + s.blocks();
  float* total = sums + s.blocks();
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < 32) {
    // Running maxima are prefix maxima; the factors then need no order.
    float carried = 0.0F;
    for (int base = 0; base < blocks; base += 32) {
      const int b = base + thread;
      const float mine = partial[(b < blocks ? b : base) * stride + s.dim];
      float top = mine;
      for (int width = 1; width < 32; width *= 2) {
        const float other = __shfl_up_sync(kAllLanes, top, static_cast<unsigned>(width));
        if (thread >= width) top = top > other ? top : other;
      }
      if (base > 0) top = top > carried ? top : carried;
      float before = __shfl_up_sync(kAllLanes, top, 1U);
      if (thread == 0) before = carried;
      if (b < blocks && b > 0) {
        factors[b] = canon_exp(before - top);
        new_factors[b] = canon_exp(mine - top);
      }
      carried = __shfl_sync(kAllLanes, top, 31);
    }
    for (int b = thread; b < blocks; b += 32) sums[b] = partial[b * stride + s.dim + 1];
    __syncwarp();
    if (thread == 0) {
      float sum = sums[0];
      for (int b = 1; b < blocks; ++b) sum = canon_fma(sum, factors[b], sums[b] * new_factors[b]);
      *total = sum;
    }
  }
  __syncthreads();
  const float sum = *total;
  for (int d = thread; d < s.dim; d += static_cast<int>(blockDim.x)) {
    float out = partial[d];
    for (int first = 1; first < blocks; first += kMergeAhead) {
      float values[kMergeAhead];
#pragma unroll
      for (int k = 0; k < kMergeAhead; ++k) values[k] = first + k < blocks ? partial[(first + k) * stride + d] : 0.0F;
#pragma unroll
      for (int k = 0; k < kMergeAhead; ++k) {
        if (first + k < blocks) out = canon_fma(out, factors[first + k], values[k] * new_factors[first + k]);
      }
    }
    out = out / sum;
    const float gate = p.q_gate[((row * s.heads + head) * 2 + 1) * s.dim + d];
    p.out[(row * s.heads + head) * s.dim + d] = out * canon_sigmoid(gate);
  }
}

/// The next runs that fit one launch; the remaining ones stay in `runs`.
template <class Params>
void take_runs(std::span<const AttentionRun>& runs, Params& p) {
  p.count = 0;
  for (const AttentionRun& run : runs.first(runs.size() < kMaxRuns ? runs.size() : kMaxRuns)) p.runs[p.count++] = run;
  runs = runs.subspan(static_cast<std::size_t>(p.count));
  p.first_row = p.runs[0].first_row;
  p.rows = p.runs[p.count - 1].first_row + p.runs[p.count - 1].rows - p.first_row;
}

void attend_piece(Queue& queue, const AttendParams& p) {
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
  const int shared = s.heads / s.kv_heads;
  const bool staged = s.type == ElementType::BF16 && s.dim % 8 == 0 && s.dim <= 256;
  // With many rows a block of positions is read once for all heads of a key head; with few, more blocks share the work.
  const bool wide = staged && p.rows >= kWideRows && shared > kFewHeads && s.dim == kWideDim;
  const int heads = wide ? kManyHeads : kFewHeads;
  const auto parts = static_cast<unsigned>(s.kv_heads * ((shared + heads - 1) / heads));
  const int line = heads * 4 + (staged ? 2 * kBlock * 2 : 0);  // bytes per dimension
  void (*kernel)(AttendParams) = wide     ? attend_kernel<true, kManyHeads, kWideDim>
                                 : staged ? attend_kernel<true, kFewHeads, 0>
                                          : attend_kernel<false, kFewHeads, 0>;
  launch(queue, kernel, {static_cast<unsigned>(s.blocks()), parts, rows}, {kAttendThreads, 1, 1},
         static_cast<std::size_t>(line * s.dim), p);
  launch(queue, merge_kernel, {static_cast<unsigned>(s.heads), rows, 1}, {kAttendThreads, 1, 1},
         static_cast<std::size_t>(3 * s.blocks() + 1) * sizeof(float), p);
}

}  // namespace

void store_keys(Queue& queue, std::span<const AttentionRun> runs, const AttentionShape& shape,
                const AttentionWeightVectors& weights, const AttentionInput& input, float* q, float* index_q) {
  while (!runs.empty()) {
    StoreParams p{};
    take_runs(runs, p);
    p.shape = shape;
    p.weights = weights;
    p.input = input;
    p.q = q;
    p.index_q = index_q;
    const int per_row = shape.kv_heads + 1 + (q == nullptr ? 0 : shape.heads + shape.index_heads);
    const int line = shape.dim > shape.index_dim ? shape.dim : shape.index_dim;
    launch_warps(queue, store_kernel, static_cast<std::int64_t>(p.rows) * per_row, p,
                 static_cast<std::size_t>(kWarps * line) * sizeof(float));
    launch(queue, ring_kernel, {static_cast<unsigned>(shape.ring), static_cast<unsigned>(p.count), 1}, {128, 1, 1}, 0,
           p);
  }
}

void attend(Queue& queue, std::span<const AttentionRun> runs, const AttentionShape& shape, const float* q,
            const float* index_q, const float* q_gate, const AttentionScratch& scratch, float* out) {
  while (!runs.empty()) {
    AttendParams p{};
    take_runs(runs, p);
    p.shape = shape;
    p.q = q;
    p.index_q = index_q;
    p.q_gate = q_gate;
    p.scratch = scratch;
    p.out = out;
    const int end = p.first_row + p.rows;
    for (int first = p.first_row; first < end; first += static_cast<int>(scratch.rows)) {
      p.first_row = first;
      p.rows = end - first < scratch.rows ? end - first : static_cast<int>(scratch.rows);
      attend_piece(queue, p);
    }
  }
}

}  // namespace lockstep::kernels::cuda
