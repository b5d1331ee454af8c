// Unquantised products of some activation rows with a few long rows of weights (docs/numerics.md N4).
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/tiles.hpp"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kBlockRows = 4;  ///< output rows of a block, one a warp
constexpr int kTokens = 8;     ///< activation rows of a block
constexpr int kThreads = 32 * kBlockRows;
constexpr int kChunk = 256;  ///< inputs that arrive together
constexpr int kStages = 4;
constexpr std::int64_t kLeastChunks = 8;
constexpr std::int64_t kLeastTokens = 5;
constexpr std::int64_t kMostBlocks = 2048;

struct LongMatrix {
  const uint4* weights;
  float* out;
  int rows;
};

struct LongParams {
  LongMatrix matrices[2];
  int first_blocks;  ///< of the first matrix
  int cols, chunks, tokens;
  const float* x;
};

struct Stage {
  uint4 weights[kBlockRows][32];
  float x[kTokens][kChunk];
};

__device__ __forceinline__ float weight_of(const uint4& w, int step) {
  const unsigned word = step / 2 == 0 ? w.x : (step / 2 == 1 ? w.y : (step / 2 == 2 ? w.z : w.w));
  return bits_float(step % 2 == 0 ? word << 16 : word & 0xffff0000U);
}

/// Blocks: x covers output rows, y tokens. Lane j of a warp is lane j of fold32.
__global__ void __launch_bounds__(kThreads) dense_long_kernel(LongParams p) {
  extern __shared__ uint4 memory[];
  auto* stages = reinterpret_cast<Stage*>(memory);
  trigger_next_grid();
  wait_previous_grid();
  const bool second = static_cast<int>(blockIdx.x) >= p.first_blocks;
  const LongMatrix m = second ? p.matrices[1] : p.matrices[0];
  const int row0 = (static_cast<int>(blockIdx.x) - (second ? p.first_blocks : 0)) * kBlockRows;
  const int token0 = static_cast<int>(blockIdx.y) * kTokens;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int row = row0 + warp < m.rows ? row0 + warp : m.rows - 1;
  const uint4* weights = m.weights + static_cast<std::int64_t>(row) * p.chunks * 32 + lane;
  const auto fetch = [&](int chunk) {
    if (chunk < p.chunks) {
      Stage& to = stages[chunk % kStages];
      copy_soon(&to.weights[warp][lane], weights + chunk * 32);
      constexpr int kPieces = kChunk / 4;
#pragma unroll
      for (int i = 0; i < kTokens * kPieces / kThreads; ++i) {
        const int t = thread / kPieces + i * (kThreads / kPieces);
        const int token = token0 + t < p.tokens ? token0 + t : p.tokens - 1;
        copy_soon(&to.x[t][thread % kPieces * 4],
                  p.x + static_cast<std::int64_t>(token) * p.cols + chunk * kChunk + thread % kPieces * 4);
      }
    }
    copies_made();
  };
#pragma unroll
  for (int s = 0; s + 1 < kStages; ++s) fetch(s);
  float sums[kTokens];
#pragma unroll
  for (int t = 0; t < kTokens; ++t) sums[t] = 0.0F;
#pragma unroll 1
  for (int chunk = 0; chunk < p.chunks; ++chunk) {
    wait_copies<kStages - 2>();
    __syncthreads();
    fetch(chunk + kStages - 1);
    const Stage& stage = stages[chunk % kStages];
    const uint4 w = stage.weights[warp][lane];
#pragma unroll
    for (int step = 0; step < kChunk / 32; ++step) {
      const float weight = weight_of(w, step);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) sums[t] = canon_fma(weight, stage.x[t][32 * step + lane], sums[t]);
    }
  }
  constexpr int kLanes = 32 / kTokens;  // that hold the same sum
  const float y = fold_transposed(sums, lane);
  const int token = token0 + lane / kLanes;
  if (lane % kLanes == 0 && token < p.tokens && row0 + warp < m.rows) {
    m.out[static_cast<std::int64_t>(token) * m.rows + row] = y;
  }
}

}  // namespace

bool dense_long_takes(const DenseWeights& weights, std::int64_t x_rows) {
  return !weights.wide && weights.cols % kChunk == 0 && weights.chunks() >= kLeastChunks && x_rows >= kLeastTokens &&
         static_cast<std::int64_t>(blocks_for(weights.rows, kBlockRows)) * blocks_for(x_rows, kTokens) <= kMostBlocks;
}

void dense_long(Queue& queue, std::span<const DenseTileProduct> products, const float* x, std::int64_t x_rows) {
  LongParams p{};
  unsigned row_blocks = 0;
  for (std::size_t i = 0; i < products.size(); ++i) {
    const DenseWeights& weights = *products[i].weights;
    auto& matrix = p.matrices[i];  // member by member: what lies between stays zero, since batches are compared
    matrix.weights = static_cast<const uint4*>(weights.data);
    matrix.out = products[i].out;
    matrix.rows = static_cast<int>(weights.rows);
    row_blocks += blocks_for(weights.rows, kBlockRows);
    if (i == 0) p.first_blocks = static_cast<int>(row_blocks);
  }
  const DenseWeights& kind = *products.front().weights;
  p.cols = static_cast<int>(kind.cols);
  p.chunks = static_cast<int>(kind.chunks());
  p.tokens = static_cast<int>(x_rows);
  p.x = x;
  launch(queue, dense_long_kernel, {row_blocks, blocks_for(x_rows, kTokens), 1}, {kThreads, 1, 1},
         kStages * sizeof(Stage), p);
}

}  // namespace lockstep::kernels::cuda
