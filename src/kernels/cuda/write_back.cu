// The ends of blocks of many rows: the experts' weighted sum, and the way back into the wide residual. All that a
// thread needs is on its way before the first of it is used.
#include "kernels/cuda/places.cuh"
#include "kernels/cuda/residual.hpp"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kStreams = 4;  ///< at once
constexpr int kRanks = 10;   ///< at once

struct WriteParams {
  const float *outputs, *weights, *shared, *shared_logit;  ///< of combine()
  float *y, *x;
  const float* inject;
  int streams, ranks, hidden;
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

}  // namespace

void inject(Queue& queue, float* x, const float* weights, const float* y, std::int64_t rows, std::int64_t streams,
            std::int64_t hidden) {
  WriteParams p{};
  p.x = x;
  p.inject = weights;
  p.y = const_cast<float*>(y);  // read only
  p.streams = static_cast<int>(streams);
  p.hidden = static_cast<int>(hidden);
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
  if (hidden % 4 == 0) {
    launch(queue, combine_kernel<4>, blocks_of<4>(rows, hidden), {kRowThreads, 1, 1}, 0, p);
  } else {
    launch(queue, combine_kernel<1>, blocks_of<1>(rows, hidden), {kRowThreads, 1, 1}, 0, p);
  }
}

}  // namespace lockstep::kernels::cuda
