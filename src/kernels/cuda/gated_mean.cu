// The end of a residual site of many rows: sigmoid gates, and the mean of the streams.
#include "kernels/cuda/places.cuh"
#include "kernels/cuda/quick_math.cuh"
#include "kernels/cuda/residual.hpp"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kStreams = 4;  ///< on their way at once

struct MeanParams {
  const float *gate, *n;
  float* u;
  int streams, hidden;
};

template <int kPlaces>
__global__ void __launch_bounds__(kRowThreads) gated_mean_kernel(MeanParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t row = blockIdx.x;
  const int place = place_of_thread<kPlaces>();
  if (place >= p.hidden) return;
  const std::int64_t from = row * p.streams * p.hidden + place;
  Places<kPlaces> u;
  for (int first = 0; first < p.streams; first += kStreams) {
    Places<kPlaces> gate[kStreams];
    Places<kPlaces> n[kStreams];
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
      if (first + s >= p.streams) continue;
      gate[s].load(p.gate + from + static_cast<std::int64_t>(first + s) * p.hidden);
      n[s].load(p.n + from + static_cast<std::int64_t>(first + s) * p.hidden);
    }
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
      if (first + s >= p.streams) continue;
#pragma unroll
      for (int i = 0; i < kPlaces; ++i) {
        const float weight = quick_sigmoid(gate[s].v[i]);
        u.v[i] = first + s == 0 ? weight * n[s].v[i] : canon_fma(weight, n[s].v[i], u.v[i]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kPlaces; ++i) u.v[i] = u.v[i] / static_cast<float>(p.streams);
  u.store(p.u + row * p.hidden + place);
}

}  // namespace

void gated_mean(Queue& queue, const float* gate, const float* n, std::int64_t rows, std::int64_t streams,
                std::int64_t hidden, float* u) {
  const MeanParams p{gate, n, u, static_cast<int>(streams), static_cast<int>(hidden)};
  if (hidden % 4 == 0) {
    launch(queue, gated_mean_kernel<4>, blocks_of<4>(rows, hidden), {kRowThreads, 1, 1}, 0, p);
  } else {
    launch(queue, gated_mean_kernel<1>, blocks_of<1>(rows, hidden), {kRowThreads, 1, 1}, 0, p);
  }
}

}  // namespace lockstep::kernels::cuda
