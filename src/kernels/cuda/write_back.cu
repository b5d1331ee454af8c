// The ends of blocks of many rows: the experts' weighted sum, and the way back into the wide residual. All that a
// thread needs is on its way before the first of it is used.
#include <algorithm>

#include "kernels/cuda/places.cuh"
#include "kernels/cuda/residual.hpp"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kStreams = 4;  ///< at once

struct WriteParams {
  const float *outputs, *weights, *shared, *shared_logit;  ///< of combine()
  float *y, *x;
  const float* inject;
  int streams, ranks, hidden, rows;
};

/// Up to kStreams streams of a row of x.
template <int kPlaces>
struct Streams {
  Places<kPlaces> x[kStreams];
  float weight[kStreams];

  __device__ __forceinline__ void load(const WriteParams& p, std::int64_t row, int first, int place) {
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
      if (first + s >= p.streams) continue;
      x[s].load(p.x + (row * p.streams + first + s) * p.hidden + place);
      weight[s] = p.inject[row * p.streams + first + s];
    }
  }
  __device__ __forceinline__ void add(const WriteParams& p, std::int64_t row, int first, int place,
                                      const Places<kPlaces>& y) {
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
      if (first + s >= p.streams) continue;
      x[s].add(weight[s], y);
      x[s].store(p.x + (row * p.streams + first + s) * p.hidden + place);
    }
  }
};

/// Blocks: x rows, y places of the hidden dimension.
template <int kPlaces>
__global__ void __launch_bounds__(kRowThreads) inject_kernel(WriteParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t row = blockIdx.x;
  const int place = place_of_thread<kPlaces>();
  if (place >= p.hidden) return;
  Places<kPlaces> y;
  y.load(p.y + row * p.hidden + place);
  for (int first = 0; first < p.streams; first += kStreams) {
    Streams<kPlaces> streams;
    streams.load(p, row, first, place);
    streams.add(p, row, first, place, y);
  }
}

/// The experts' weighted sum, kRanks of them on their way at once, then the gated shared expert.
template <int kPlaces, int kRanks>
__device__ __forceinline__ Places<kPlaces> weighted_sum(const WriteParams& p, std::int64_t row, int place) {
  Places<kPlaces> shared;
  shared.load(p.shared + row * p.hidden + place);
  const float shared_weight = canon_sigmoid(p.shared_logit[row]);
  Places<kPlaces> y{};
  for (int first = 0; first < p.ranks; first += kRanks) {
    Places<kPlaces> outputs[kRanks];
    float weights[kRanks];
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
      if (first + r >= p.ranks) continue;
      outputs[r].load(p.outputs + (row * p.ranks + first + r) * p.hidden + place);
      weights[r] = p.weights[row * p.ranks + first + r];
    }
#pragma unroll
    for (int r = 0; r < kRanks; ++r) {
      if (first + r < p.ranks) y.add(weights[r], outputs[r]);
    }
  }
  y.add(shared_weight, shared);
  return y;
}

/// The same blocks. With x the sum goes there and y is not written.
template <int kPlaces>
__global__ void __launch_bounds__(kRowThreads) combine_kernel(WriteParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t row = blockIdx.x;
  const int place = place_of_thread<kPlaces>();
  if (place >= p.hidden) return;
  Streams<kPlaces> streams;
  if (p.x != nullptr) streams.load(p, row, 0, place);
  const Places<kPlaces> y = weighted_sum<kPlaces, 10>(p, row, place);
  if (p.x == nullptr) {
    y.store(p.y + row * p.hidden + place);
    return;
  }
  streams.add(p, row, 0, place, y);
  for (int first = kStreams; first < p.streams; first += kStreams) {
    streams.load(p, row, first, place);
    streams.add(p, row, first, place, y);
  }
}

struct WriteNormParams {
  WriteParams write;
  const float* weight;
  float* out;
  float eps;
  int unused;  ///< no undefined byte: batches of launches are compared
};

constexpr int kMostThreads = 640;

/// A block is a row: its end, and the norm of each stream for what comes next. The streams stay in registers; they pass
/// through shared memory for their sums, each added by one warp.
template <bool kCombines>
__global__ void __launch_bounds__(kMostThreads, 2) write_norm_kernel(WriteNormParams q) {
  extern __shared__ __align__(16) float lines[];
  __shared__ float inverse[kStreams];
  trigger_next_grid();
  wait_previous_grid();
  const WriteParams& p = q.write;
  const std::int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const int place = 4 * thread;
  const bool live = place < p.hidden;
  Streams<4> streams;
  if (live) {
    Places<4> y;
    if constexpr (kCombines) {
      y = weighted_sum<4, 4>(p, row, place);
    } else {
      y.load(p.y + row * p.hidden + place);
    }
    streams.load(p, row, 0, place);
    streams.add(p, row, 0, place, y);
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
      if (s < p.streams) streams.x[s].store(lines + s * p.hidden + place);
    }
  }
  __syncthreads();
  const int warp = thread / 32;
  if (warp < p.streams) {
    const float* line = lines + warp * p.hidden;
    float sum = 0.0F;
#pragma unroll 16
    for (int i = thread % 32; i < p.hidden; i += 32) sum = canon_fma(line[i], line[i], sum);
    const float mean = fold_lanes(sum) / static_cast<float>(p.hidden);
    if (thread % 32 == 0) inverse[warp] = canon_rsqrt(mean + q.eps);
  }
  __syncthreads();
  if (!live) return;
#pragma unroll
  for (int s = 0; s < kStreams; ++s) {
    if (s >= p.streams) continue;
    Places<4> weight;
    weight.load(q.weight + s * p.hidden + place);
#pragma unroll
    for (int i = 0; i < 4; ++i) weight.v[i] = (streams.x[s].v[i] * inverse[s]) * weight.v[i];
    weight.store(q.out + (row * p.streams + s) * p.hidden + place);
  }
}

/// The parameters of the last launch when it is `kernel`.
const WriteParams* last_write(const Queue& queue, void (*kernel)(WriteParams)) {
  return static_cast<const WriteParams*>(queue.last_parameters(reinterpret_cast<const void*>(kernel)));
}

}  // namespace

void inject(Queue& queue, float* x, const float* weights, const float* y, std::int64_t rows, std::int64_t streams,
            std::int64_t hidden) {
  WriteParams p{};
  p.x = x;
  p.inject = weights;
  p.y = const_cast<float*>(y);  // read only
  p.streams = static_cast<int>(streams);
  p.hidden = static_cast<int>(hidden);
  p.rows = static_cast<int>(rows);
  if (hidden % 4 == 0) {
    launch(queue, inject_kernel<4>, blocks_of<4>(rows, hidden), {kRowThreads, 1, 1}, 0, p);
  } else {
    launch(queue, inject_kernel<1>, blocks_of<1>(rows, hidden), {kRowThreads, 1, 1}, 0, p);
  }
}

void combine(Queue& queue, const float* outputs, const float* weights, const float* shared, const float* shared_logit,
             std::int64_t rows, std::int64_t ranks, std::int64_t hidden, const Tail& tail) {
  WriteParams p{};
  p.outputs = outputs;
  p.weights = weights;
  p.shared = shared;
  p.shared_logit = shared_logit;
  p.y = tail.y;
  p.x = tail.x;
  p.inject = tail.inject;
  p.streams = tail.streams;
  p.ranks = static_cast<int>(ranks);
  p.hidden = static_cast<int>(hidden);
  p.rows = static_cast<int>(rows);
  if (hidden % 4 == 0) {
    launch(queue, combine_kernel<4>, blocks_of<4>(rows, hidden), {kRowThreads, 1, 1}, 0, p);
  } else {
    launch(queue, combine_kernel<1>, blocks_of<1>(rows, hidden), {kRowThreads, 1, 1}, 0, p);
  }
}

bool norm_written(Queue& queue, const float* x, const float* weight, std::int64_t rows, std::int64_t groups,
                  std::int64_t size, float eps, float* out) {
  const WriteParams* injected = last_write(queue, inject_kernel<4>);
  const WriteParams* combined = last_write(queue, combine_kernel<4>);
  const WriteParams* last = injected != nullptr ? injected : combined;
  constexpr std::int64_t kFewThreads = 32 * kStreams;  // a warp a stream
  const std::int64_t threads = std::max((size / 4 + 31) / 32 * 32, kFewThreads);
  if (last == nullptr || last->x != x || last->rows != rows || last->streams != groups || last->hidden != size ||
      groups > kStreams || threads > kMostThreads) {
    return false;
  }
  const WriteNormParams p{*last, weight, out, eps, 0};
  queue.drop_last();
  launch(queue, injected != nullptr ? write_norm_kernel<false> : write_norm_kernel<true>,
         {static_cast<unsigned>(rows), 1, 1}, {static_cast<unsigned>(threads), 1, 1},
         static_cast<std::size_t>(groups * size) * sizeof(float), p);
  return true;
}

}  // namespace lockstep::kernels::cuda
