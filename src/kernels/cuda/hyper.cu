#include "kernels/cuda/hyper.hpp"

#include <algorithm>

#include "kernels/cuda/bulk.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kStreams = 4;
constexpr int kDownRows = 3;  ///< of a block of down_kernel
constexpr int kDownThreads = 512;
constexpr int kDownWarps = kDownThreads / 32;
constexpr int kMostSize = 10 * 1024;  ///< of the wide residual
constexpr int kChunksAWarp = (kMostSize / 256 + kDownWarps - 1) / kDownWarps;
constexpr int kUpWarps = 8;
constexpr int kOutputs = 2;  ///< of one warp of up_kernel
constexpr int kMostUpChunks = 2;
/// Shared memory with which no second block fits on a multiprocessor. The first ones that are free would else take two
/// of the first kernel's blocks each and leave half of the others none; the second kernel's blocks would meet two by
/// two on those, with no registers left for the blocks of the kernel behind (one row: 67.4 us a GDN layer instead
/// of 62.2).
/// Other devices than Hopper's may have less.
constexpr std::size_t kAlone = std::size_t{116} * 1024;

struct HyperParams {
  const uint4 *down, *up, *inject_weights;
  const float *x, *norm;
  float *low, *inverse, *u, *inject;
  int hidden, lowrank, down_chunks, up_chunks;
  float eps;
};

__device__ __forceinline__ float weight_of(const uint4& eight, int i) {
  const unsigned word = i / 2 == 0 ? eight.x : (i / 2 == 1 ? eight.y : (i / 2 == 2 ? eight.z : eight.w));
  return bits_float(i % 2 == 0 ? word << 16 : word & 0xffff0000U);
}

/// Norm of the wide rows in shared memory, by all warps; then one output row of the down and inject matrices for each
/// of the first kDownRows warps. Weights and rows come by bulk copies, the norm's few weights to registers. All blocks
/// read the same rows at the same time: each begins at another stream, so that they do not meet in one place of the
/// second-level cache.
///
/// Normed values lie in the order of the weights (DenseWeights as f32), so that a lane reads four at once.
template <int kTokens>
__global__ void __launch_bounds__(kDownThreads) down_kernel(HyperParams p) {
  // [kTokens, streams * hidden], then [kDownRows][chunks][lane][16 bytes] of weights.
  extern __shared__ __align__(16) float wide[];
  __shared__ float inverses[kTokens][kStreams];
  __shared__ Arrival weights_here, rows_here[kTokens];
  trigger_next_grid();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int first_row = static_cast<int>(blockIdx.x) * kDownRows;
  const int row = first_row + warp;
  const int all_rows = p.lowrank + (p.inject == nullptr ? 0 : kStreams);
  const int rows = warp < kDownRows ? all_rows : 0;  // of interest to the warp
  const int size = kStreams * p.hidden;
  auto* weights = reinterpret_cast<uint4*>(wide + kTokens * size);
  // What is constant comes before the previous kernel has ended.
  if (thread == 0) {
    arrival_init(weights_here);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) arrival_init(rows_here[t]);
    const int here = all_rows - first_row < kDownRows ? all_rows - first_row : kDownRows;
    const std::int64_t row_size = static_cast<std::int64_t>(p.down_chunks) * 32;
    const auto row_bytes = static_cast<unsigned>(p.down_chunks * 512);
    const std::uint64_t policy = once_policy();
    arrival_begin(weights_here, static_cast<unsigned>(here) * row_bytes);
#pragma unroll 1
    for (int i = 0; i < here; ++i) {
      const int at = first_row + i;
      const uint4* from = at < p.lowrank ? p.down + at * row_size : p.inject_weights + (at - p.lowrank) * row_size;
      bulk_copy_once(weights + i * row_size, from, row_bytes, weights_here, policy);
    }
    arrival_sent(weights_here);
  }
  // The norm's weights of the warp's chunks; in shared memory they would leave no room for the kernel in front.
  float norm[kChunksAWarp][8];
#pragma unroll
  for (int k = 0; k < kChunksAWarp; ++k) {
    const int chunk = warp + k * kDownWarps;
    if (chunk >= p.down_chunks) continue;
#pragma unroll
    for (int j = 0; j < 8; ++j) norm[k][j] = __ldg(p.norm + chunk * 256 + 32 * j + lane);
  }
  __syncthreads();
  wait_previous_grid();
  if (thread == 0) {
    const auto bytes = static_cast<unsigned>(p.hidden) * 4;
#pragma unroll 1
    for (int t = 0; t < kTokens; ++t) {
      arrival_begin(rows_here[t], kStreams * bytes);
#pragma unroll 1
      for (int i = 0; i < kStreams; ++i) {
        const int at = t * size + (i + static_cast<int>(blockIdx.x)) % kStreams * p.hidden;
        bulk_copy(wide + at, p.x + at, bytes, rows_here[t]);
      }
      arrival_sent(rows_here[t]);
    }
  }
#pragma unroll 1
  for (int item = warp; item < kTokens * kStreams; item += kDownWarps) {
    const float* x = wide + item * p.hidden;
    arrival_wait(rows_here[item / kStreams], 0);
    float sum = 0.0F;
    int i = lane;
#pragma unroll 1
    for (; i + 32 * 15 < p.hidden; i += 32 * 16) {
      float values[16];
#pragma unroll
      for (int k = 0; k < 16; ++k) values[k] = x[i + 32 * k];
#pragma unroll
      for (int k = 0; k < 16; ++k) sum = canon_fma(values[k], values[k], sum);
    }
#pragma unroll 1
    for (; i < p.hidden; i += 32) sum = canon_fma(x[i], x[i], sum);
    const float mean = fold_lanes(sum) / static_cast<float>(p.hidden);
    const float inverse = canon_rsqrt(mean + p.eps);
    if (lane == 0) {
      inverses[item / kStreams][item % kStreams] = inverse;
      if (blockIdx.x == 0) p.inverse[item] = inverse;
    }
  }
  __syncthreads();
#pragma unroll
  for (int t = 0; t < kTokens; ++t) arrival_wait(rows_here[t], 0);
  // A warp takes whole chunks of 256, in place: only its own lanes read what it overwrites.
  const auto stream_of = [&](int at) {
    return (at >= p.hidden ? 1 : 0) + (at >= 2 * p.hidden ? 1 : 0) + (at >= 3 * p.hidden ? 1 : 0);
  };
#pragma unroll
  for (int k = 0; k < kChunksAWarp; ++k) {
    const int chunk = warp + k * kDownWarps;
    if (chunk >= p.down_chunks) continue;
    const int stream = stream_of(chunk * 256);
    const bool whole = stream_of(chunk * 256 + 255) == stream;
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float* x = wide + t * size + chunk * 256;
      float inverse = inverses[t][stream];
      float values[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) values[j] = x[lane + 32 * j];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (!whole) inverse = inverses[t][stream_of(chunk * 256 + 32 * j + lane)];
        values[j] = (values[j] * inverse) * norm[k][j];
      }
      __syncwarp();
      auto* to = reinterpret_cast<float4*>(x);
      to[lane] = make_float4(values[0], values[1], values[2], values[3]);
      to[32 + lane] = make_float4(values[4], values[5], values[6], values[7]);
    }
  }
  __syncthreads();
  if (row >= rows) return;
  float sums[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) sums[t] = 0.0F;
  weights += warp * p.down_chunks * 32 + lane;
  arrival_wait(weights_here, 0);
  const auto load = [&](int chunk, float4(&x)[kTokens][2]) {
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const auto* from = reinterpret_cast<const float4*>(wide + t * size + chunk * 256) + lane;
      x[t][0] = from[0];
      x[t][1] = from[32];
    }
    return weights[chunk * 32];
  };
  // One long sum a lane: the next operands are there when the one before is done.
  float4 next_x[kTokens][2];
  uint4 next = load(0, next_x);
#pragma unroll 2
  for (int chunk = 0; chunk < p.down_chunks; ++chunk) {
    const uint4 eight = next;
    float4 x[kTokens][2];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      x[t][0] = next_x[t][0];
      x[t][1] = next_x[t][1];
    }
    next = load(chunk + 1 < p.down_chunks ? chunk + 1 : chunk, next_x);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const float weight = weight_of(eight, j);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const float4& four = x[t][j / 4];
        const float value = j % 4 == 0 ? four.x : (j % 4 == 1 ? four.y : (j % 4 == 2 ? four.z : four.w));
        sums[t] = canon_fma(weight, value, sums[t]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    const float y = fold_lanes(sums[t]) / static_cast<float>(kStreams);
    if (lane != 0) continue;
    if (row < p.lowrank) {
      p.low[t * p.lowrank + row] = canon_silu(y);
    } else {
      p.inject[t * kStreams + row - p.lowrank] = 2.0F * canon_sigmoid(y);
    }
  }
}

/// The gates of all streams of kOutputs values a warp, and their mean over the streams. One row: registers for the
/// blocks of the kernels around it; several: for two blocks a multiprocessor.
template <int kTokens>
__global__ void __maxnreg__(kTokens == 1 ? 96 : 128) up_kernel(HyperParams p) {
  trigger_next_grid();
  const int lane = lane_id();
  const int first = (static_cast<int>(blockIdx.x) * kUpWarps + static_cast<int>(threadIdx.x) / 32) * kOutputs;
  uint4 weights[kOutputs][kStreams][kMostUpChunks];
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
#pragma unroll
      for (int c = 0; c < kMostUpChunks; ++c) {
        const std::int64_t row = static_cast<std::int64_t>(s) * p.hidden + first + o;
        if (first + o < p.hidden && c < p.up_chunks)
          weights[o][s][c] = __ldcs(p.up + (row * p.up_chunks + c) * 32 + lane);
      }
    }
  }
  const int my_place = first + lane / kStreams;
  const float norm = lane < kStreams * kOutputs && my_place < p.hidden
                         ? __ldg(p.norm + static_cast<std::int64_t>(lane % kStreams) * p.hidden + my_place)
                         : 0.0F;
  wait_previous_grid();
#pragma unroll 1
  for (int t = 0; t < kTokens; ++t) {
    const std::int64_t wide0 = (static_cast<std::int64_t>(t) * kStreams + lane % kStreams) * p.hidden;
    const float inverse = p.inverse[t * kStreams + lane % kStreams];
    // Lane 4 * o + s: stream s of output o.
    const int my_output = my_place;
    const bool mine = lane < kStreams * kOutputs && my_output < p.hidden;
    const float raw = mine ? p.x[wide0 + my_output] : 0.0F;
    float low[8 * kMostUpChunks];
#pragma unroll
    for (int j = 0; j < 8 * kMostUpChunks; ++j) {
      if (32 * j >= p.lowrank) continue;
      const int at = 32 * j + lane;
      low[j] = at < p.lowrank ? p.low[t * p.lowrank + at] : 0.0F;
    }
    float gate = 0.0F;
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      float sums[kStreams] = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll
      for (int j = 0; j < 8 * kMostUpChunks; ++j) {
        if (32 * j >= p.lowrank) continue;
        if (32 * j + lane < p.lowrank) {
#pragma unroll
          for (int s = 0; s < kStreams; ++s) {
            sums[s] = canon_fma(weight_of(weights[o][s][j / 8], j % 8), low[j], sums[s]);
          }
        }
      }
      const float y = fold_transposed(sums, lane);  // of stream lane / 8
      const float of_mine = __shfl_sync(kAllLanes, y, lane % kStreams * 8);
      gate = lane / kStreams == o ? of_mine : gate;
    }
    const float value = (raw * inverse) * norm;
    const float weight = canon_sigmoid(gate);
    const int from = lane / kStreams * kStreams;
    float u = __shfl_sync(kAllLanes, weight, from) * __shfl_sync(kAllLanes, value, from);
#pragma unroll
    for (int s = 1; s < kStreams; ++s) {
      u = canon_fma(__shfl_sync(kAllLanes, weight, from + s), __shfl_sync(kAllLanes, value, from + s), u);
    }
    if (mine && lane % kStreams == 0) {
      p.u[static_cast<std::int64_t>(t) * p.hidden + my_output] = u / static_cast<float>(kStreams);
    }
  }
}

template <int kTokens>
void run_site(Queue& queue, const HyperParams& p) {
  const int rows = p.lowrank + (p.inject == nullptr ? 0 : kStreams);
  const std::size_t needed = static_cast<std::size_t>(kTokens * kStreams * p.hidden) * sizeof(float) +
                             static_cast<std::size_t>(kDownRows * p.down_chunks) * 512;
  launch(queue, down_kernel<kTokens>, {blocks_for(rows, kDownRows), 1, 1}, {kDownThreads, 1, 1},
         queue.clusters() ? std::max(needed, kAlone) : needed, p);
  launch(queue, up_kernel<kTokens>, {blocks_for(p.hidden, kUpWarps * kOutputs), 1, 1}, {32 * kUpWarps, 1, 1}, 0, p);
}

}  // namespace

bool hyper_site_takes(const HyperShape& shape, const DenseWeights& down, const DenseWeights& up,
                      const DenseWeights* inject) {
  constexpr std::int64_t kMostShared = 226 * 1024;
  const bool bf16 = !down.wide && !up.wide && (inject == nullptr || !inject->wide);
  return bf16 && shape.streams == kStreams && kStreams * shape.hidden % 256 == 0 &&
         kStreams * shape.hidden <= kMostSize && up.chunks() <= kMostUpChunks &&
         kHyperRows * kStreams * shape.hidden * 4 + kDownRows * down.chunks() * 512 <= kMostShared;
}

void hyper_site(Queue& queue, const HyperShape& shape, const float* norm, const DenseWeights& down,
                const DenseWeights& up, const DenseWeights* inject_weights, const float* x, std::int64_t rows,
                float* low, float* inverse, float* u, float* inject) {
  HyperParams p{};
  p.down = static_cast<const uint4*>(down.data);
  p.up = static_cast<const uint4*>(up.data);
  p.inject_weights = inject_weights == nullptr ? nullptr : static_cast<const uint4*>(inject_weights->data);
  p.x = x;
  p.norm = norm;
  p.low = low;
  p.inverse = inverse;
  p.u = u;
  p.inject = inject;
  p.hidden = shape.hidden;
  p.lowrank = shape.lowrank;
  p.down_chunks = static_cast<int>(down.chunks());
  p.up_chunks = static_cast<int>(up.chunks());
  p.eps = shape.eps;
  if (rows == 1) {
    run_site<1>(queue, p);
  } else if (rows == 2) {
    run_site<2>(queue, p);
  } else if (rows == 3) {
    run_site<3>(queue, p);
  } else {
    run_site<4>(queue, p);
  }
}

}  // namespace lockstep::kernels::cuda
