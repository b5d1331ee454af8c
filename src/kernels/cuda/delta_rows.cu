// What the gated delta rule needs of a prompt's rows (docs/numerics.md N6), in one pass over the projections.
#include "kernels/cuda/delta.hpp"
#include "kernels/cuda/quick_math.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kTaps = 4;
constexpr int kHistory = kTaps - 1;
constexpr int kDim = 128;
constexpr int kPer = kDim / 32;  ///< channels of a lane: lane, lane + 32, ...
constexpr int kBlockRows = 16;   ///< so many read again the three in front of them
constexpr int kBatch = 4;        ///< rows whose channels are on their way at once

struct RowsParams {
  ConvRun runs[kMaxRuns];
  DeltaShape shape;
  const float *x, *weight;
  GateInput gates;
  float *conv, *units, *decay, *beta;
  float q_scale;
};

/// Decay and beta of a block's rows.
__device__ __forceinline__ void make_gates(const RowsParams& p, std::int64_t first, int rows) {
  const int heads = p.shape.heads;
  for (int i = static_cast<int>(threadIdx.x); i < rows * heads; i += 32 * kWarps) {
    const std::int64_t at = first * heads + i;
    const int h = i % heads;
    p.decay[at] = canon_exp(p.gates.neg_a[h] * canon_softplus(p.gates.a[at] + p.gates.dt_bias[h]));
    p.beta[at] = quick_sigmoid(p.gates.b[at]);
  }
}

/// The columns of a lane's channels move on, by the warp that has read them: in ascending time, so that none is
/// overwritten before it is read.
__device__ __forceinline__ void keep_columns(const ConvRun& run, const float* x, std::int64_t channels) {
#pragma unroll
  for (int i = 0; i < kHistory; ++i) {
    const int t = run.rows - kHistory + i;
#pragma unroll
    for (int c = 0; c < kPer; ++c) {
      run.columns[i * channels + 32 * c] =
          t < 0 ? run.columns[(kHistory + t) * channels + 32 * c] : x[t * channels + 32 * c];
    }
  }
}

/// A warp is one vector of q, k or v and goes through kBlockRows rows. Blocks: x such vectors and last the gates, y
/// rows, z runs.
__global__ void __launch_bounds__(32 * kWarps) rows_kernel(RowsParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const DeltaShape& s = p.shape;
  ConvRun run = p.runs[blockIdx.z];
  const int begin = static_cast<int>(blockIdx.y) * kBlockRows;
  if (begin >= run.rows) return;
  const int rows = run.rows - begin < kBlockRows ? run.rows - begin : kBlockRows;
  if (blockIdx.x + 1 == gridDim.x) {
    make_gates(p, run.first_row + begin, rows);
    return;
  }
  const int vector = warp_item();
  const int kinds = 2 * s.key_heads;  // vectors of q and k
  if (vector >= kinds + s.heads) return;
  const int lane = lane_id();
  const std::int64_t channels = s.channels();
  const std::int64_t channel = static_cast<std::int64_t>(vector) * kDim + lane;
  const bool is_unit = vector < kinds;
  const float scale = vector < s.key_heads ? p.q_scale : 1.0F;
  const float* x = p.x + run.first_row * channels + channel;
  run.columns += channel;
  float4 weight[kPer];
  float window[kHistory + kBatch][kPer];
#pragma unroll
  for (int c = 0; c < kPer; ++c) {
    weight[c] = reinterpret_cast<const float4*>(p.weight)[channel + 32 * c];
#pragma unroll
    for (int j = 0; j < kHistory; ++j) {
      const int t = begin - kHistory + j;
      window[j][c] = t < 0 ? run.columns[(kHistory + t) * channels + 32 * c] : x[t * channels + 32 * c];
    }
  }
  const std::int64_t row = run.first_row + begin;
  float* out = is_unit ? p.units + row * 2 * s.key_size() + channel : p.conv + row * channels + channel;
  const std::int64_t out_row = is_unit ? 2 * s.key_size() : channels;
#pragma unroll 1
  for (int first = 0; first < rows; first += kBatch) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
#pragma unroll
      for (int c = 0; c < kPer; ++c) {
        window[kHistory + i][c] = first + i < rows ? x[(begin + first + i) * channels + 32 * c] : 0.0F;
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const bool there = first + i < rows;
      float value[kPer];
      float sum = 0.0F;
#pragma unroll
      for (int c = 0; c < kPer; ++c) {
        float y = canon_fma(weight[c].x, window[i][c], 0.0F);
        y = canon_fma(weight[c].y, window[i + 1][c], y);
        y = canon_fma(weight[c].z, window[i + 2][c], y);
        y = canon_fma(weight[c].w, window[i + 3][c], y);
        value[c] = quick_silu(y);
        sum = canon_fma(value[c], value[c], sum);
      }
      if (is_unit) {
        const float inverse = canon_rsqrt(fold_lanes(sum) + 1e-6F);
#pragma unroll
        for (int c = 0; c < kPer; ++c) value[c] = (value[c] * inverse) * scale;
      }
#pragma unroll
      for (int c = 0; c < kPer; ++c) {
        if (there) out[32 * c] = value[c];
        if (there && run.captured != nullptr) {
          run.captured[(begin + first + i) * channels + channel + 32 * c] = window[kHistory + i][c];
        }
      }
      out += out_row;
    }
#pragma unroll
    for (int j = 0; j < kHistory; ++j) {
#pragma unroll
      for (int c = 0; c < kPer; ++c) window[j][c] = window[kBatch + j][c];
    }
  }
  if (begin == 0 && run.captured == nullptr) keep_columns(run, x, channels);
}

}  // namespace

bool delta_rows_takes(const DeltaShape& shape, int kernel) {
  return kernel == kTaps && shape.key_dim == kDim && shape.value_dim == kDim;
}

void delta_rows(Queue& queue, std::span<const ConvRun> runs, const DeltaShape& shape, const float* qkv,
                const float* weight, const GateInput& gates, float* conv, float* units, float* decay, float* beta) {
  while (!runs.empty()) {
    RowsParams p{};
    unsigned count = 0;
    std::int64_t most_rows = 0;
    for (const ConvRun& run : runs.first(runs.size() < kMaxRuns ? runs.size() : kMaxRuns)) {
      p.runs[count++] = run;
      most_rows = run.rows > most_rows ? run.rows : most_rows;
    }
    runs = runs.subspan(count);
    p.shape = shape;
    p.x = qkv;
    p.weight = weight;
    p.gates = gates;
    p.conv = conv;
    p.units = units;
    p.decay = decay;
    p.beta = beta;
    p.q_scale = 1.0F / canon_sqrt(static_cast<float>(kDim));
    const unsigned vectors = blocks_for(2 * shape.key_heads + shape.heads, kWarps);
    launch(queue, rows_kernel, {vectors + 1, blocks_for(most_rows, kBlockRows), count}, {32 * kWarps, 1, 1}, 0, p);
  }
}

}  // namespace lockstep::kernels::cuda
