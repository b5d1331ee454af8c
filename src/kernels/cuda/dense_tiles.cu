// Unquantised products of many activation rows (docs/numerics.md N4).
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tiles.hpp"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kBlockRows = 32;    ///< output rows of a block
constexpr int kBlockTokens = 32;  ///< activation rows of a block
constexpr int kThreads = 256;
constexpr int kRows = 8;     ///< output rows of a warp
constexpr int kTokens = 16;  ///< activation rows of a warp
constexpr int kChunk = 256;  ///< inputs that arrive together
constexpr int kStages = 3;
constexpr std::int64_t kLeastBlocks = 64;

struct TileParams {
  const uint4* weights;
  const float* x;
  float* out;
  std::int64_t out_stride;
  int rows, cols, chunks, tokens;
};

struct Stage {
  uint4 weights[kBlockRows][32];
  float x[kBlockTokens][kChunk];
};

__device__ __forceinline__ void fetch(Stage& to, const TileParams& p, int row0, int token0, int chunk) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < kBlockRows * 32 / kThreads; ++i) {
    const int r = thread / 32 + i * (kThreads / 32);
    const int row = row0 + r < p.rows ? row0 + r : p.rows - 1;
    copy_soon(&to.weights[r][thread % 32],
              p.weights + (static_cast<std::int64_t>(row) * p.chunks + chunk) * 32 + thread % 32);
  }
  constexpr int kPieces = kChunk / 4;
  const int at = chunk * kChunk + thread % kPieces * 4;
  if (at >= p.cols) return;
#pragma unroll
  for (int i = 0; i < kBlockTokens * kPieces / kThreads; ++i) {
    const int t = thread / kPieces + i * (kThreads / kPieces);
    const int token = token0 + t < p.tokens ? token0 + t : p.tokens - 1;
    copy_soon(&to.x[t][thread % kPieces * 4], p.x + static_cast<std::int64_t>(token) * p.cols + at);
  }
}

__device__ __forceinline__ float weight_of(const uint4& w, int step) {
  const unsigned word = step / 2 == 0 ? w.x : (step / 2 == 1 ? w.y : (step / 2 == 2 ? w.z : w.w));
  return bits_float(step % 2 == 0 ? word << 16 : word & 0xffff0000U);
}

/// Lane j of a warp is lane j of fold32 for 8 output rows x 16 tokens. Blocks: x covers output rows, y tokens.
__global__ void __launch_bounds__(kThreads, 1) dense_tiles_kernel(TileParams p) {
  extern __shared__ uint4 memory[];
  auto* stages = reinterpret_cast<Stage*>(memory);
  trigger_next_grid();
  wait_previous_grid();
  const int row0 = static_cast<int>(blockIdx.x) * kBlockRows;
  const int token0 = static_cast<int>(blockIdx.y) * kBlockTokens;
  const int lane = lane_id();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int my_row = warp % 4 * kRows;
  const int my_token = warp / 4 * kTokens;
#pragma unroll
  for (int s = 0; s + 1 < kStages; ++s) {
    if (s < p.chunks) fetch(stages[s], p, row0, token0, s);
    copies_made();
  }
  float sums[kTokens / 4][32];  // [four tokens][row, token]
#pragma unroll
  for (int q = 0; q < kTokens / 4; ++q) {
#pragma unroll
    for (int i = 0; i < 32; ++i) sums[q][i] = 0.0F;
  }
#pragma unroll 1
  for (int chunk = 0; chunk < p.chunks; ++chunk) {
    wait_copies<kStages - 2>();
    __syncthreads();
    if (chunk + kStages - 1 < p.chunks) {
      fetch(stages[(chunk + kStages - 1) % kStages], p, row0, token0, chunk + kStages - 1);
    }
    copies_made();
    const Stage& stage = stages[chunk % kStages];
    uint4 w[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) w[r] = stage.weights[my_row + r][lane];
    const int steps = (p.cols - chunk * kChunk) / 32;
#pragma unroll
    for (int step = 0; step < kChunk / 32; ++step) {
      if (step >= steps) break;
      float values[kTokens];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) values[t] = stage.x[my_token + t][32 * step + lane];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float weight = weight_of(w[r], step);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          sums[t / 4][r * 4 + t % 4] = canon_fma(weight, values[t], sums[t / 4][r * 4 + t % 4]);
        }
      }
    }
  }
#pragma unroll
  for (int q = 0; q < kTokens / 4; ++q) {
    const float y = fold_transposed(sums[q], lane);
    const int row = row0 + my_row + lane / 4;
    const int token = token0 + my_token + q * 4 + lane % 4;
    if (row < p.rows && token < p.tokens) p.out[token * p.out_stride + row] = y;
  }
}

}  // namespace

bool dense_tiles_take(const DenseWeights& weights, std::int64_t x_rows) {
  return !weights.wide && weights.cols % 32 == 0 && weights.rows >= kBlockRows && x_rows >= kBlockTokens &&
         static_cast<std::int64_t>(blocks_for(weights.rows, kBlockRows)) * blocks_for(x_rows, kBlockTokens) >=
             kLeastBlocks;
}

void dense_tiles(Queue& queue, const DenseWeights& weights, const float* x, std::int64_t x_rows, float* out,
                 std::int64_t out_stride) {
  const TileParams p{static_cast<const uint4*>(weights.data),
                     x,
                     out,
                     out_stride,
                     static_cast<int>(weights.rows),
                     static_cast<int>(weights.cols),
                     static_cast<int>(weights.chunks()),
                     static_cast<int>(x_rows)};
  launch(queue, dense_tiles_kernel, {blocks_for(weights.rows, kBlockRows), blocks_for(x_rows, kBlockTokens), 1},
         {kThreads, 1, 1}, kStages * sizeof(Stage), p);
}

}  // namespace lockstep::kernels::cuda
