// Norm, rotation and storing of the vectors of new rows, each by one warp: what the kernels that do it share.
#pragma once

#include "kernels/cuda/attention.cuh"

namespace lockstep::kernels::cuda {

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

/// The values of a vector as a lane has them: the first ones in registers, the others in `line`.
__device__ __forceinline__ void load_values(float (&values)[kNormedAtOnce], const float* x, int n, float* line,
                                            int lane) {
#pragma unroll
  for (int k = 0; k < kNormedAtOnce; ++k) values[k] = lane + 32 * k < n ? x[lane + 32 * k] : 0.0F;
#pragma unroll 1
  for (int i = lane + 32 * kNormedAtOnce; i < n; i += 32) line[i] = x[i];
}

/// Norm and rotation of n values by one warp; the result lies in `line`. The position may still be under way when the
/// values are asked for.
__device__ __forceinline__ void norm_rope(const AttentionShape& s, const float (&values)[kNormedAtOnce],
                                          const NormWeights& weights, int n, std::int64_t position, float* line,
                                          int lane) {
  const float* cos = s.cos + position * s.half;
  const float* sin = s.sin + position * s.half;
  const float c0 = lane < s.half ? cos[lane] : 0.0F;
  const float d0 = lane < s.half ? sin[lane] : 0.0F;
  float sum = 0.0F;
#pragma unroll
  for (int k = 0; k < kNormedAtOnce; ++k) {
    if (lane + 32 * k < n) sum = canon_fma(values[k], values[k], sum);
  }
#pragma unroll 1
  for (int i = lane + 32 * kNormedAtOnce; i < n; i += 32) sum = canon_fma(line[i], line[i], sum);
  const float mean = fold_lanes(sum) / static_cast<float>(n);
  const float inverse = canon_rsqrt(mean + s.eps);
#pragma unroll
  for (int k = 0; k < kNormedAtOnce; ++k) {
    if (lane + 32 * k < n) line[lane + 32 * k] = (values[k] * inverse) * weights.first[k];
  }
#pragma unroll 1
  for (int i = lane + 32 * kNormedAtOnce; i < n; i += 32) line[i] = (line[i] * inverse) * __ldg(weights.all + i);
  __syncwarp();
#pragma unroll 1
  for (int i = lane; i < s.half; i += 32) {
    const float a = line[i];
    const float b = line[i + s.half];
    const float c = i == lane ? c0 : cos[i];
    const float d = i == lane ? d0 : sin[i];
    line[i] = canon_fma(a, c, -(b * d));
    line[i + s.half] = canon_fma(b, c, a * d);
  }
  __syncwarp();
}

__device__ __forceinline__ float rounded(const AttentionShape& s, float x) {
  return s.type == ElementType::F32 ? x : bf16_to_float(float_to_bf16(x));
}

/// The place of a position in the ring of raw keys.
__device__ __forceinline__ float* in_ring(const AttentionShape& s, const AttentionRun& run, std::int64_t position) {
  return run.raw_keys +
         static_cast<unsigned>(position) % static_cast<unsigned>(s.ring) * static_cast<unsigned>(s.index_dim);
}

/// The newest raw key of a row goes to the ring.
__device__ __forceinline__ void keep_raw(const AttentionShape& s, const AttentionRun& run, const float* raw,
                                         std::int64_t position, int first, int threads) {
  float* to = in_ring(s, run, position);
#pragma unroll 1
  for (int i = first; i < s.index_dim; i += threads) to[i] = rounded(s, raw[i]);
}

/// The raw index key of a row of the call.
__device__ __forceinline__ const float* raw_of(const StoreParams& p, std::int64_t row) {
  return p.input.index_qk + (row * (p.shape.index_heads + 1) + p.shape.index_heads) * p.shape.index_dim;
}

/// The means of the raw keys of the group that starts at position `first`, by one warp, as load_values() leaves them.
/// Raw keys of the call's rows come from the projection, older ones from the ring. `run_start`: the position of the
/// run's first row.
__device__ __forceinline__ void load_means(float (&values)[kNormedAtOnce], const StoreParams& p,
                                           const AttentionRun& run, std::int64_t run_start, std::int64_t first,
                                           float* line, int lane) {
  const AttentionShape& s = p.shape;
  const int n = s.index_dim;
  const auto size = static_cast<float>(s.ratio);
#pragma unroll 1
  for (int r = 0; r < s.ratio; ++r) {
    const std::int64_t position = first + r;
    const bool old = position < run_start;
    const float* raw = old ? in_ring(s, run, position) : raw_of(p, run.first_row + (position - run_start));
    float key[kNormedAtOnce];
#pragma unroll
    for (int k = 0; k < kNormedAtOnce; ++k) key[k] = lane + 32 * k < n ? raw[lane + 32 * k] : 0.0F;
#pragma unroll
    for (int k = 0; k < kNormedAtOnce; ++k) {
      key[k] = old ? key[k] : rounded(s, key[k]);
      values[k] = r == 0 ? key[k] : values[k] + key[k];
    }
#pragma unroll 1
    for (int i = lane + 32 * kNormedAtOnce; i < n; i += 32) {
      const float more = old ? raw[i] : rounded(s, raw[i]);
      line[i] = r == 0 ? more : line[i] + more;
    }
  }
#pragma unroll
  for (int k = 0; k < kNormedAtOnce; ++k) values[k] = values[k] / size;
#pragma unroll 1
  for (int i = lane + 32 * kNormedAtOnce; i < n; i += 32) line[i] = line[i] / size;
}

/// Vectors of a row that are stored.
__device__ __forceinline__ int items_of_row(const StoreParams& p) {
  return (p.q == nullptr ? 0 : p.shape.heads) + (p.index_q == nullptr ? 0 : p.shape.index_heads) + p.shape.kv_heads + 1;
}

/// One vector of a row, by one warp: a query head or index query (when wanted), a key head, or the index key, whose raw
/// value goes to the ring (with_ring); a group that the row completes is pooled. Waits for the kernel in front.
__device__ __forceinline__ void store_item(const StoreParams& p, int item, float* line) {
  const AttentionShape& s = p.shape;
  const int lane = lane_id();
  const int queries = p.q == nullptr ? 0 : s.heads;
  const int index_queries = p.index_q == nullptr ? 0 : s.index_heads;
  const int per_row = items_of_row(p);
  const std::int64_t row = p.first_row + item / per_row;
  const int kind = item % per_row;
  const int index_kind = kind - queries;
  const int key_kind = index_kind - index_queries;
  const bool is_query = kind < queries;
  const bool is_index_query = !is_query && index_kind < index_queries;
  const bool is_key = !is_query && !is_index_query && key_kind < s.kv_heads;
  const bool is_index_key = !is_query && !is_index_query && !is_key;
  const int n = is_query || is_key ? s.dim : s.index_dim;
  const NormWeights weights(is_query         ? p.weights.q_norm
                            : is_index_query ? p.weights.index_q_norm
                            : is_key         ? p.weights.k_norm
                                             : p.weights.index_k_norm,
                            n, lane);
  wait_previous_grid();
  const RowPlace place = place_row(p, static_cast<int>(row));
  std::int64_t position = place.position;
  float values[kNormedAtOnce];
  float more[kNormedAtOnce];  // of the value that belongs to a key
  if (is_index_key) {
    if (p.with_ring) keep_raw(s, *place.run, raw_of(p, row), position, lane, 32);
    position += 1 - s.ratio;  // of the group's first member
    if (static_cast<unsigned>(place.position + 1) % static_cast<unsigned>(s.ratio) != 0) return;
    load_means(values, p, *place.run, place.position - place.in_run, position, line, lane);
  } else {
    load_values(values,
                is_query         ? p.input.q_gate + (row * s.heads + kind) * 2 * s.dim
                : is_index_query ? p.input.index_qk + (row * (s.index_heads + 1) + index_kind) * s.index_dim
                                 : p.input.k + (row * s.kv_heads + key_kind) * s.dim,
                n, line, lane);
  }
  const float* value = p.input.v + (row * s.kv_heads + key_kind) * s.dim;
  if (is_key) {
#pragma unroll
    for (int k = 0; k < kNormedAtOnce; ++k) more[k] = lane + 32 * k < n ? value[lane + 32 * k] : 0.0F;
  }
  norm_rope(s, values, weights, n, position, line, lane);
  if (is_query || is_index_query) {
    float* out =
        is_query ? p.q + (row * s.heads + kind) * s.dim : p.index_q + (row * s.index_heads + index_kind) * s.index_dim;
#pragma unroll 1
    for (int i = lane; i < n; i += 32) out[i] = line[i];
    return;
  }
  const auto in_page = static_cast<int>(place.position % kPage);
  std::byte* page = place.run->pages[place.position / kPage] + place.run->layer_offset;
  const int to = is_key ? (in_page * s.kv_heads + key_kind) * s.dim : in_page / s.ratio * s.index_dim;
  std::byte* at = page + (is_key ? s.keys_offset : s.index_offset);
#pragma unroll 1
  for (int i = lane; i < n; i += 32) store_element(at, s.type, to + i, line[i]);
  if (!is_key) return;
  at = page + s.values_offset;
#pragma unroll
  for (int k = 0; k < kNormedAtOnce; ++k) {
    if (lane + 32 * k < n) store_element(at, s.type, to + lane + 32 * k, more[k]);
  }
#pragma unroll 1
  for (int i = lane + 32 * kNormedAtOnce; i < n; i += 32) store_element(at, s.type, to + i, value[i]);
}

}  // namespace lockstep::kernels::cuda
