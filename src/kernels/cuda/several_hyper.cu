#include "kernels/cuda/several_hyper.hpp"

#include "kernels/cuda/device.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kStreams = 4;
constexpr int kMostHidden = 2560;
constexpr int kChunk = 256;  ///< inputs of a lane's eight weights

constexpr int kNormThreads = 256;

constexpr int kDownRows = 10;      ///< of a block: two for each pair of warps
constexpr int kDownTokens = 4;     ///< of a block
constexpr int kDownThreads = 320;  ///< a warp has two output rows x two tokens
constexpr int kStageChunks = 2;    ///< chunks that arrive together
constexpr int kDownStages = 8;
static_assert(kDownThreads / 32 == kDownRows);

constexpr int kUpTokens = 8;  ///< of a warp
constexpr int kUpPlaces = 5;  ///< of a warp, one after the other
constexpr int kUpThreads = 256;
constexpr int kSteps = 10;  ///< of 32 inputs of the up matrix

struct SiteParams {
  const uint4 *down, *up, *inject_weights;
  const float *x, *norm;
  float *n, *low, *u, *inject;
  int hidden, lowrank, down_chunks, up_chunks, tokens;
  float eps;
};

__device__ __forceinline__ float weight_of(const uint4& eight, int i) {
  const unsigned word = i / 2 == 0 ? eight.x : (i / 2 == 1 ? eight.y : (i / 2 == 2 ? eight.z : eight.w));
  return bits_float(i % 2 == 0 ? word << 16 : word & 0xffff0000U);
}

/// Eight weights and eight values, in the order of their inputs.
__device__ __forceinline__ void spread(const uint4& eight, float (&out)[8]) {
  out[0] = bits_float(eight.x << 16);
  out[1] = bits_float(eight.x & 0xffff0000U);
  out[2] = bits_float(eight.y << 16);
  out[3] = bits_float(eight.y & 0xffff0000U);
  out[4] = bits_float(eight.z << 16);
  out[5] = bits_float(eight.z & 0xffff0000U);
  out[6] = bits_float(eight.w << 16);
  out[7] = bits_float(eight.w & 0xffff0000U);
}
__device__ __forceinline__ void spread(const float4& low, const float4& high, float (&out)[8]) {
  out[0] = low.x;
  out[1] = low.y;
  out[2] = low.z;
  out[3] = low.w;
  out[4] = high.x;
  out[5] = high.y;
  out[6] = high.z;
  out[7] = high.w;
}

/// Where input i of a row lies in the order of the weights (DenseWeights as f32).
__device__ __forceinline__ int in_order(int i) {
  const int step = i % kChunk / 32;
  return i / kChunk * kChunk + step / 4 * 128 + i % 32 * 4 + step % 4;
}

/// One block per row and stream.
__global__ void __launch_bounds__(kNormThreads) several_norm_kernel(SiteParams p) {
  __shared__ float line[kMostHidden];
  __shared__ float inverse;
  trigger_next_grid();
  const int thread = static_cast<int>(threadIdx.x);
  const int item = static_cast<int>(blockIdx.x);
  const int stream = item % kStreams;
  constexpr int kEach = kMostHidden / kNormThreads;
  float weights[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int i = thread + k * kNormThreads;
    weights[k] = i < p.hidden ? __ldg(p.norm + stream * p.hidden + i) : 0.0F;
  }
  wait_previous_grid();
  const float* x = p.x + static_cast<std::int64_t>(item) * p.hidden;
  float values[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int i = thread + k * kNormThreads;
    values[k] = i < p.hidden ? x[i] : 0.0F;
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int i = thread + k * kNormThreads;
    if (i < p.hidden) line[i] = values[k];
  }
  __syncthreads();
  if (thread < 32) {
    float sum = 0.0F;
#pragma unroll 20
    for (int i = thread; i < p.hidden; i += 32) sum = canon_fma(line[i], line[i], sum);
    const float mean = fold_lanes(sum) / static_cast<float>(p.hidden);
    if (thread == 0) inverse = canon_rsqrt(mean + p.eps);
  }
  __syncthreads();
  float* out = p.n + static_cast<std::int64_t>(item / kStreams) * kStreams * p.hidden;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int i = thread + k * kNormThreads;
    if (i < p.hidden) out[in_order(stream * p.hidden + i)] = (values[k] * inverse) * weights[k];
  }
}

struct DownStage {
  uint4 weights[kDownRows][kStageChunks][32];
  float4 x[kDownTokens][kStageChunks][kChunk / 4];
};

/// Blocks: x covers rows of the down and inject matrices, y tokens. Lane j of a warp is lane j of fold32.
__global__ void __launch_bounds__(kDownThreads) several_down_rows_kernel(SiteParams p) {
  extern __shared__ __align__(16) std::byte memory[];
  auto* stages = reinterpret_cast<DownStage*>(memory);
  trigger_next_grid();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int rows = p.lowrank + (p.inject == nullptr ? 0 : kStreams);
  const int row0 = static_cast<int>(blockIdx.x) * kDownRows;
  const int token0 = static_cast<int>(blockIdx.y) * kDownTokens;
  const int count = p.down_chunks / kStageChunks;
  const std::uint64_t policy = once_policy();
  // A warp fetches the weights of one row and a part of the activations.
  const int own = row0 + warp < rows ? row0 + warp : rows - 1;
  const uint4* weights =
      (own < p.lowrank ? p.down + static_cast<std::int64_t>(own) * p.down_chunks * 32
                       : p.inject_weights + static_cast<std::int64_t>(own - p.lowrank) * p.down_chunks * 32) +
      lane;
  const auto fetch_weights = [&](int s) {
    if (s >= count) return;
#pragma unroll
    for (int c = 0; c < kStageChunks; ++c) {
      const int chunk = s * kStageChunks + c;
      if (chunk < p.down_chunks) {
        copy_once_soon(&stages[s % kDownStages].weights[warp][c][lane], weights + chunk * 32, policy);
      }
    }
  };
  // A thread fetches up to two pieces of four values.
  constexpr int kStageQuads = kStageChunks * kChunk / 4;  // of a token
  constexpr int kPieces = kDownTokens * kStageQuads;
  static_assert(kPieces <= 2 * kDownThreads);
  const float* x_from[2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int i = thread + k * kDownThreads;
    const int token = token0 + i / kStageQuads < p.tokens ? token0 + i / kStageQuads : p.tokens - 1;
    x_from[k] = p.n + static_cast<std::int64_t>(token) * kStreams * p.hidden + i % kStageQuads * 4;
  }
  const auto fetch_x = [&](int s) {
    if (s >= count) return;
    float4* to = &stages[s % kDownStages].x[0][0][0] + thread;
    const int at = s * kStageChunks * kChunk;
    copy_soon(to, x_from[0] + at);
    if (thread < kPieces - kDownThreads) copy_soon(to + kDownThreads, x_from[1] + at);
  };
#pragma unroll 1
  for (int s = 0; s + 1 < kDownStages; ++s) fetch_weights(s);
  wait_previous_grid();
#pragma unroll 1
  for (int s = 0; s + 1 < kDownStages; ++s) {
    fetch_x(s);
    copies_made();
  }
  const int my_row = warp / 2 * 2;
  const int my_token = warp % 2 * 2;
  float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};  // [row][token]
#pragma unroll 1
  for (int s = 0; s < count; ++s) {
    wait_copies<kDownStages - 2>();
    __syncthreads();
    fetch_weights(s + kDownStages - 1);
    fetch_x(s + kDownStages - 1);
    copies_made();
    const DownStage& stage = stages[s % kDownStages];
#pragma unroll
    for (int c = 0; c < kStageChunks; ++c) {
      float w[2][8];
      float x[2][8];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint4 eight = stage.weights[my_row + i][c][lane];
        spread(eight, w[i]);
        spread(stage.x[my_token + i][c][lane], stage.x[my_token + i][c][32 + lane], x[i]);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[i] = canon_fma(w[i / 2][j], x[i % 2][j], sums[i]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const float y = fold_lanes(sums[2 * r + t]) / static_cast<float>(kStreams);
      const int row = row0 + my_row + r;
      const int token = token0 + my_token + t;
      if (lane != 0 || row >= rows || token >= p.tokens) continue;
      if (row < p.lowrank) {
        p.low[token * p.lowrank + row] = canon_silu(y);
      } else {
        p.inject[token * kStreams + row - p.lowrank] = 2.0F * canon_sigmoid(y);
      }
    }
  }
  wait_copies<0>();
}

/// The up weights of one place in all streams: eight inputs of the first chunk, two of the second.
struct UpWeights {
  uint4 first[kStreams];
  unsigned second[kStreams];

  __device__ __forceinline__ void load(const SiteParams& p, int place, int lane) {
#pragma unroll
    for (int s = 0; s < kStreams; ++s) {
      const std::int64_t row = static_cast<std::int64_t>(s) * p.hidden + place;
      const uint4* from = p.up + row * p.up_chunks * 32 + lane;
      first[s] = __ldcs(from);
      second[s] = __ldcs(reinterpret_cast<const unsigned*>(from + 32));
    }
  }
  __device__ __forceinline__ float get(int stream, int step) const {
    if (step < 8) return weight_of(first[stream], step);
    return bits_float(step % 2 == 0 ? second[stream] << 16 : second[stream] & 0xffff0000U);
  }
};

/// The gates of all streams of a place and their mean over the streams, for eight tokens a warp. Blocks: x covers
/// places, y tokens.
__global__ void __launch_bounds__(kUpThreads, 1) several_up_kernel(SiteParams p) {
  __shared__ float lows[kUpTokens][32 * kSteps];
  trigger_next_grid();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int place0 = (static_cast<int>(blockIdx.x) * (kUpThreads / 32) + thread / 32) * kUpPlaces;
  const int token0 = static_cast<int>(blockIdx.y) * kUpTokens;
  const int stream = lane % kStreams;
  const int token = token0 + lane / kStreams;  // lane 4 * t + s: stream s of token t
  const int end = place0 + kUpPlaces < p.hidden ? place0 + kUpPlaces : p.hidden;
  UpWeights next;
  if (place0 < end) next.load(p, place0, lane);
  wait_previous_grid();
  const int live = p.tokens - token0 < kUpTokens ? p.tokens - token0 : kUpTokens;
#pragma unroll 1
  for (int i = thread; i < live * p.lowrank / 4; i += kUpThreads) {
    const int t = i * 4 / p.lowrank;
    copy_soon(&lows[t][i * 4 % p.lowrank], p.low + static_cast<std::int64_t>(token0) * p.lowrank + i * 4);
  }
  copies_made();
  const float* n = p.n + static_cast<std::int64_t>(token < p.tokens ? token : 0) * kStreams * p.hidden;
  float value = place0 < end ? n[in_order(stream * p.hidden + place0)] : 0.0F;
  wait_copies<0>();
  __syncthreads();
  // Tokens that are not there have what lies there; nobody reads their results.
  float low[kSteps][kUpTokens];
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int t = 0; t < kUpTokens; ++t) low[k][t] = lows[t][32 * k + lane];
  }
#pragma unroll 1
  for (int place = place0; place < end; ++place) {
    const UpWeights weights = next;
    const float normed = value;
    if (place + 1 < end) {
      next.load(p, place + 1, lane);
      value = n[in_order(stream * p.hidden + place + 1)];
    }
    float sums[32];  // [token][stream]
#pragma unroll
    for (int i = 0; i < 32; ++i) sums[i] = 0.0F;
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int s = 0; s < kStreams; ++s) {
        const float weight = weights.get(s, k);
#pragma unroll
        for (int t = 0; t < kUpTokens; ++t) {
          sums[t * kStreams + s] = canon_fma(weight, low[k][t], sums[t * kStreams + s]);
        }
      }
    }
    const float gate = canon_sigmoid(fold_transposed(sums, lane));
    const int from = lane / kStreams * kStreams;
    float u = __shfl_sync(kAllLanes, gate, from) * __shfl_sync(kAllLanes, normed, from);
#pragma unroll
    for (int s = 1; s < kStreams; ++s) {
      u = canon_fma(__shfl_sync(kAllLanes, gate, from + s), __shfl_sync(kAllLanes, normed, from + s), u);
    }
    if (stream == 0 && token < p.tokens) {
      p.u[static_cast<std::int64_t>(token) * p.hidden + place] = u / static_cast<float>(kStreams);
    }
  }
}

}  // namespace

bool several_site_takes(const HyperShape& shape, const DenseWeights& down, const DenseWeights& up,
                        const DenseWeights* inject) {
  return hyper_site_takes(shape, down, up, inject) && shape.hidden <= kMostHidden && shape.lowrank == 32 * kSteps &&
         down.chunks() % kStageChunks == 0;
}

void several_site(Queue& queue, const HyperShape& shape, const float* norm, const DenseWeights& down,
                  const DenseWeights& up, const DenseWeights* inject_weights, const float* x, std::int64_t rows,
                  float* n, float* low, float* u, float* inject) {
  SiteParams p{};
  p.down = static_cast<const uint4*>(down.data);
  p.up = static_cast<const uint4*>(up.data);
  p.inject_weights = inject_weights == nullptr ? nullptr : static_cast<const uint4*>(inject_weights->data);
  p.x = x;
  p.norm = norm;
  p.n = n;
  p.low = low;
  p.u = u;
  p.inject = inject;
  p.hidden = shape.hidden;
  p.lowrank = shape.lowrank;
  p.down_chunks = static_cast<int>(down.chunks());
  p.up_chunks = static_cast<int>(up.chunks());
  p.tokens = static_cast<int>(rows);
  p.eps = shape.eps;
  launch(queue, several_norm_kernel, {static_cast<unsigned>(rows * kStreams), 1, 1}, {kNormThreads, 1, 1}, 0, p);
  const int down_rows = p.lowrank + (inject == nullptr ? 0 : kStreams);
  launch(queue, several_down_rows_kernel, {blocks_for(down_rows, kDownRows), blocks_for(rows, kDownTokens), 1},
         {kDownThreads, 1, 1}, kDownStages * sizeof(DownStage), p);
  launch(queue, several_up_kernel,
         {blocks_for(p.hidden, kUpPlaces * (kUpThreads / 32)), blocks_for(rows, kUpTokens), 1}, {kUpThreads, 1, 1}, 0,
         p);
}

}  // namespace lockstep::kernels::cuda
