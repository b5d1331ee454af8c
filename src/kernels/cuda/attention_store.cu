// Queries, keys and index keys of new rows on CUDA: norm, rotation, and the store into pages.
#include "kernels/cuda/attention.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct StoreParams {
  AttentionRun runs[kMaxRuns];
  int count, first_row, rows;
  AttentionShape shape;
  AttentionWeightVectors weights;
  AttentionInput input;
  float *q, *index_q;
  bool with_ring;  ///< no row of the launch reads a place of the ring that another one writes
};

constexpr int kNormedAtOnce = 8;  ///< values of a lane that are under way together

/// The first of a lane's norm weights, fetched before the kernel in front has ended.
struct NormWeights {
  const float* all;
  float first[kNormedAtOnce];

  __device__ __forceinline__ NormWeights(const float* weights, int n, int lane) : all(weights) {
#pragma unroll
    for (int k = 0; k < kNormedAtOnce; ++k) first[k] = lane + 32 * k < n ? __ldg(all + lane + 32 * k) : 0.0F;
  }
};

/// Norm and rotation of n values by one warp; `x` is read through `get` and the
/// result stays in `line`.
template <class Get>
__device__ __forceinline__ void norm_rope(const AttentionShape& s, Get get, const NormWeights& weights, int n,
                                          std::int64_t position, float* line, int lane) {
  const float c0 = lane < s.half ? s.cos[position * s.half + lane] : 0.0F;
  const float d0 = lane < s.half ? s.sin[position * s.half + lane] : 0.0F;
  float sum = 0.0F;
#pragma unroll 1
  for (int first = lane; first < n; first += 32 * kNormedAtOnce) {
    float values[kNormedAtOnce];
#pragma unroll
    for (int k = 0; k < kNormedAtOnce; ++k) values[k] = first + 32 * k < n ? get(first + 32 * k) : 0.0F;
#pragma unroll
    for (int k = 0; k < kNormedAtOnce; ++k) {
      if (first + 32 * k >= n) continue;
      line[first + 32 * k] = values[k];
      sum = canon_fma(values[k], values[k], sum);
    }
  }
  const float mean = fold_lanes(sum) / static_cast<float>(n);
  const float inverse = canon_rsqrt(mean + s.eps);
#pragma unroll
  for (int k = 0; k < kNormedAtOnce; ++k) {
    const int i = lane + 32 * k;
    if (i < n) line[i] = (line[i] * inverse) * weights.first[k];
  }
#pragma unroll 1
  for (int i = lane + 32 * kNormedAtOnce; i < n; i += 32) line[i] = (line[i] * inverse) * __ldg(weights.all + i);
  __syncwarp();
#pragma unroll 1
  for (int i = lane; i < s.half; i += 32) {
    const float a = line[i];
    const float b = line[i + s.half];
    const float c = i == lane ? c0 : s.cos[position * s.half + i];
    const float d = i == lane ? d0 : s.sin[position * s.half + i];
    line[i] = canon_fma(a, c, -(b * d));
    line[i + s.half] = canon_fma(b, c, a * d);
  }
  __syncwarp();
}

__device__ __forceinline__ float rounded(const AttentionShape& s, float x) {
  return s.type == ElementType::F32 ? x : bf16_to_float(float_to_bf16(x));
}

/// The newest raw key of a row goes to the ring.
__device__ __forceinline__ void keep_raw(const AttentionShape& s, const AttentionRun& run, const float* raw,
                                         std::int64_t position, int first, int threads) {
  for (int i = first; i < s.index_dim; i += threads) {
    run.raw_keys[position % s.ring * s.index_dim + i] = rounded(s, raw[i]);
  }
}

/// One warp per vector of a row: query heads and index queries (when wanted), key heads, and the index key, whose raw
/// value goes to the ring (with_ring); a group that the row completes is pooled.
__global__ void store_kernel(StoreParams p) {
  trigger_next_grid();
  extern __shared__ float lines[];
  const AttentionShape& s = p.shape;
  const int queries = p.q == nullptr ? 0 : s.heads;
  const int index_queries = p.q == nullptr ? 0 : s.index_heads;
  const int per_row = queries + index_queries + s.kv_heads + 1;
  const int item = warp_item();
  if (item >= p.rows * per_row) {
    wait_previous_grid();
    return;
  }
  const int lane = lane_id();
  const int most = s.dim > s.index_dim ? s.dim : s.index_dim;
  float* line = lines + static_cast<int>(threadIdx.x) / 32 * most;
  const std::int64_t row = p.first_row + item / per_row;
  const int kind = item % per_row;
  const int index_kind = kind - queries;
  const int key_kind = index_kind - index_queries;
  const bool is_query = kind < queries;
  const bool is_index_query = !is_query && index_kind < index_queries;
  const bool is_key = !is_query && !is_index_query && key_kind < s.kv_heads;
  const int n = is_query || is_key ? s.dim : s.index_dim;
  const NormWeights weights(is_query         ? p.weights.q_norm
                            : is_index_query ? p.weights.index_q_norm
                            : is_key         ? p.weights.k_norm
                                             : p.weights.index_k_norm,
                            n, lane);
  wait_previous_grid();
  const RowPlace place = place_row(p, static_cast<int>(row));
  if (is_query || is_index_query) {
    const float* x = is_query ? p.input.q_gate + (row * s.heads + kind) * 2 * s.dim
                              : p.input.index_qk + (row * (s.index_heads + 1) + index_kind) * s.index_dim;
    norm_rope(
        s, [x](int i) { return x[i]; }, weights, n, place.position, line, lane);
    float* out =
        is_query ? p.q + (row * s.heads + kind) * s.dim : p.index_q + (row * s.index_heads + index_kind) * s.index_dim;
    for (int i = lane; i < n; i += 32) out[i] = line[i];
    return;
  }
  std::byte* page = place.run->pages[place.position / kPage] + place.run->layer_offset;
  const std::int64_t in_page = place.position % kPage;
  if (is_key) {
    const std::int64_t from = (row * s.kv_heads + key_kind) * s.dim;
    const std::int64_t to = (in_page * s.kv_heads + key_kind) * s.dim;
    const float* x = p.input.k + from;
    float values[kNormedAtOnce];
#pragma unroll
    for (int k = 0; k < kNormedAtOnce; ++k) values[k] = lane + 32 * k < s.dim ? p.input.v[from + lane + 32 * k] : 0.0F;
    norm_rope(
        s, [x](int i) { return x[i]; }, weights, n, place.position, line, lane);
    for (int i = lane; i < s.dim; i += 32) store_element(page + s.keys_offset, s.type, to + i, line[i]);
#pragma unroll
    for (int k = 0; k < kNormedAtOnce; ++k) {
      const int i = lane + 32 * k;
      if (i < s.dim) store_element(page + s.values_offset, s.type, to + i, values[k]);
    }
    for (int i = lane + 32 * kNormedAtOnce; i < s.dim; i += 32) {
      store_element(page + s.values_offset, s.type, to + i, p.input.v[from + i]);
    }
    return;
  }
  const auto raw_of = [&](std::int64_t call_row) {
    return p.input.index_qk + (call_row * (s.index_heads + 1) + s.index_heads) * s.index_dim;
  };
  if (p.with_ring) keep_raw(s, *place.run, raw_of(row), place.position, lane, 32);
  if ((place.position + 1) % s.ratio != 0) return;
  // Raw keys of this call's rows come from the projection, older ones from the
  // ring.
  const std::int64_t first = place.position + 1 - s.ratio;
  const std::int64_t first_of_run = place.position - place.in_run;
  const auto raw = [&](std::int64_t position, int i) {
    if (position < first_of_run) return place.run->raw_keys[position % s.ring * s.index_dim + i];
    return rounded(s, raw_of(place.run->first_row + (position - first_of_run))[i]);
  };
  const auto mean = [&](int i) {
    float sum = raw(first, i);
    for (int r = 1; r < s.ratio; ++r) sum += raw(first + r, i);
    return sum / static_cast<float>(s.ratio);
  };
  norm_rope(s, mean, weights, n, first, line, lane);
  for (int i = lane; i < s.index_dim; i += 32) {
    store_element(page + s.index_offset, s.type, in_page / s.ratio * s.index_dim + i, line[i]);
  }
}

/// For runs so long that a row of store_kernel would overwrite what another one reads: afterwards, the newest raw keys
/// of every run.
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
  const float* raw = p.input.index_qk + (row * (s.index_heads + 1) + s.index_heads) * s.index_dim;
  keep_raw(s, run, raw, position, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
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
    // Rows read places of at most ratio - 1 positions before the run; later rows reach those again after a whole ring.
    p.with_ring = true;
    for (int i = 0; i < p.count; ++i) p.with_ring = p.with_ring && p.runs[i].rows <= shape.ring - shape.ratio;
    const int per_row = shape.kv_heads + 1 + (q == nullptr ? 0 : shape.heads + shape.index_heads);
    const int line = shape.dim > shape.index_dim ? shape.dim : shape.index_dim;
    launch_warps(queue, store_kernel, static_cast<std::int64_t>(p.rows) * per_row, p,
                 static_cast<std::size_t>(kWarps * line) * sizeof(float));
    if (p.with_ring) continue;
    launch(queue, ring_kernel, {static_cast<unsigned>(shape.ring), static_cast<unsigned>(p.count), 1}, {128, 1, 1}, 0,
           p);
  }
}

}  // namespace lockstep::kernels::cuda
