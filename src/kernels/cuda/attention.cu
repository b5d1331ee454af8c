// Attention over the chosen positions on CUDA: blocks of positions, then their merge.
#include <algorithm>

#include "kernels/cuda/attention_store.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kAttendThreads = 256;
constexpr int kKeysPerWarp = kBlock / (kAttendThreads / 32);
constexpr int kFewHeads = 4;  ///< query heads of a block
constexpr int kManyHeads = 12;
constexpr int kWideDim = 256;  ///< of the kernel for many heads
constexpr int kWideRows = 8;

/// Where the partial results of a row's heads from `head` on lie: values [heads, blocks, dim], then, after those of all
/// rows, maxima [heads, blocks] and sums.
struct Partial {
  float *values, *maxima, *sums;
  __device__ __forceinline__ Partial(const AttendParams& p, int row, int head) {
    const AttentionShape& s = p.shape;
    const std::int64_t all = p.scratch.rows * s.heads * s.blocks();
    const std::int64_t first = (static_cast<std::int64_t>(row) * s.heads + head) * s.blocks();
    values = p.scratch.partial + first * s.dim;
    maxima = p.scratch.partial + all * s.dim + first;
    sums = maxima + all;
  }
};

/// One block of attended positions for up to kHeads query heads, a multiple of
/// four, of one key head. Grid: x blocks, y parts of the heads, z rows. kDim: the dimension, or 0 for
/// any, staged a multiple of eight.
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
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int begin = static_cast<int>(blockIdx.x) * kBlock;
  const int row = p.first_row + static_cast<int>(blockIdx.z);
  const int shared = s.heads / s.kv_heads;
  const int parts = (shared + kHeads - 1) / kHeads;
  const int kv_head = static_cast<int>(blockIdx.y) / parts;
  const int head0 = kv_head * shared + static_cast<int>(blockIdx.y) % parts * kHeads;
  const int left = (kv_head + 1) * shared - head0;
  const int heads = left < kHeads ? left : kHeads;
  const RowPlace place = place_row(p, row);
  // What the list has is asked for before it is known whether there is one.
  const int place_in_list = begin + thread % kBlock < s.width() ? begin + thread % kBlock : s.width() - 1;
  const int listed = p.scratch.positions[static_cast<std::int64_t>(blockIdx.z) * s.width() + place_in_list];
  const float* queries = p.q + (static_cast<std::int64_t>(row) * s.heads + head0) * dim;
  if constexpr (kStaged) {
    for (int i = thread; i < kHeads * dim / 4; i += kAttendThreads) {
      if (i < heads * dim / 4) {
        copy_soon(query + 4 * i, queries + 4 * i);
      } else {
        storage[i] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
      }
    }
  } else {
    for (int i = thread; i < kHeads * dim; i += kAttendThreads) query[i] = i < heads * dim ? queries[i] : 0.0F;
  }
  bool chosen = false;
  const int count = attended(s, place.position, chosen);
  if (begin >= count) {
    wait_copies<0>();
    return;
  }
  const int size = count - begin < kBlock ? count - begin : kBlock;
  if (thread < kBlock) {
    const int position = chosen ? listed : begin + thread;
    const int there = thread < size ? position : begin;  // of an entry that is not used
    const std::int64_t at = (static_cast<std::int64_t>(there % kPage) * s.kv_heads + kv_head) * dim;
    rows[thread] =
        place.run->pages[there / kPage] + place.run->layer_offset + at * (s.type == ElementType::F32 ? 4 : 2);
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
    wait_copies<1>();
  }
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
  const Partial partial(p, static_cast<int>(blockIdx.z), head0);
  for (int h = warp; h < heads; h += kAttendThreads / 32) {
    const bool has0 = lane < size;
    const bool has1 = lane + 32 < size;
    const float s0 = scores[h][has0 ? lane : 0];
    const float s1 = scores[h][has1 ? lane + 32 : 0];
    const float maximum = warp_max(s1 > s0 ? s1 : s0);
    const float p0 = has0 ? canon_exp(s0 - maximum) : 0.0F;
    const float p1 = has1 ? canon_exp(s1 - maximum) : 0.0F;
    reinterpret_cast<float*>(shares[lane])[h] = p0;
    reinterpret_cast<float*>(shares[lane + 32])[h] = p1;
    const float sum = fold_lanes(p0 + p1);
    if (lane == 0) {
      partial.maxima[h * s.blocks() + blockIdx.x] = maximum;
      partial.sums[h * s.blocks() + blockIdx.x] = sum;
    }
  }
  if constexpr (kStaged) wait_copies<0>();
  __syncthreads();
  if constexpr (kStaged && kDim == kAttendThreads && kHeads == kFewHeads) {
    // Two dimensions a thread: shared memory has more to do here than the arithmetic.
    if (thread >= kDim / 2) return;
    float out[kHeads][2];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) out[h][0] = out[h][1] = 0.0F;
#pragma unroll 4
    for (int j = 0; j < size; ++j) {
      const unsigned two = *reinterpret_cast<const unsigned*>(staged_values + j * kDim + 2 * thread);
      const float low = bits_float(two << 16);
      const float high = bits_float(two & 0xffff0000U);
      const float4 four = shares[j][0];
      const float share[kHeads] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        out[h][0] = canon_fma(share[h], low, out[h][0]);
        out[h][1] = canon_fma(share[h], high, out[h][1]);
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float* to = partial.values + (h * s.blocks() + static_cast<std::int64_t>(blockIdx.x)) * kDim + 2 * thread;
      if (h < heads) *reinterpret_cast<float2*>(to) = make_float2(out[h][0], out[h][1]);
    }
  } else {
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
        if (h < heads) partial.values[(h * s.blocks() + static_cast<std::int64_t>(blockIdx.x)) * dim + d] = out[h];
      }
    }
  }
}

constexpr int kMergeThreads = 128;  ///< dimensions of a block
constexpr int kMergeAhead = 64;     ///< blocks of attended positions whose values are under way together

/// How a block of positions merges with those before it.
struct Factors {
  float old_factor, new_factor, sum, unused;  ///< sum: the block's own, times the new factor
};

/// Factors of all blocks of a head, by one warp, of which a lane has two neighbouring ones: running maxima are prefix
/// maxima, so the factors need no order. `most` blocks may be read, `blocks` of them exist.
__device__ __forceinline__ void merge_factors(Factors* factors, const Partial& partial, int blocks, int most,
                                              int lane) {
  float carried = 0.0F;
#pragma unroll 1
  for (int base = 0; base < blocks; base += 64) {
    float mine[2];
    float sums[2];
    float before[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int b = base + 2 * lane + k < most ? base + 2 * lane + k : most - 1;
      mine[k] = partial.maxima[b];
      sums[k] = partial.sums[b];
    }
    float top = mine[1] > mine[0] ? mine[1] : mine[0];
#pragma unroll
    for (int width = 1; width < 32; width *= 2) {
      const float other = __shfl_up_sync(kAllLanes, top, static_cast<unsigned>(width));
      if (lane >= width) top = top > other ? top : other;
    }
    if (base > 0) top = top > carried ? top : carried;
    before[0] = __shfl_up_sync(kAllLanes, top, 1U);
    if (lane == 0) before[0] = carried;
    before[1] = base + lane == 0 || mine[0] > before[0] ? mine[0] : before[0];
    carried = __shfl_sync(kAllLanes, top, 31);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int b = base + 2 * lane + k;
      const float now = b == 0 || mine[k] > before[k] ? mine[k] : before[k];
      const float old_factor = canon_exp(before[k] - now);
      const float new_factor = canon_exp(mine[k] - now);
      if (b == 0) {
        factors[0] = {0.0F, 1.0F, sums[0], 0.0F};
      } else if (b < blocks) {
        factors[b] = {old_factor, new_factor, sums[k] * new_factor, 0.0F};
      }
    }
  }
}

/// Merges the blocks of one row and head in ascending order, divides and gates. Everything is asked for at once, needed
/// or not. Grid: x heads, y rows, z parts of the dimensions.
__global__ void __launch_bounds__(kMergeThreads) merge_kernel(AttendParams p) {
  extern __shared__ float4 merge_storage[];  // factors of all blocks, then values [up to kMergeAhead][kMergeThreads]
  trigger_next_grid();
  wait_previous_grid();
  const AttentionShape& s = p.shape;
  const int thread = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.x);
  const int row = p.first_row + static_cast<int>(blockIdx.y);
  const int d = static_cast<int>(blockIdx.z) * kMergeThreads + thread;
  const bool live = d < s.dim;
  const RowPlace place = place_row(p, row);
  const Partial partial(p, static_cast<int>(blockIdx.y), head);
  const int most = s.blocks();
  float* values = reinterpret_cast<float*>(merge_storage + most);
  const float* from = partial.values + static_cast<int>(blockIdx.z) * kMergeThreads;
  const int width = s.dim - static_cast<int>(blockIdx.z) * kMergeThreads;  // dimensions from the block's first one on
  const auto fetch = [&](int first, int count) {
    if (s.dim % 4 == 0) {
      const int column = thread % 32 * 4;
#pragma unroll 1
      for (int k = thread / 32; k < count && column < width; k += kMergeThreads / 32) {
        copy_soon(values + k * kMergeThreads + column, from + (first + k) * s.dim + column);
      }
    } else {
#pragma unroll 1
      for (int k = 0; k < count && live; ++k) {
        copy_four_soon(values + k * kMergeThreads + thread, from + (first + k) * s.dim + thread);
      }
    }
    copies_made();
  };
  fetch(0, most < kMergeAhead ? most : kMergeAhead);
  const std::int64_t line = static_cast<std::int64_t>(row) * s.heads + head;
  const float gate = p.q_gate[(line * 2 + 1) * s.dim + (live ? d : 0)];
  bool chosen = false;
  const int blocks = (attended(s, place.position, chosen) + kBlock - 1) / kBlock;
  if (thread < 32) merge_factors(reinterpret_cast<Factors*>(merge_storage), partial, blocks, most, thread);
  wait_copies<0>();
  __syncthreads();
  float out = values[thread];
  float total = merge_storage[0].z;
#pragma unroll 1
  for (int first = 0; first < blocks; first += kMergeAhead) {
    const int left = blocks - first < kMergeAhead ? blocks - first : kMergeAhead;
    if (first > 0) {
      __syncthreads();
      fetch(first, left);
      wait_copies<0>();
      __syncthreads();
    }
#pragma unroll 4
    for (int k = first == 0 ? 1 : 0; k < left; ++k) {
      const float4 f = merge_storage[first + k];
      out = canon_fma(out, f.x, values[k * kMergeThreads + thread] * f.y);
      total = canon_fma(total, f.x, f.z);
    }
  }
  if (live) p.out[line * s.dim + d] = out / total * canon_sigmoid(gate);
}

/// Attention of the piece; `chosen`: the lists of positions are made.
void attend_piece(Queue& queue, const AttendParams& p, bool chosen) {
  const AttentionShape& s = p.shape;
  const auto rows = static_cast<unsigned>(p.rows);
  if (attend_rows_takes(p)) {
    choose_positions(queue, p);
    attend_rows(queue, p);
    return;
  }
  if (!chosen && p.scratch.most_groups > s.budget) choose_positions(queue, p);
  const int shared = s.heads / s.kv_heads;
  const bool staged = s.type == ElementType::BF16 && s.dim % 8 == 0 && s.dim <= 256;
  // With many rows a block of positions is read once for all heads of a key head; with few, more blocks share the work.
  const bool wide = staged && p.rows >= kWideRows && shared > kFewHeads && s.dim == kWideDim;
  const int heads = wide ? kManyHeads : kFewHeads;
  const auto parts = static_cast<unsigned>(s.kv_heads * ((shared + heads - 1) / heads));
  const int line = heads * 4 + (staged ? 2 * kBlock * 2 : 0);  // bytes per dimension
  void (*kernel)(AttendParams) =
      wide     ? attend_kernel<true, kManyHeads, kWideDim>
      : staged ? (s.dim == kWideDim ? attend_kernel<true, kFewHeads, kWideDim> : attend_kernel<true, kFewHeads, 0>)
               : attend_kernel<false, kFewHeads, 0>;
  launch(queue, kernel, {static_cast<unsigned>(s.blocks()), parts, rows}, {kAttendThreads, 1, 1},
         static_cast<std::size_t>(line * s.dim), p);
  launch(queue, merge_kernel, {static_cast<unsigned>(s.heads), rows, blocks_for(s.dim, kMergeThreads)},
         {kMergeThreads, 1, 1},
         static_cast<std::size_t>(s.blocks()) * sizeof(Factors) +
             static_cast<std::size_t>(std::min(s.blocks(), kMergeAhead) * kMergeThreads) * sizeof(float),
         p);
}

/// Scratch of attend_rows(), which has no partial results: their memory takes what is listed of each row. More rows at
/// once leave fewer multiprocessors idle at the end of a launch.
AttentionScratch rows_scratch(const AttentionScratch& scratch, const AttentionShape& s) {
  const std::int64_t listed = scratch.most_groups > s.budget ? scratch.most_groups : 0;
  AttentionScratch rows = scratch;
  rows.rows = scratch.rows * s.heads * s.blocks() * (s.dim + 2) / (listed + s.width() + 1);
  if (rows.rows < scratch.rows) return scratch;
  rows.scores = scratch.partial;
  rows.positions = reinterpret_cast<std::int32_t*>(rows.scores + rows.rows * listed);
  rows.counts = rows.positions + rows.rows * s.width();
  return rows;
}

}  // namespace

void attend(Queue& queue, std::span<const AttentionRun> runs, const AttentionShape& shape,
            const AttentionWeightVectors& weights, const AttentionInput& input, float* q, float* index_q,
            const AttentionScratch& scratch, float* out) {
  std::span<const AttentionRun> left = runs;
  const StoreParams store = take_store(left, shape, weights, input, q, index_q);
  const bool chosen = left.empty() && choose_fused(queue, store, scratch);
  if (!chosen) store_keys(queue, runs, shape, weights, input, q, index_q);
  while (!runs.empty()) {
    AttendParams p{};
    take_runs(runs, p);
    p.shape = shape;
    p.q = q;
    p.index_q = index_q;
    p.q_gate = input.q_gate;
    p.scratch = scratch;
    p.out = out;
    const int end = p.first_row + p.rows;
    while (p.first_row < end) {
      const auto take = [&](const AttentionScratch& from) {
        p.scratch = from;
        p.rows = end - p.first_row < from.rows ? end - p.first_row : static_cast<int>(from.rows);
      };
      take(rows_scratch(scratch, shape));
      if (!attend_rows_takes(p)) take(scratch);
      attend_piece(queue, p, chosen);
      p.first_row += p.rows;
    }
  }
}

}  // namespace lockstep::kernels::cuda
