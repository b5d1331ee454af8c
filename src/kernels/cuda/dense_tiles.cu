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

/// Chunks that a block goes through at least, where there are so many: short products go on with the next tokens, so
/// that their loads and the sums of their lanes overlap.
constexpr int kLeastChunks = 16;

struct TileMatrix {
  const uint4* weights;
  float* out;
  int rows;
};

struct TileParams {
  TileMatrix matrices[2];
  int first_blocks;  ///< of the first matrix
  const float* x;
  int cols, chunks, tokens, repeat;
};

struct Stage {
  uint4 weights[kBlockRows][32];
  float x[kBlockTokens][kChunk];
};

__device__ __forceinline__ void fetch(Stage& to, const TileParams& p, const TileMatrix& m, int row0, int token0,
                                      int chunk) {
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < kBlockRows * 32 / kThreads; ++i) {
    const int r = thread / 32 + i * (kThreads / 32);
    const int row = row0 + r < m.rows ? row0 + r : m.rows - 1;
    copy_soon(&to.weights[r][thread % 32],
              m.weights + (static_cast<std::int64_t>(row) * p.chunks + chunk) * 32 + thread % 32);
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

/// Lane j of a warp is lane j of fold32 for 8 output rows x 16 tokens. The first kSteps * 32 inputs of a chunk.
template <int kSteps>
__device__ __forceinline__ void add_chunk(const Stage& stage, int my_row, int my_token, int lane,
                                          float (&sums)[kTokens / 4][32]) {
  uint4 w[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) w[r] = stage.weights[my_row + r][lane];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
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

/// The last chunk, of `steps` times 32 inputs.
__device__ __forceinline__ void add_rest(const Stage& stage, int steps, int my_row, int my_token, int lane,
                                         float (&sums)[kTokens / 4][32]) {
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    float values[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) values[t] = stage.x[my_token + t][32 * step + lane];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const auto* row = reinterpret_cast<const std::uint16_t*>(&stage.weights[my_row + r][lane]);
      const float weight = bf16_to_float(row[step]);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        sums[t / 4][r * 4 + t % 4] = canon_fma(weight, values[t], sums[t / 4][r * 4 + t % 4]);
      }
    }
  }
}

/// Blocks: x covers output rows, y tokens.
__global__ void __launch_bounds__(kThreads, 1) dense_tiles_kernel(TileParams p) {
  extern __shared__ uint4 memory[];
  auto* stages = reinterpret_cast<Stage*>(memory);
  trigger_next_grid();
  wait_previous_grid();
  const bool second = static_cast<int>(blockIdx.x) >= p.first_blocks;
  const TileMatrix matrix = second ? p.matrices[1] : p.matrices[0];
  const int row0 = (static_cast<int>(blockIdx.x) - (second ? p.first_blocks : 0)) * kBlockRows;
  const int first_token = static_cast<int>(blockIdx.y) * p.repeat * kBlockTokens;
  const int left = (p.tokens - first_token + kBlockTokens - 1) / kBlockTokens;
  const int items = (left < p.repeat ? left : p.repeat) * p.chunks;  // chunks of all tokens, one after the other
  const int lane = lane_id();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int my_row = warp % 4 * kRows;
  const int my_token = warp / 4 * kTokens;
  const bool inside = row0 + my_row < matrix.rows;
  const auto fetch_item = [&](int item) {
    if (item < items) {
      fetch(stages[item % kStages], p, matrix, row0, first_token + item / p.chunks * kBlockTokens, item % p.chunks);
    }
    copies_made();
  };
#pragma unroll
  for (int s = 0; s + 1 < kStages; ++s) fetch_item(s);
  float sums[kTokens / 4][32];  // [four tokens][row, token]
#pragma unroll
  for (int i = 0; i < 8 * kTokens; ++i) sums[i / 32][i % 32] = 0.0F;
#pragma unroll 1
  for (int item = 0; item < items; ++item) {
    wait_copies<kStages - 2>();
    __syncthreads();
    fetch_item(item + kStages - 1);
    if (!inside) continue;
    const Stage& stage = stages[item % kStages];
    const int chunk = item % p.chunks;
    const int steps = (p.cols - chunk * kChunk) / 32;
    if (steps >= kChunk / 32) {
      add_chunk<kChunk / 32>(stage, my_row, my_token, lane, sums);
    } else {
      add_rest(stage, steps, my_row, my_token, lane, sums);
    }
    if (chunk + 1 < p.chunks) continue;
#pragma unroll
    for (int q = 0; q < kTokens / 4; ++q) {
      const float y = fold_transposed(sums[q], lane);
      const int row = row0 + my_row + lane / 4;
      const int token = first_token + item / p.chunks * kBlockTokens + my_token + q * 4 + lane % 4;
      if (row < matrix.rows && token < p.tokens) matrix.out[static_cast<std::int64_t>(token) * matrix.rows + row] = y;
#pragma unroll
      for (int i = 0; i < 32; ++i) sums[q][i] = 0.0F;
    }
  }
}

}  // namespace

bool dense_tiles_take(const DenseWeights& weights, std::int64_t x_rows) {
  return !weights.wide && weights.cols % 32 == 0 && weights.rows >= kBlockRows && x_rows >= kBlockTokens &&
         static_cast<std::int64_t>(blocks_for(weights.rows, kBlockRows)) * blocks_for(x_rows, kBlockTokens) >=
             kLeastBlocks;
}

void dense_tiles(Queue& queue, std::span<const DenseTileProduct> products, const float* x, std::int64_t x_rows) {
  TileParams p{};
  unsigned row_blocks = 0;
  for (std::size_t i = 0; i < products.size(); ++i) {
    const DenseWeights& weights = *products[i].weights;
    p.matrices[i] = {static_cast<const uint4*>(weights.data), products[i].out, static_cast<int>(weights.rows)};
    row_blocks += blocks_for(weights.rows, kBlockRows);
    if (i == 0) p.first_blocks = static_cast<int>(row_blocks);
  }
  const DenseWeights& kind = *products.front().weights;
  p.x = x;
  p.cols = static_cast<int>(kind.cols);
  p.chunks = static_cast<int>(kind.chunks());
  p.tokens = static_cast<int>(x_rows);
  p.repeat = p.chunks < kLeastChunks ? kLeastChunks / p.chunks : 1;
  const unsigned token_blocks = blocks_for(x_rows, kBlockTokens);
  // Not so often that multiprocessors are left without a block.
  while (p.repeat > 1 && row_blocks * blocks_for(token_blocks, p.repeat) < 4 * kLeastBlocks) p.repeat /= 2;
  launch(queue, dense_tiles_kernel, {row_blocks, blocks_for(token_blocks, p.repeat), 1}, {kThreads, 1, 1},
         kStages * sizeof(Stage), p);
}

}  // namespace lockstep::kernels::cuda
