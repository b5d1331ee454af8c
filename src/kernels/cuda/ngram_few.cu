// The first launch multiplies: every warp streams its rows of both matrices through shared memory, from before the
// kernel in front has ended. The second one does all the rest, a block for each stream of each run.
#include "kernels/cuda/ngram_few.hpp"

#include <algorithm>

#include "kernels/cuda/device.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kMostWarps = 16;
constexpr int kDepth = 2;  ///< rows of a warp under way
constexpr std::size_t kMostShared = 226 * 1024;
constexpr int kTaps = 4;
constexpr int kStep = 3;  ///< rows between taps
constexpr int kHistory = (kTaps - 1) * kStep;
constexpr int kMostHidden = 2560;
constexpr int kMostThreads = kMostHidden / 4;

struct ProjectParams {
  const uint4 *key, *value;
  float *key_out, *value_out;
  const float* x;
  int key_rows, rows, cols, chunks, tokens, unused;
};

__device__ __forceinline__ float weight_of(const uint4& eight, int i) {
  const unsigned word = i / 2 == 0 ? eight.x : (i / 2 == 1 ? eight.y : (i / 2 == 2 ? eight.z : eight.w));
  return bits_float(i % 2 == 0 ? word << 16 : word & 0xffff0000U);
}

/// One warp per output row of both matrices, by the whole grid; lane j is lane j of fold32.
template <int kTokens>
__global__ void __launch_bounds__(32 * kMostWarps) project_kernel(ProjectParams p) {
  extern __shared__ uint4 staged[];  // [warp][kDepth][chunks][lane], then the activations [kTokens, cols]
  trigger_next_grid();
  const auto thread = static_cast<int>(threadIdx.x);
  const auto threads = static_cast<int>(blockDim.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int warps = threads / 32;
  uint4* ring = staged + warp * kDepth * p.chunks * 32 + lane;
  auto* x = reinterpret_cast<float*>(staged + warps * kDepth * p.chunks * 32);
  const std::uint64_t policy = once_policy();
  const auto row_of = [&](int round) {
    return (round * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) * warps + warp;
  };
  const auto start = [&](int round) {
    const int row = row_of(round);
    if (row < p.rows) {
      const uint4* from = (row < p.key_rows ? p.key + static_cast<std::int64_t>(row) * p.chunks * 32
                                            : p.value + static_cast<std::int64_t>(row - p.key_rows) * p.chunks * 32) +
                          lane;
      uint4* to = ring + round % kDepth * p.chunks * 32;
#pragma unroll 2
      for (int i = 0; i < p.chunks; ++i) copy_once_soon(to + i * 32, from + i * 32, policy);
    }
    copies_made();
  };
#pragma unroll 1
  for (int round = 0; round < kDepth; ++round) start(round);
  wait_previous_grid();
  const auto* from = reinterpret_cast<const float4*>(p.x);
#pragma unroll 2
  for (int i = thread; i < p.tokens * p.cols / 4; i += threads) reinterpret_cast<float4*>(x)[i] = from[i];
  __syncthreads();
#pragma unroll 1
  for (int round = 0; row_of(round) < p.rows; ++round) {
    wait_copies<kDepth - 1>();
    __syncwarp();
    const uint4* weights = ring + round % kDepth * p.chunks * 32;
    float sums[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) sums[t] = 0.0F;
#pragma unroll 2
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      const uint4 eight = weights[chunk * 32];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          // Rows that are not there repeat the first one and are not stored.
          const float value = x[(t < p.tokens ? t : 0) * p.cols + chunk * 256 + 32 * j + lane];
          sums[t] = canon_fma(weight_of(eight, j), value, sums[t]);
        }
      }
    }
    __syncwarp();
    start(round + kDepth);
    const int row = row_of(round);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float y = fold_lanes(sums[t]);
      if (lane != 0 || t >= p.tokens) continue;
      if (row < p.key_rows) {
        p.key_out[static_cast<std::int64_t>(t) * p.key_rows + row] = y;
      } else {
        p.value_out[static_cast<std::int64_t>(t) * (p.rows - p.key_rows) + row - p.key_rows] = y;
      }
    }
  }
  wait_copies<0>();
}

struct StreamParams {
  ConvRun runs[kMaxRuns];
  const float *key, *value, *norm_key, *norm_query, *norm_conv, *conv;
  float* x;
  int streams, hidden;
  float eps, root;
};

/// fold32 of a[i] * b[i] in shared memory, by one warp.
__device__ __forceinline__ float line_dot(const float* a, const float* b, int n, int lane) {
  float sum = 0.0F;
#pragma unroll 20
  for (int i = lane; i < n; i += 32) sum = canon_fma(a[i], b[i], sum);
  return fold_lanes(sum);
}

__device__ __forceinline__ float line_inverse(const float* line, const StreamParams& p, int lane) {
  return canon_rsqrt(line_dot(line, line, p.hidden, lane) / static_cast<float>(p.hidden) + p.eps);
}

__device__ __forceinline__ void load_four(const float* from, float (&to)[4]) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  to[0] = four.x;
  to[1] = four.y;
  to[2] = four.z;
  to[3] = four.w;
}
__device__ __forceinline__ void store_four(float* to, const float (&from)[4]) {
  *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
}

/// One block per stream (x) and run (y), a thread for four values and their columns, through the rows of the run. Sums
/// need one lane after the other: values pass through shared memory, and a warp adds them.
__global__ void __launch_bounds__(kMostThreads, 1) streams_kernel(StreamParams p) {
  __shared__ __align__(16) float first[kMostHidden];
  __shared__ __align__(16) float second[kMostHidden];
  __shared__ float results[4];
  trigger_next_grid();
  const ConvRun& run = p.runs[blockIdx.y];
  const auto thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const bool live = 4 * thread < p.hidden;  // hidden is a multiple of four
  const int place = live ? 4 * thread : 0;
  const std::int64_t wide = static_cast<std::int64_t>(p.streams) * p.hidden;
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * p.hidden + place;
  float norm_key[4];
  float norm_query[4];
  load_four(p.norm_key + channel, norm_key);
  load_four(p.norm_query + channel, norm_query);
  wait_previous_grid();
  float history[kHistory][4];
#pragma unroll
  for (int i = 0; i < kHistory; ++i) load_four(run.columns + i * wide + channel, history[i]);
#pragma unroll 1
  for (int t = 0; t < run.rows; ++t) {
    const std::int64_t row = run.first_row + t;
    float key[4];
    float query[4];
    float gated[4];
    load_four(p.key + row * wide + channel, key);
    load_four(p.x + row * wide + channel, query);
    load_four(p.value + row * p.hidden + place, gated);
    if (live) {
      store_four(first + place, key);
      store_four(second + place, query);
    }
    __syncthreads();
    if (warp < 2) {
      const float inverse = line_inverse(warp == 0 ? first : second, p, lane);
      if (lane == 0) results[warp] = inverse;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      key[i] = (key[i] * results[0]) * norm_key[i];
      query[i] = (query[i] * results[1]) * norm_query[i];
    }
    if (live) {
      store_four(first + place, key);
      store_four(second + place, query);
    }
    __syncthreads();
    if (warp == 0) {
      const float d = line_dot(first, second, p.hidden, lane) / p.root;
      const float magnitude = canon_abs(d) > 1e-6F ? canon_abs(d) : 1e-6F;
      const float rooted = canon_sqrt(magnitude);
      const float signed_root = d > 0.0F ? rooted : (d < 0.0F ? -rooted : d * 0.0F);
      if (lane == 0) results[2] = canon_sigmoid(signed_root);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) gated[i] = results[2] * gated[i];
    if (live) store_four(first + place, gated);
    __syncthreads();
    if (warp == 0) {
      const float inverse = line_inverse(first, p, lane);
      if (lane == 0) results[3] = inverse;
    }
    float x[4];
    float normed[4];
    load_four(p.x + row * wide + channel, x);
    load_four(p.norm_conv + channel, normed);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      normed[i] = (gated[i] * results[3]) * normed[i];
      float weight[kTaps];
      load_four(p.conv + (channel + i) * kTaps, weight);
      float sum = canon_fma(weight[0], history[0][i], 0.0F);
      sum = canon_fma(weight[1], history[kStep][i], sum);
      sum = canon_fma(weight[2], history[2 * kStep][i], sum);
      sum = canon_fma(weight[3], normed[i], sum);
      x[i] += gated[i] + canon_silu(sum);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j + 1 < kHistory; ++j) history[j][i] = history[j + 1][i];
      history[kHistory - 1][i] = normed[i];
    }
    if (!live) continue;
    store_four(p.x + row * wide + channel, x);
    if (run.captured != nullptr) store_four(run.captured + t * wide + channel, normed);
  }
  if (!live || run.captured != nullptr) return;
#pragma unroll
  for (int i = 0; i < kHistory; ++i) store_four(run.columns + i * wide + channel, history[i]);
}

}  // namespace

bool ngram_few_takes(const NgramLayer& layer, const ConvShape& conv, std::int64_t rows) {
  const DenseWeights& key = *layer.key;
  const DenseWeights& value = *layer.value;
  const std::size_t shared = static_cast<std::size_t>(kMostWarps * kDepth * key.chunks()) * 512 +
                             static_cast<std::size_t>(kNgramRows * key.cols) * sizeof(float);
  return rows <= kNgramRows && !key.wide && !value.wide && key.count == 1 && value.count == 1 && key.cols % 256 == 0 &&
         shared <= kMostShared && layer.hidden % 4 == 0 && layer.hidden <= kMostHidden && conv.kernel == kTaps &&
         conv.step == kStep;
}

void ngram_few(Queue& queue, const NgramLayer& layer, const float* e, std::span<const ConvRun> runs, std::int64_t rows,
               float* key, float* value, float* x) {
  ProjectParams p{};
  p.key = static_cast<const uint4*>(layer.key->data);
  p.value = static_cast<const uint4*>(layer.value->data);
  p.key_out = key;
  p.value_out = value;
  p.x = e;
  p.key_rows = static_cast<int>(layer.key->rows);
  p.rows = p.key_rows + static_cast<int>(layer.value->rows);
  p.cols = static_cast<int>(layer.key->cols);
  p.chunks = static_cast<int>(layer.key->chunks());
  p.tokens = static_cast<int>(rows);
  const int room = queue.multiprocessors();
  const int rounds = (p.rows + room * kMostWarps - 1) / (room * kMostWarps);
  const int warps = (p.rows + room * rounds - 1) / (room * rounds);
  const Extent grid{static_cast<unsigned>(std::min(room, (p.rows + warps - 1) / warps)), 1, 1};
  const std::size_t shared = static_cast<std::size_t>(warps * kDepth * p.chunks) * 512 +
                             static_cast<std::size_t>(p.tokens * p.cols) * sizeof(float);
  launch(queue, rows == 1 ? project_kernel<1> : project_kernel<kNgramRows>, grid,
         {static_cast<unsigned>(32 * warps), 1, 1}, shared, p);
  StreamParams s{};
  s.key = key;
  s.value = value;
  s.norm_key = layer.norm_key;
  s.norm_query = layer.norm_query;
  s.norm_conv = layer.norm_conv;
  s.conv = layer.conv;
  s.x = x;
  s.streams = layer.streams;
  s.hidden = layer.hidden;
  s.eps = layer.eps;
  s.root = canon_sqrt(static_cast<float>(layer.hidden));
  std::copy(runs.begin(), runs.end(), s.runs);
  const unsigned threads = blocks_for(std::max(layer.hidden, 256), 128) * 32;
  launch(queue, streams_kernel, {static_cast<unsigned>(layer.streams), static_cast<unsigned>(runs.size()), 1},
         {threads, 1, 1}, 0, s);
}

}  // namespace lockstep::kernels::cuda
