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
};

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

}  // namespace lockstep::kernels::cuda
