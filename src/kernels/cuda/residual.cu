#include "kernels/cuda/residual.hpp"

#include "kernels/cuda/device.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct NormParams {
  const float *x, *weight;
  float* out;
  int items, groups, size;
  float eps;
};

constexpr int kNormThreads = 256;

/// One block per group: the values pass through shared memory, the first warp
/// adds them.
__global__ void __launch_bounds__(kNormThreads) rms_norm_kernel(NormParams p) {
  extern __shared__ float line[];
  __shared__ float inverse;
  trigger_next_grid();
  wait_previous_grid();
  const int thread = static_cast<int>(threadIdx.x);
  const int item = static_cast<int>(blockIdx.x);
  const float* x = p.x + static_cast<std::int64_t>(item) * p.size;
  const float* weight = p.weight + static_cast<std::int64_t>(item % p.groups) * p.size;
  float* out = p.out + static_cast<std::int64_t>(item) * p.size;
#pragma unroll 8
  for (int i = thread; i < p.size; i += kNormThreads) line[i] = x[i];
  __syncthreads();
  if (thread < 32) {
    float sum = 0.0F;
#pragma unroll 16
    for (int i = thread; i < p.size; i += 32) sum = canon_fma(line[i], line[i], sum);
    const float mean = fold_lanes(sum) / static_cast<float>(p.size);
    if (thread == 0) inverse = canon_rsqrt(mean + p.eps);
  }
  __syncthreads();
#pragma unroll 8
  for (int i = thread; i < p.size; i += kNormThreads) out[i] = (line[i] * inverse) * weight[i];
}

struct VectorParams {
  float *x, *more;
  const float *a, *b, *c;
  std::int64_t n, streams, hidden, rows;
  float divisor;
};

__global__ void silu_divided_kernel(VectorParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const int i = thread_item();
  if (i < p.n) {
    p.x[i] = canon_silu(p.x[i] / p.divisor);
  } else if (i < p.n + p.rows) {
    p.more[i - p.n] = 2.0F * canon_sigmoid(p.more[i - p.n] / p.divisor);
  }
}

/// One warp per row and stream.
__global__ void ple_gate_kernel(VectorParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const int item = warp_item();
  if (item >= p.rows * p.streams) return;
  const int lane = lane_id();
  const auto hidden = static_cast<int>(p.hidden);
  const std::int64_t at = static_cast<std::int64_t>(item) * hidden;
  const float root = canon_sqrt(static_cast<float>(hidden));
  const float d = warp_dot(p.a + at, p.b + at, hidden, lane) / root;
  const float magnitude = canon_abs(d) > 1e-6F ? canon_abs(d) : 1e-6F;
  const float rooted = canon_sqrt(magnitude);
  const float signed_root = d > 0.0F ? rooted : (d < 0.0F ? -rooted : d * 0.0F);
  const float weight = canon_sigmoid(signed_root);
  const float* value = p.c + item / p.streams * hidden;
#pragma unroll 8
  for (int i = lane; i < hidden; i += 32) p.x[at + i] = weight * value[i];
}

__global__ void add_sum_kernel(VectorParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const int i = thread_item();
  if (i < p.n) p.x[i] += p.a[i] + p.b[i];
}

__global__ void add_streams_kernel(VectorParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t item = thread_item();
  if (item >= p.n) return;
  p.x[item] += p.a[item / (p.streams * p.hidden) * p.hidden + item % p.hidden];
}

struct RouteParams {
  const float* logits;
  std::int32_t* chosen;
  float* weights;
  int n, ranks;
  bool alone;  ///< one row: its ranks are the sorted pairs
  PairLists lists;
  const void* side;  ///< one row of dense weights, or null
  bool side_wide;
  const float* side_x;
  float* side_out;
  int side_cols;
};

constexpr int kRouteThreads = 256;
constexpr int kRouteKeys = 16;  ///< of a lane in registers

/// One block per row. Values stay in shared memory; the first warp adds,
/// selects and renormalises.
__global__ void __launch_bounds__(kRouteThreads) route_kernel(RouteParams p) {
  trigger_next_grid();
  wait_previous_grid();
  extern __shared__ float values[];  // [n] probabilities, [n] keys, then the side product's [cols] weights and values
  __shared__ float maxima[kRouteThreads / 32];
  auto* keys = reinterpret_cast<unsigned*>(values + p.n);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  // The side product's operands pass through shared memory: its one warp would wait for memory again and again.
  auto* side_weights = reinterpret_cast<float*>(keys + p.n);
  float* side_values = side_weights + p.side_cols;
  if (p.side != nullptr) {
    const float* x = p.side_x + static_cast<std::int64_t>(blockIdx.x) * p.side_cols;
#pragma unroll 10
    for (int i = thread; i < p.side_cols; i += kRouteThreads) {
      const int chunk = i / 256 * 256;
      const int step = i % 256 / 32;
      side_values[i] = x[i];
      side_weights[i] = p.side_wide ? static_cast<const float*>(p.side)[chunk + step / 4 * 128 + lane * 4 + step % 4]
                                    : bf16_to_float(static_cast<const std::uint16_t*>(p.side)[chunk + lane * 8 + step]);
    }
  }
  const float* logits = p.logits + static_cast<std::int64_t>(blockIdx.x) * p.n;
  float maximum = logits[0];
  for (int i = thread; i < p.n; i += kRouteThreads) {
    values[i] = logits[i];
    maximum = values[i] > maximum ? values[i] : maximum;
  }
  maximum = warp_max(maximum);
  if (lane == 0) maxima[thread / 32] = maximum;
  __syncthreads();
  if (p.side != nullptr && thread / 32 == kRouteThreads / 32 - 1) {
    float sum = 0.0F;
#pragma unroll 16
    for (int i = lane; i < p.side_cols; i += 32) sum = canon_fma(side_weights[i], side_values[i], sum);
    const float y = fold_lanes(sum);
    if (lane == 0) p.side_out[blockIdx.x] = y;
  }
  for (const float other : maxima) maximum = other > maximum ? other : maximum;
  for (int i = thread; i < p.n; i += kRouteThreads) values[i] = canon_exp(values[i] - maximum);
  __syncthreads();
  if (thread >= 32) return;
  float lane_sum = 0.0F;
  for (int i = lane; i < p.n; i += 32) lane_sum += values[i];
  const float sum = fold_lanes(lane_sum);
  for (int i = lane; i < p.n; i += 32) {
    values[i] = values[i] / sum;
    keys[i] = ordered_bits(values[i]);
  }
  __syncwarp();
  std::int32_t* chosen = p.chosen + static_cast<std::int64_t>(blockIdx.x) * p.ranks;
  float* weights = p.weights + static_cast<std::int64_t>(blockIdx.x) * p.ranks;
  float total = 0.0F;
  if (p.n <= 32 * kRouteKeys) {
    unsigned mine[kRouteKeys];
#pragma unroll
    for (int k = 0; k < kRouteKeys; ++k) mine[k] = 32 * k + lane < p.n ? keys[32 * k + lane] : 0;
    for (int rank = 0; rank < p.ranks; ++rank) {
      unsigned best = 0;
#pragma unroll
      for (int k = 0; k < kRouteKeys; ++k) best = mine[k] > best ? mine[k] : best;
      const unsigned top = __reduce_max_sync(kAllLanes, best);
      unsigned candidate = 0xffffffffU;
#pragma unroll
      for (int k = kRouteKeys - 1; k >= 0; --k) {
        if (mine[k] == top) candidate = static_cast<unsigned>(32 * k + lane);
      }
      const unsigned winner = __reduce_min_sync(kAllLanes, candidate);
#pragma unroll
      for (int k = 0; k < kRouteKeys; ++k) mine[k] = static_cast<unsigned>(32 * k + lane) == winner ? 0 : mine[k];
      if (lane == 0) chosen[rank] = static_cast<std::int32_t>(winner);
      total += values[winner];
    }
  } else {
    for (int rank = 0; rank < p.ranks; ++rank) {
      unsigned best = 0;
      unsigned candidate = 0xffffffffU;
      for (int i = lane; i < p.n; i += 32) {
        if (keys[i] > best) {
          best = keys[i];
          candidate = static_cast<unsigned>(i);
        }
      }
      const unsigned top = __reduce_max_sync(kAllLanes, best);
      const unsigned winner = __reduce_min_sync(kAllLanes, best == top ? candidate : 0xffffffffU);
      if (winner % 32 == static_cast<unsigned>(lane)) keys[winner] = 0;
      if (lane == 0) chosen[rank] = static_cast<std::int32_t>(winner);
      total += values[winner];
    }
  }
  __syncwarp();
  for (int rank = lane; rank < p.ranks; rank += 32) {
    weights[rank] = values[chosen[rank]] / total;
    if (!p.alone) continue;
    p.lists.order[rank] = rank;
    p.lists.rows_of[rank] = 0;
    p.lists.runs[rank] = {chosen[rank], rank, 1};
    if (rank == 0) *p.lists.run_count = p.ranks;
  }
}

__global__ void silu_product_kernel(VectorParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const int i = thread_item();
  if (i < p.n) p.x[i] = canon_silu(p.a[i]) * p.b[i];
}

}  // namespace

void rms_norm(Queue& queue, const float* x, const float* weight, std::int64_t rows, std::int64_t groups,
              std::int64_t size, float eps, float* out) {
  if (out != x && norm_written(queue, x, weight, rows, groups, size, eps, out)) return;
  const NormParams p{x,  weight, out, static_cast<int>(rows * groups), static_cast<int>(groups), static_cast<int>(size),
                     eps};
  launch(queue, rms_norm_kernel, {static_cast<unsigned>(p.items), 1, 1}, {kNormThreads, 1, 1},
         static_cast<std::size_t>(size) * sizeof(float), p);
}

void silu_divided(Queue& queue, float* x, std::int64_t n, float divisor, float* inject, std::int64_t injections) {
  VectorParams p{};
  p.x = x;
  p.more = inject;
  p.n = n;
  p.rows = inject == nullptr ? 0 : injections;
  p.divisor = divisor;
  launch_threads(queue, silu_divided_kernel, n + p.rows, p);
}

void ple_gate(Queue& queue, const float* key, const float* query, const float* value, std::int64_t rows,
              std::int64_t streams, std::int64_t hidden, float* gated) {
  VectorParams p{};
  p.x = gated;
  p.a = key;
  p.b = query;
  p.c = value;
  p.streams = streams;
  p.hidden = hidden;
  p.rows = rows;
  launch_warps(queue, ple_gate_kernel, rows * streams, p);
}

void add_sum(Queue& queue, float* x, const float* a, const float* b, std::int64_t n) {
  VectorParams p{};
  p.x = x;
  p.a = a;
  p.b = b;
  p.n = n;
  launch_threads(queue, add_sum_kernel, n, p);
}

void add_streams(Queue& queue, float* x, const float* y, std::int64_t rows, std::int64_t streams, std::int64_t hidden) {
  VectorParams p{};
  p.x = x;
  p.a = y;
  p.n = rows * streams * hidden;
  p.streams = streams;
  p.hidden = hidden;
  launch_threads(queue, add_streams_kernel, p.n, p);
}

void route(Queue& queue, const float* logits, std::int64_t rows, std::int64_t n, std::int64_t ranks,
           std::int32_t* chosen, float* weights, const PairLists& lists, const SideProduct* side) {
  RouteParams p{};
  p.logits = logits;
  p.chosen = chosen;
  p.weights = weights;
  p.n = static_cast<int>(n);
  p.ranks = static_cast<int>(ranks);
  p.alone = rows == 1;
  p.lists = lists;
  if (side != nullptr) {
    p.side = side->weights->data;
    p.side_wide = side->weights->wide;
    p.side_x = side->x;
    p.side_out = side->out;
    p.side_cols = static_cast<int>(side->weights->cols);
  }
  launch(queue, route_kernel, {static_cast<unsigned>(rows), 1, 1}, {kRouteThreads, 1, 1},
         static_cast<std::size_t>(2 * n + 2 * p.side_cols) * sizeof(float), p);
  if (rows > 1) sort_pairs(queue, chosen, rows * ranks, ranks, n, lists);
}

void silu_product(Queue& queue, const float* gate, const float* up, std::int64_t n, float* out) {
  VectorParams p{};
  p.x = out;
  p.a = gate;
  p.b = up;
  p.n = n;
  launch_threads(queue, silu_product_kernel, n, p);
}

}  // namespace lockstep::kernels::cuda
