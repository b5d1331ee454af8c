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
  float* x;
  const float *a, *b, *c;
  std::int64_t n, streams, hidden, rows;
  float divisor;
};

__global__ void silu_divided_kernel(VectorParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const int i = thread_item();
  if (i < p.n) p.x[i] = canon_silu(p.x[i] / p.divisor);
}

constexpr int kRowThreads = 128;  ///< of blocks that belong to one row

struct MeanParams {
  const float *gate, *n;
  float *u, *inject;
  std::int64_t rows, streams, hidden;
};

/// Blocks: x rows, y places of the hidden dimension.
__global__ void gated_mean_kernel(MeanParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t row = blockIdx.x;
  const int place = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (p.inject != nullptr && place < p.streams) {
    float* inject = p.inject + row * p.streams + place;
    *inject = 2.0F * canon_sigmoid(*inject / static_cast<float>(p.streams));
  }
  if (place >= p.hidden) return;
  const float* gate = p.gate + row * p.streams * p.hidden + place;
  const float* n = p.n + row * p.streams * p.hidden + place;
  float u = canon_sigmoid(gate[0]) * n[0];
#pragma unroll 4
  for (int s = 1; s < p.streams; ++s) u = canon_fma(canon_sigmoid(gate[s * p.hidden]), n[s * p.hidden], u);
  p.u[row * p.hidden + place] = u / static_cast<float>(p.streams);
}

/// Blocks: x rows, y places of the hidden dimension.
__global__ void inject_kernel(VectorParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t row = blockIdx.x;
  const int place = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (place >= p.hidden) return;
  const float y = p.b[row * p.hidden + place];
  float* x = p.x + row * p.streams * p.hidden + place;
  const float* weights = p.a + row * p.streams;
#pragma unroll 4
  for (int s = 0; s < p.streams; ++s) x[s * p.hidden] = canon_fma(weights[s], y, x[s * p.hidden]);
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

struct SortParams {
  const std::int32_t* chosen;
  std::int32_t *order, *rows_of;
  ExpertRun* runs;
  std::int32_t* run_count;
  int pairs, ranks, experts;
};

constexpr int kSortThreads = 1024;

/// One block: counts per expert, prefix sums, placement. The order inside an
/// expert does not matter: every pair is computed alone.
__global__ void __launch_bounds__(kSortThreads) sort_kernel(SortParams p) {
  trigger_next_grid();
  wait_previous_grid();
  extern __shared__ std::int32_t counts[];  // [experts] counts, then [experts] next places
  __shared__ int warp_places[32];
  __shared__ int warp_runs[32];
  std::int32_t* next = counts + p.experts;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  for (int e = thread; e < p.experts; e += kSortThreads) counts[e] = 0;
  __syncthreads();
  for (int i = thread; i < p.pairs; i += kSortThreads) atomicAdd(counts + p.chosen[i], 1);
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
      if (count > 0) p.runs[before_runs + run - 1] = {e, first, count};
    }
    __syncthreads();
  }
  if (thread == 0) *p.run_count = runs;
  for (int i = thread; i < p.pairs; i += kSortThreads) {
    const int place = atomicAdd(next + p.chosen[i], 1);
    p.order[place] = i;
    p.rows_of[place] = i / p.ranks;
  }
}

__global__ void silu_product_kernel(VectorParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const int i = thread_item();
  if (i < p.n) p.x[i] = canon_silu(p.a[i]) * p.b[i];
}

struct CombineParams {
  const float *outputs, *weights, *shared, *shared_logit;
  float* y;
  std::int64_t rows, ranks, hidden;
};

__global__ void combine_kernel(CombineParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t item = thread_item();
  if (item >= p.rows * p.hidden) return;
  const std::int64_t row = item / p.hidden;
  const float* outputs = p.outputs + row * p.ranks * p.hidden + item % p.hidden;
  float y = 0.0F;
#pragma unroll 10
  for (std::int64_t r = 0; r < p.ranks; ++r) y = canon_fma(p.weights[row * p.ranks + r], outputs[r * p.hidden], y);
  p.y[item] = canon_fma(canon_sigmoid(p.shared_logit[row]), p.shared[item], y);
}

}  // namespace

void rms_norm(Queue& queue, const float* x, const float* weight, std::int64_t rows, std::int64_t groups,
              std::int64_t size, float eps, float* out) {
  const NormParams p{x,  weight, out, static_cast<int>(rows * groups), static_cast<int>(groups), static_cast<int>(size),
                     eps};
  launch(queue, rms_norm_kernel, {static_cast<unsigned>(p.items), 1, 1}, {kNormThreads, 1, 1},
         static_cast<std::size_t>(size) * sizeof(float), p);
}

void silu_divided(Queue& queue, float* x, std::int64_t n, float divisor) {
  VectorParams p{};
  p.x = x;
  p.n = n;
  p.divisor = divisor;
  launch_threads(queue, silu_divided_kernel, n, p);
}

void gated_mean(Queue& queue, const float* gate, const float* n, std::int64_t rows, std::int64_t streams,
                std::int64_t hidden, float* u, float* inject) {
  const std::int64_t places = hidden > streams ? hidden : streams;
  launch(queue, gated_mean_kernel, {static_cast<unsigned>(rows), blocks_for(places, kRowThreads), 1},
         {kRowThreads, 1, 1}, 0, MeanParams{gate, n, u, inject, rows, streams, hidden});
}

void inject(Queue& queue, float* x, const float* weights, const float* y, std::int64_t rows, std::int64_t streams,
            std::int64_t hidden) {
  VectorParams p{};
  p.x = x;
  p.a = weights;
  p.b = y;
  p.streams = streams;
  p.hidden = hidden;
  launch(queue, inject_kernel, {static_cast<unsigned>(rows), blocks_for(hidden, kRowThreads), 1}, {kRowThreads, 1, 1},
         0, p);
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
  if (rows == 1) return;
  SortParams sort{};
  sort.chosen = chosen;
  sort.order = lists.order;
  sort.rows_of = lists.rows_of;
  sort.runs = lists.runs;
  sort.run_count = lists.run_count;
  sort.pairs = static_cast<int>(rows * ranks);
  sort.ranks = static_cast<int>(ranks);
  sort.experts = static_cast<int>(n);
  launch(queue, sort_kernel, {1, 1, 1}, {kSortThreads, 1, 1}, static_cast<std::size_t>(2 * n) * sizeof(std::int32_t),
         sort);
}

void silu_product(Queue& queue, const float* gate, const float* up, std::int64_t n, float* out) {
  VectorParams p{};
  p.x = out;
  p.a = gate;
  p.b = up;
  p.n = n;
  launch_threads(queue, silu_product_kernel, n, p);
}

void combine(Queue& queue, const float* outputs, const float* weights, const float* shared, const float* shared_logit,
             std::int64_t rows, std::int64_t ranks, std::int64_t hidden, float* y) {
  launch_threads(queue, combine_kernel, rows * hidden,
                 CombineParams{outputs, weights, shared, shared_logit, y, rows, ranks, hidden});
}

}  // namespace lockstep::kernels::cuda
