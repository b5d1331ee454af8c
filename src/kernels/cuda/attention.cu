// Attention over the chosen positions on CUDA: blocks of positions, then their merge.
#include "kernels/cuda/attention.cuh"

namespace lockstep::kernels::cuda {
namespace {

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
    const float maximum = warp_max(s1 > s0 ? s1 : s0);
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
#pragma unroll 8
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

void attend_piece(Queue& queue, const AttendParams& p) {
  const AttentionShape& s = p.shape;
  const auto rows = static_cast<unsigned>(p.rows);
  choose_positions(queue, p);
  if (attend_rows_takes(p)) {
    attend_rows(queue, p);
    return;
  }
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
