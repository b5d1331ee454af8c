// Products of dense weights and f32 activations on CUDA (docs/numerics.md N4).
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/linear.hpp"
#include "kernels/cuda/tiles.hpp"

namespace lockstep::kernels::cuda {
namespace {

struct DenseParams {
  const void* data;
  const float* x;
  float* out;
  std::int64_t out_stride, matrix_bytes;
  int rows, cols, chunks, tokens;
  const ExpertRun* runs;
  const std::int32_t *run_count, *in_rows, *out_rows;
};

/// Eight weights of one lane.
template <bool kWide>
struct DenseChunk {
  uint4 low, high;
  __device__ __forceinline__ void load(const void* row, int chunk, int lane) {
    if constexpr (kWide) {
      const uint4* at = static_cast<const uint4*>(row) + chunk * 64 + lane;
      low = __ldcs(at);
      high = __ldcs(at + 32);
    } else {
      low = __ldcs(static_cast<const uint4*>(row) + chunk * 32 + lane);
    }
  }
  __device__ __forceinline__ float get(int i) const {
    if constexpr (kWide) {
      const uint4& v = i < 4 ? low : high;
      const unsigned bits = i % 4 == 0 ? v.x : (i % 4 == 1 ? v.y : (i % 4 == 2 ? v.z : v.w));
      return bits_float(bits);
    } else {
      const unsigned word = i / 2 == 0 ? low.x : (i / 2 == 1 ? low.y : (i / 2 == 2 ? low.z : low.w));
      return bits_float(i % 2 == 0 ? word << 16 : word & 0xffff0000U);
    }
  }
};

/// One warp per output row; lane j is lane j of fold32. Blocks in z share the activation rows.
template <bool kWide, int kTokens>
__global__ void __launch_bounds__(256) dense_kernel(DenseParams p) {
  constexpr int kAhead = kWide ? 4 : 8;
  trigger_next_grid();
  wait_previous_grid();
  int expert = 0;
  int first = 0;
  int tokens = p.tokens;
  if (p.runs != nullptr) {
    if (static_cast<int>(blockIdx.y) >= *p.run_count) return;
    const ExpertRun run = p.runs[blockIdx.y];
    expert = run.expert;
    first = run.first;
    tokens = run.count;
  }
  const int lane = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y);
  if (row >= p.rows) return;
  const char* weights = static_cast<const char*>(p.data) + expert * p.matrix_bytes +
                        static_cast<std::int64_t>(row) * p.chunks * (kWide ? 1024 : 512);
  for (int base = static_cast<int>(blockIdx.z) * kTokens; base < tokens;
       base += kTokens * static_cast<int>(gridDim.z)) {
    const float* x[kTokens];
    float sums[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const int token = base + t < tokens ? base + t : tokens - 1;
      const std::int64_t from = p.in_rows != nullptr ? p.in_rows[first + token] : first + token;
      x[t] = p.x + from * p.cols + lane;
      sums[t] = 0.0F;
    }
    for (int chunk0 = 0; chunk0 < p.chunks; chunk0 += kAhead) {
      DenseChunk<kWide> w[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (chunk0 + i < p.chunks) w[i].load(weights, chunk0 + i, lane);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int at = (chunk0 + i) * 256;
        if (at + 256 <= p.cols) {
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            const float weight = w[i].get(j);
#pragma unroll
            for (int t = 0; t < kTokens; ++t) sums[t] = canon_fma(weight, x[t][at + 32 * j], sums[t]);
          }
        } else if (at < p.cols) {
#pragma unroll
          for (int j = 0; j < 8; ++j) {
            if (at + 32 * j + lane >= p.cols) continue;
            const float weight = w[i].get(j);
#pragma unroll
            for (int t = 0; t < kTokens; ++t) sums[t] = canon_fma(weight, x[t][at + 32 * j], sums[t]);
          }
        }
      }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float y = fold_lanes(sums[t]);
      if (lane != 0 || base + t >= tokens) continue;
      const std::int64_t to = p.out_rows != nullptr ? p.out_rows[first + base + t] : first + base + t;
      p.out[to * p.out_stride + row] = y;
    }
  }
}

/// Matrices with at most so many rows give too few blocks of a warp a row or a tile.
constexpr int kFewRows = 1024;
constexpr int kTileRows = 8;
constexpr int kTileTokens = 8;

/// Many activation rows: a warp keeps 8 output rows x 8 tokens, so that a
/// weight serves eight products and so does an activation. Blocks: x covers
/// output rows, y tokens.
template <bool kWide>
__global__ void __launch_bounds__(128) dense_tile_kernel(DenseParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const int lane = static_cast<int>(threadIdx.x);
  const int row0 = static_cast<int>(blockIdx.x * blockDim.y + threadIdx.y) * kTileRows;
  const int token0 = static_cast<int>(blockIdx.y) * kTileTokens;
  if (row0 >= p.rows) return;
  const std::int64_t row_bytes = static_cast<std::int64_t>(p.chunks) * (kWide ? 1024 : 512);
  const char* weights[kTileRows];
  const float* x[kTileTokens];
#pragma unroll
  for (int r = 0; r < kTileRows; ++r) {
    const int row = row0 + r < p.rows ? row0 + r : p.rows - 1;
    weights[r] = static_cast<const char*>(p.data) + row * row_bytes;
  }
#pragma unroll
  for (int t = 0; t < kTileTokens; ++t) {
    const int token = token0 + t < p.tokens ? token0 + t : p.tokens - 1;
    x[t] = p.x + static_cast<std::int64_t>(token) * p.cols + lane;
  }
  float sums[kTileTokens / 4][32];  // [tokens of a quarter][row, token]
#pragma unroll
  for (int q = 0; q < kTileTokens / 4; ++q) {
#pragma unroll
    for (int i = 0; i < 32; ++i) sums[q][i] = 0.0F;
  }
  for (int chunk = 0; chunk < p.chunks; ++chunk) {
    DenseChunk<kWide> w[kTileRows];
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) w[r].load(weights[r], chunk, lane);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int at = chunk * 256 + 32 * j;
      if (at + lane >= p.cols) continue;
      float values[kTileTokens];
#pragma unroll
      for (int t = 0; t < kTileTokens; ++t) values[t] = x[t][at];
#pragma unroll
      for (int r = 0; r < kTileRows; ++r) {
        const float weight = w[r].get(j);
#pragma unroll
        for (int t = 0; t < kTileTokens; ++t) {
          sums[t / 4][r * 4 + t % 4] = canon_fma(weight, values[t], sums[t / 4][r * 4 + t % 4]);
        }
      }
    }
  }
#pragma unroll
  for (int q = 0; q < kTileTokens / 4; ++q) {
    const float y = fold_transposed(sums[q], lane);
    const int row = row0 + lane / 4;
    const int token = token0 + q * 4 + lane % 4;
    if (row < p.rows && token < p.tokens) p.out[token * p.out_stride + row] = y;
  }
}

}  // namespace

void dense_product(Queue& queue, const DenseWeights& weights, const float* x, std::int64_t x_rows,
                   const Selection* selection, float* out, std::int64_t out_stride) {
  DenseParams p{};
  p.data = weights.data;
  p.x = x;
  p.out = out;
  p.out_stride = out_stride;
  p.matrix_bytes = static_cast<std::int64_t>(weights.matrix_bytes());
  p.rows = static_cast<int>(weights.rows);
  p.cols = static_cast<int>(weights.cols);
  p.chunks = static_cast<int>(weights.chunks());
  p.tokens = static_cast<int>(x_rows);
  unsigned grid_y = 1;
  if (selection != nullptr) {
    p.runs = selection->runs;
    p.run_count = selection->run_count;
    p.in_rows = selection->in_rows;
    p.out_rows = selection->out_rows;
    grid_y = static_cast<unsigned>(selection->most_runs);
  }
  if (selection == nullptr && out_stride == weights.rows && dense_tiles_take(weights, x_rows)) {
    const DenseTileProduct product{&weights, out};
    dense_tiles(queue, {&product, 1}, x, x_rows);
    return;
  }
  if (selection == nullptr && out_stride == weights.rows && p.rows <= kFewRows && dense_long_takes(weights, x_rows)) {
    const DenseTileProduct product{&weights, out};
    dense_long(queue, {&product, 1}, x, x_rows);
    return;
  }
  const int warps = p.rows >= 4096 ? 8 : (p.rows >= 1024 ? 4 : 2);
  const Extent grid{blocks_for(p.rows, warps), grid_y, selection == nullptr ? blocks_for(x_rows, 4) : 1};
  const Extent block{32, static_cast<unsigned>(warps), 1};
  if (selection == nullptr && x_rows >= kTileTokens && p.rows >= 4 * kTileRows) {
    const Extent tiles{blocks_for(p.rows, 4 * kTileRows), blocks_for(x_rows, kTileTokens), 1};
    launch(queue, weights.wide ? dense_tile_kernel<true> : dense_tile_kernel<false>, tiles, {32, 4, 1}, 0, p);
    return;
  }
  const bool one = x_rows == 1;
  if (weights.wide) {
    launch(queue, one ? dense_kernel<true, 1> : dense_kernel<true, 4>, grid, block, 0, p);
  } else {
    launch(queue, one ? dense_kernel<false, 1> : dense_kernel<false, 4>, grid, block, 0, p);
  }
}

}  // namespace lockstep::kernels::cuda
