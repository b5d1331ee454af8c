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

/// Where a lane finds its operands in a stage. Lane j of a warp is lane j of fold32 for 8 output rows x 16 tokens; its
/// rows and, of every four, its tokens are permuted by its number, as fold_permuted() wants it.
struct Places {
  int weights[kRows];  ///< in 16 bytes
  int x[4];            ///< in floats

  __device__ __forceinline__ Places(int my_row, int my_token, int lane) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) weights[r] = (my_row + (r ^ (lane / 4))) * 32 + lane;
#pragma unroll
    for (int t = 0; t < 4; ++t) x[t] = (my_token + (t ^ (lane % 4))) * kChunk + lane;
  }
};

__device__ __forceinline__ void load_tokens(const Stage& stage, const Places& at, int step, float (&values)[kTokens]) {
#pragma unroll
  for (int t = 0; t < kTokens; ++t) values[t] = (&stage.x[0][0])[at.x[t % 4] + t / 4 * (4 * kChunk) + 32 * step];
}

/// One step of 32 inputs. Rows inside tokens: an activation stays where it is for eight products.
__device__ __forceinline__ void add_step(const float (&weights)[kRows], const float (&values)[kTokens],
                                         float (&sums)[kTokens / 4][32]) {
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      sums[t / 4][r * 4 + t % 4] = canon_fma(weights[r], values[t], sums[t / 4][r * 4 + t % 4]);
    }
  }
}

/// The first kSteps * 32 inputs of a chunk.
template <int kSteps>
__device__ __forceinline__ void add_chunk(const Stage& stage, const Places& at, float (&sums)[kTokens / 4][32]) {
  uint4 w[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) w[r] = (&stage.weights[0][0])[at.weights[r]];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    float values[kTokens];
    load_tokens(stage, at, step, values);
    float weights[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) weights[r] = weight_of(w[r], step);
    add_step(weights, values, sums);
  }
}

/// The last chunk, of `steps` times 32 inputs.
__device__ __forceinline__ void add_rest(const Stage& stage, const Places& at, int steps,
                                         float (&sums)[kTokens / 4][32]) {
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    float values[kTokens];
    load_tokens(stage, at, step, values);
    float weights[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      weights[r] = bf16_to_float(reinterpret_cast<const std::uint16_t*>(&stage.weights[0][0] + at.weights[r])[step]);
    }
    add_step(weights, values, sums);
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
  const Places at(my_row, my_token, lane);
  int next_chunk = 0;  // of the next fetch
  int next_token = first_token;
  const auto fetch_item = [&](int item) {
    if (item < items) {
      fetch(stages[item % kStages], p, matrix, row0, next_token, next_chunk);
      if (++next_chunk == p.chunks) {
        next_chunk = 0;
        next_token += kBlockTokens;
      }
    }
    copies_made();
  };
#pragma unroll
  for (int s = 0; s + 1 < kStages; ++s) fetch_item(s);
  float sums[kTokens / 4][32];  // [four tokens][row, token]
#pragma unroll
  for (int i = 0; i < 8 * kTokens; ++i) sums[i / 32][i % 32] = 0.0F;
  int chunk = -1;
  int token0 = first_token;
#pragma unroll 1
  for (int item = 0; item < items; ++item) {
    if (++chunk == p.chunks) {
      chunk = 0;
      token0 += kBlockTokens;
    }
    wait_copies<kStages - 2>();
    __syncthreads();
    fetch_item(item + kStages - 1);
    if (!inside) continue;
    const Stage& stage = stages[item % kStages];
    const int steps = (p.cols - chunk * kChunk) / 32;
    if (steps >= kChunk / 32) {
      add_chunk<kChunk / 32>(stage, at, sums);
    } else if (steps == 2) {
      add_chunk<2>(stage, at, sums);
    } else {
      add_rest(stage, at, steps, sums);
    }
    if (chunk + 1 < p.chunks) continue;
#pragma unroll
    for (int q = 0; q < kTokens / 4; ++q) {
      const float y = fold_permuted(sums[q]);
      const int row = row0 + my_row + lane / 4;
      const int token = token0 + my_token + q * 4 + lane % 4;
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
