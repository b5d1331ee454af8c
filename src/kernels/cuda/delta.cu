#include "kernels/cuda/delta.hpp"

#include <algorithm>

#include "kernels/cuda/device.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct ConvParams {
  ConvRun runs[kMaxRuns];
  int count;
  std::int64_t channels;
  int kernel, step, first_row;
  const float *x, *weight;
  float* out;
};

/// Column of time t relative to the run's first row.
__device__ __forceinline__ float column(const float* columns, const float* rows, std::int64_t t, std::int64_t history,
                                        std::int64_t channels) {
  return t < 0 ? columns[(history + t) * channels] : rows[t * channels];
}

/// Blocks in y are rows, threads channels.
__global__ void conv_kernel(ConvParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t channel = thread_item();
  const int row = p.first_row + static_cast<int>(blockIdx.y);
  if (channel >= p.channels) return;
  int r = 0;
  while (row >= p.runs[r].first_row + p.runs[r].rows) ++r;
  const std::int64_t history = static_cast<std::int64_t>(p.kernel - 1) * p.step;
  const float* columns = p.runs[r].columns + channel;
  const float* rows = p.x + p.runs[r].first_row * p.channels + channel;
  const std::int64_t t = row - p.runs[r].first_row;
  float sum = 0.0F;
  for (int j = 0; j < p.kernel; ++j) {
    const std::int64_t back = static_cast<std::int64_t>(p.kernel - 1 - j) * p.step;
    sum = canon_fma(p.weight[channel * p.kernel + j], column(columns, rows, t - back, history, p.channels), sum);
  }
  p.out[row * p.channels + channel] = canon_silu(sum);
}

constexpr int kConvTaps = 4;
constexpr int kConvRows = 8;

/// Four taps in consecutive rows: a thread is a channel and goes through kConvRows rows. Blocks in y are such rows.
__global__ void conv_rows_kernel(ConvParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t channel = thread_item();
  if (channel >= p.channels) return;
  const int end = p.runs[p.count - 1].first_row + p.runs[p.count - 1].rows;
  const int first = p.first_row + static_cast<int>(blockIdx.y) * kConvRows;
  const float4 weight = *reinterpret_cast<const float4*>(p.weight + channel * kConvTaps);
  const float* x = p.x + first * p.channels + channel;
  float* out = p.out + first * p.channels + channel;
  float values[kConvRows];
#pragma unroll
  for (int i = 0; i < kConvRows; ++i) values[i] = first + i < end ? x[i * p.channels] : 0.0F;
  int r = 0;
  while (first >= p.runs[r].first_row + p.runs[r].rows) ++r;
  float taps[kConvTaps];
  bool fresh = true;
#pragma unroll
  for (int i = 0; i < kConvRows; ++i) {
    if (first + i >= end) break;
    if (first + i >= p.runs[r].first_row + p.runs[r].rows) {
      ++r;
      fresh = true;
    }
    if (fresh) {
      const std::int64_t t = first + i - p.runs[r].first_row;
      const float* rows = p.x + p.runs[r].first_row * p.channels + channel;
#pragma unroll
      for (int j = 1; j < kConvTaps; ++j) {
        taps[j] = column(p.runs[r].columns + channel, rows, t - kConvTaps + j, kConvTaps - 1, p.channels);
      }
      fresh = false;
    }
#pragma unroll
    for (int j = 0; j + 1 < kConvTaps; ++j) taps[j] = taps[j + 1];
    taps[kConvTaps - 1] = values[i];
    float sum = canon_fma(weight.x, taps[0], 0.0F);
    sum = canon_fma(weight.y, taps[1], sum);
    sum = canon_fma(weight.z, taps[2], sum);
    sum = canon_fma(weight.w, taps[3], sum);
    out[i * p.channels] = canon_silu(sum);
  }
}

/// Blocks in y are runs, threads channels: a channel's columns move in ascending time, so none is overwritten before it
/// is read.
__global__ void keep_kernel(ConvParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t channel = thread_item();
  if (channel >= p.channels) return;
  const ConvRun& run = p.runs[blockIdx.y];
  const float* rows = p.x + run.first_row * p.channels + channel;
  if (run.captured != nullptr) {
    for (std::int64_t t = 0; t < run.rows; ++t) run.captured[t * p.channels + channel] = rows[t * p.channels];
    return;
  }
  const std::int64_t history = static_cast<std::int64_t>(p.kernel - 1) * p.step;
  float* columns = run.columns + channel;
  for (std::int64_t i = 0; i < history; ++i) {
    columns[i * p.channels] = column(columns, rows, run.rows - history + i, history, p.channels);
  }
}

struct CommitParams {
  float* columns;
  const float* captured;
  std::int64_t history, channels, keep;
};

__global__ void commit_kernel(CommitParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t channel = thread_item();
  if (channel >= p.channels) return;
  float* columns = p.columns + channel;
  for (std::int64_t i = 0; i < p.history; ++i) {
    columns[i * p.channels] = column(columns, p.captured + channel, p.keep - p.history + i, p.history, p.channels);
  }
}

struct UnitParams {
  DeltaShape shape;
  const float* conv;
  float* units;
  int items;  ///< rows * 2 * key heads
  float q_scale;
};

/// One warp per row, kind (q, k) and key head.
__global__ void unit_kernel(UnitParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const int item = warp_item();
  if (item >= p.items) return;
  const int lane = lane_id();
  const int n = p.shape.key_dim;
  const int head = item % p.shape.key_heads;
  const int kind = item / p.shape.key_heads % 2;
  const std::int64_t row = item / p.shape.key_heads / 2;
  const std::int64_t at = kind * p.shape.key_size() + static_cast<std::int64_t>(head) * n;
  const float* x = p.conv + row * p.shape.channels() + at;
  float* out = p.units + row * 2 * p.shape.key_size() + at;
  const float inverse = canon_rsqrt(warp_dot(x, x, n, lane) + 1e-6F);
  const float scale = kind == 0 ? p.q_scale : 1.0F;
  for (int i = lane; i < n; i += 32) out[i] = (x[i] * inverse) * scale;
}

struct GateParams {
  const float *a, *b, *neg_a, *dt_bias;
  float *decay, *beta;
  std::int64_t items, heads;
};

__global__ void gates_kernel(GateParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t item = thread_item();
  if (item >= p.items) return;
  const std::int64_t h = item % p.heads;
  p.decay[item] = canon_exp(p.neg_a[h] * canon_softplus(p.a[item] + p.dt_bias[h]));
  p.beta[item] = canon_sigmoid(p.b[item]);
}

constexpr int kTaps = 4;
constexpr std::int64_t kFewRows = 8;
constexpr int kMostVector = 256;

struct PrepareParams {
  ConvRun runs[kMaxRuns];
  DeltaShape shape;
  const float *x, *weight;
  GateInput gates;
  float *conv, *units, *decay, *beta;
  float q_scale;
};

/// Blocks: x the q, k and v vectors and last the gates, y runs. A thread is a channel and goes through the run's rows.
__global__ void __launch_bounds__(kMostVector) prepare_kernel(PrepareParams p) {
  __shared__ float line[kMostVector];
  __shared__ float inverse;
  trigger_next_grid();
  wait_previous_grid();
  const ConvRun& run = p.runs[blockIdx.y];
  const DeltaShape& s = p.shape;
  const int thread = static_cast<int>(threadIdx.x);
  const int vector = static_cast<int>(blockIdx.x);
  if (vector == 2 * s.key_heads + s.heads) {
    for (int i = thread; i < run.rows * s.heads; i += static_cast<int>(blockDim.x)) {
      const std::int64_t at = static_cast<std::int64_t>(run.first_row) * s.heads + i;
      const int h = i % s.heads;
      p.decay[at] = canon_exp(p.gates.neg_a[h] * canon_softplus(p.gates.a[at] + p.gates.dt_bias[h]));
      p.beta[at] = canon_sigmoid(p.gates.b[at]);
    }
    return;
  }
  const bool is_key = vector < 2 * s.key_heads;  // or a query
  const int dim = is_key ? s.key_dim : s.value_dim;
  const std::int64_t first = is_key
                                 ? static_cast<std::int64_t>(vector) * s.key_dim
                                 : 2 * s.key_size() + static_cast<std::int64_t>(vector - 2 * s.key_heads) * s.value_dim;
  const bool live = thread < dim;
  const std::int64_t channel = first + (live ? thread : 0);
  const std::int64_t channels = s.channels();
  float taps[kTaps];
  float weight[kTaps];
#pragma unroll
  for (int j = 0; j < kTaps; ++j) {
    weight[j] = p.weight[channel * kTaps + j];
    if (j + 1 < kTaps) taps[j + 1] = run.columns[j * channels + channel];
  }
  for (int t = 0; t < run.rows; ++t) {
    const std::int64_t row = run.first_row + t;
#pragma unroll
    for (int j = 0; j + 1 < kTaps; ++j) taps[j] = taps[j + 1];
    taps[kTaps - 1] = p.x[row * channels + channel];
    float sum = 0.0F;
#pragma unroll
    for (int j = 0; j < kTaps; ++j) sum = canon_fma(weight[j], taps[j], sum);
    const float value = canon_silu(sum);
    if (live && run.captured != nullptr) run.captured[t * channels + channel] = taps[kTaps - 1];
    if (!is_key) {
      if (live) p.conv[row * channels + channel] = value;
      continue;
    }
    if (live) line[thread] = value;
    __syncthreads();
    if (thread < 32) {
      const float norm = canon_rsqrt(warp_dot(line, line, dim, thread) + 1e-6F);
      if (thread == 0) inverse = norm;
    }
    __syncthreads();
    const float scale = vector < s.key_heads ? p.q_scale : 1.0F;
    if (live) p.units[row * 2 * s.key_size() + channel] = (value * inverse) * scale;
    __syncthreads();
  }
  if (!live || run.captured != nullptr) return;
#pragma unroll
  for (int j = 0; j + 1 < kTaps; ++j) run.columns[j * channels + channel] = taps[j + 1];
}

struct ReplayParams {
  DeltaRun run;
  DeltaShape shape;
  std::int64_t keep;
};

/// One thread per element of the state.
__global__ void replay_kernel(ReplayParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const DeltaShape& s = p.shape;
  const std::int64_t item = thread_item();
  const std::int64_t size = static_cast<std::int64_t>(s.key_dim) * s.value_dim;
  if (item >= s.heads * size) return;
  const std::int64_t head = item / size;
  const std::int64_t key = head / (s.heads / s.key_heads) * s.key_dim + item % size / s.value_dim;
  const std::int64_t value = head * s.value_dim + item % s.value_dim;
  float x = p.run.state[item];
  for (std::int64_t t = 0; t < p.keep; ++t) {
    const float k = p.run.keys[t * s.key_size() + key];
    const float delta = p.run.deltas[t * s.heads * s.value_dim + value];
    x = canon_fma(k, delta, x * p.run.decays[t * s.heads + head]);
  }
  p.run.next_state[item] = x;
}

struct GatedNormParams {
  float* o;
  const float *z, *weight;
  int items, n;
  float eps;
};

__global__ void gated_norm_kernel(GatedNormParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const int item = warp_item();
  if (item >= p.items) return;
  const int lane = lane_id();
  float* o = p.o + static_cast<std::int64_t>(item) * p.n;
  const float* z = p.z + static_cast<std::int64_t>(item) * p.n;
  const float mean = warp_dot(o, o, p.n, lane) / static_cast<float>(p.n);
  const float inverse = canon_rsqrt(mean + p.eps);
  for (int i = lane; i < p.n; i += 32) o[i] = ((o[i] * inverse) * p.weight[i]) * canon_sigmoid(z[i]);
}

}  // namespace

void conv_silu(Queue& queue, std::span<const ConvRun> runs, const ConvShape& shape, const float* x, const float* weight,
               float* out) {
  while (!runs.empty()) {
    ConvParams p{};
    for (const ConvRun& run : runs.first(runs.size() < kMaxRuns ? runs.size() : kMaxRuns)) p.runs[p.count++] = run;
    runs = runs.subspan(static_cast<std::size_t>(p.count));
    p.channels = shape.channels;
    p.kernel = shape.kernel;
    p.step = shape.step;
    p.first_row = p.runs[0].first_row;
    p.x = x;
    p.weight = weight;
    p.out = out;
    const ConvRun& last = p.runs[p.count - 1];
    const auto rows = static_cast<unsigned>(last.first_row + last.rows - p.first_row);
    const unsigned blocks = blocks_for(p.channels, 256);
    if (p.kernel == kConvTaps && p.step == 1) {
      launch(queue, conv_rows_kernel, {blocks, blocks_for(rows, kConvRows), 1}, {256, 1, 1}, 0, p);
    } else {
      launch(queue, conv_kernel, {blocks, rows, 1}, {256, 1, 1}, 0, p);
    }
    launch(queue, keep_kernel, {blocks, static_cast<unsigned>(p.count), 1}, {256, 1, 1}, 0, p);
  }
}

void commit_conv(Queue& queue, float* columns, const float* captured, std::int64_t history, std::int64_t channels,
                 std::int64_t keep) {
  launch_threads(queue, commit_kernel, channels, CommitParams{columns, captured, history, channels, keep});
}

void delta_units(Queue& queue, const DeltaShape& shape, const float* conv, std::int64_t rows, float* units) {
  const float q_scale = 1.0F / canon_sqrt(static_cast<float>(shape.key_dim));
  const UnitParams p{shape, conv, units, static_cast<int>(rows * 2 * shape.key_heads), q_scale};
  launch_warps(queue, unit_kernel, p.items, p);
}

void delta_gates(Queue& queue, const float* a, const float* b, const float* neg_a, const float* dt_bias,
                 std::int64_t rows, std::int64_t heads, float* decay, float* beta) {
  launch_threads(queue, gates_kernel, rows * heads, GateParams{a, b, neg_a, dt_bias, decay, beta, rows * heads, heads});
}

bool delta_prepare_takes(std::span<const ConvRun> runs, const DeltaShape& shape, int kernel) {
  const bool few = std::all_of(runs.begin(), runs.end(), [](const ConvRun& run) { return run.rows <= kFewRows; });
  return few && kernel == kTaps && shape.key_dim <= kMostVector && shape.value_dim <= kMostVector;
}

void delta_prepare(Queue& queue, std::span<const ConvRun> runs, const DeltaShape& shape, const float* qkv,
                   const float* weight, const GateInput& gates, float* conv, float* units, float* decay, float* beta) {
  while (!runs.empty()) {
    PrepareParams p{};
    unsigned count = 0;
    for (const ConvRun& run : runs.first(runs.size() < kMaxRuns ? runs.size() : kMaxRuns)) p.runs[count++] = run;
    runs = runs.subspan(count);
    p.shape = shape;
    p.x = qkv;
    p.weight = weight;
    p.gates = gates;
    p.conv = conv;
    p.units = units;
    p.decay = decay;
    p.beta = beta;
    p.q_scale = 1.0F / canon_sqrt(static_cast<float>(shape.key_dim));
    const int most = shape.key_dim > shape.value_dim ? shape.key_dim : shape.value_dim;
    const auto vectors = static_cast<unsigned>(2 * shape.key_heads + shape.heads + 1);
    launch(queue, prepare_kernel, {vectors, count, 1}, {static_cast<unsigned>((most + 31) / 32 * 32), 1, 1}, 0, p);
  }
}

void delta_replay(Queue& queue, const DeltaRun& run, const DeltaShape& shape, std::int64_t keep) {
  launch_threads(queue, replay_kernel, static_cast<std::int64_t>(shape.heads) * shape.key_dim * shape.value_dim,
                 ReplayParams{run, shape, keep});
}

void gated_norm(Queue& queue, float* o, const float* z, const float* weight, std::int64_t items, std::int64_t n,
                float eps) {
  GatedNormParams p{};  // no byte of it undefined: batches are compared
  p.o = o;
  p.z = z;
  p.weight = weight;
  p.items = static_cast<int>(items);
  p.n = static_cast<int>(n);
  p.eps = eps;
  launch_warps(queue, gated_norm_kernel, items, p);
}

}  // namespace lockstep::kernels::cuda
