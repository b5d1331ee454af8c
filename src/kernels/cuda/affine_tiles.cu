// Quantised products of many activation rows (docs/numerics.md N3).
#include "kernels/cuda/affine_tiles.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/tiles.hpp"
#include "numerics/affine.hpp"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kSegmentChunks = kSegmentInputs / 64;
constexpr int kTokens = kTileTokens;
constexpr int kThreads = 256;   ///< warps: four pairs of weight tiles x even and odd eights of tokens
constexpr int kWarpEights = 4;  ///< eights of tokens of a warp
constexpr int kStages = 3;
/// Activation rows of a product, or of an expert on average, from which groups of warps are the better choice.
constexpr std::int64_t kManyTokens = 128, kManyRunRows = 16;
/// Fewer blocks leave multiprocessors idle: products of one tile a block are the better choice.
constexpr std::int64_t kLeastBlocks = 64;
/// Rows that an expert must have on average: below, most of a tile would be empty.
constexpr std::int64_t kLeastRunRows = 4;

/// What arrives together. Of a token's 128 bytes of digits the high ones come first where the token is even, so that
/// the lanes of a load meet all banks.
template <int kPieces>
struct Stage {
  uint4 codes[kBlockTiles][kStageChunks][kPieces][32];
  uint2 pairs[kStageChunks][kBlockTiles][8];
  uint4 digits[kStageChunks][kTokens][2][4];
  float2 steps[kStageChunks][kTokens];
};

template <int kPieces>
struct Shared {
  Stage<kPieces> stages[kStages];
  float totals[2 * kWarpEights * 4][kThreads];  ///< of the segments that are done, each thread its own
};

/// Where a thread's copies of the next stage come from.
template <int kPieces>
struct Source {
  static constexpr int kTileWords = kStageChunks * kPieces * 32;  ///< of a tile in a stage
  static constexpr int kCodes = kBlockTiles * kTileWords / kThreads;
  const uint4* codes[kCodes];
  const uint4* pairs;
  const uint4* digits[2];  ///< of two tokens
  const float2* steps;

  /// `live` tokens, the first of them entry `first` of the list of rows.
  __device__ __forceinline__ void start(const TileParams& p, const TileJob& job, const Place& place, int tile0,
                                        int first, int live) {
    const int thread = static_cast<int>(threadIdx.x);
    const auto tile_of = [&](int tile) { return static_cast<std::int64_t>(tile < job.tiles ? tile : job.tiles - 1); };
#pragma unroll
    for (int i = 0; i < kCodes; ++i) {
      const int item = thread + i * kThreads;
      codes[i] = place.codes + tile_of(tile0 + item / kTileWords) * p.chunks * (32 * kPieces) + item % kTileWords;
    }
    pairs = place.pairs + (tile_of(tile0 + thread / 4 % kBlockTiles) * p.chunks + thread / (4 * kBlockTiles)) * 4 +
            thread % 4;
    const auto row_of = [&](int token) {
      return token < live ? static_cast<std::int64_t>(listed(job.in_rows, first + token)) * p.chunks : 0;
    };
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      digits[i] = job.digits + row_of(thread / 8 + i * (kTokens / 2)) * 8 + thread % 8;
    }
    steps = job.steps + row_of(thread % kTokens) + thread / kTokens;
  }

  /// Starts the copies of the next stage.
  __device__ __forceinline__ void fetch(Stage<kPieces>& to, int live) {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
    for (int i = 0; i < kCodes; ++i) {
      copy_soon(&to.codes[0][0][0][0] + thread + i * kThreads, codes[i]);
      codes[i] += kTileWords;
    }
    if (thread < kStageChunks * kBlockTiles * 4) {
      copy_soon(&to.pairs[0][0][0] + thread * 2, pairs);
      pairs += kStageChunks * 4;
    }
    const int token = thread / 8;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (token + i * (kTokens / 2) < live) {
#pragma unroll
        for (int chunk = 0; chunk < kStageChunks; ++chunk) {
          copy_soon(&to.digits[chunk][token + i * (kTokens / 2)][(thread % 2) ^ (token % 2)][thread % 8 / 2],
                    digits[i] + chunk * 8);
        }
        digits[i] += kStageChunks * 8;
      }
    }
    if (thread < kStageChunks * kTokens && thread % kTokens < live) {
      copy_eight_soon(&to.steps[0][0] + thread, steps);
      steps += kStageChunks;
    }
  }
};

/// The group of one chunk added to a warp's sums: [tile][eight of tokens][{row g, row g + 8} x {token 2j, 2j + 1}].
template <int kBits>
__device__ __forceinline__ void add_group(const Stage<kBits / 4>& from, int chunk, int pair, int odd, int live,
                                          float (&sums)[2][kWarpEights][4]) {
  constexpr int kPieces = kBits / 4;
  const int lane = lane_id();
  const int g = lane / 4;
  const int quad = lane % 4;
  unsigned a[2][2][4];
  float scale[2][2];
  float bias[2][2];
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    uint4 codes[kPieces];
#pragma unroll
    for (int i = 0; i < kPieces; ++i) codes[i] = from.codes[2 * pair + t][chunk][i][lane];
    unpack<kBits>(codes, 0, a[t][0]);
    unpack<kBits>(codes, 1, a[t][1]);
    const uint2 both = from.pairs[chunk][2 * pair + t][g];
    scale[t][0] = bits_float(both.x << 16);
    bias[t][0] = bits_float(both.x & 0xffff0000U);
    scale[t][1] = bits_float(both.y << 16);
    bias[t][1] = bits_float(both.y & 0xffff0000U);
  }
#pragma unroll
  for (int n = 0; n < kWarpEights; ++n) {
    const int token0 = (2 * n + odd) * 8;
    if (token0 >= live) continue;
    const uint4 h = from.digits[chunk][token0 + g][g % 2][quad];
    const uint4 l = from.digits[chunk][token0 + g][1 - g % 2][quad];
    const float4 steps = *reinterpret_cast<const float4*>(&from.steps[chunk][token0 + 2 * quad]);
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      int high[4] = {0, 0, 0, 0};
      int low[4] = {0, 0, 0, 0};
      mma_signed(high, a[t][0], h.x, h.y);
      mma_unsigned(low, a[t][0], l.x, l.y);
      mma_signed(high, a[t][1], h.z, h.w);
      mma_unsigned(low, a[t][1], l.z, l.w);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float step = i % 2 == 0 ? steps.x : steps.z;
        const float total = i % 2 == 0 ? steps.y : steps.w;
        const float dot = static_cast<float>(high[i] * 256 + low[i]);
        sums[t][n][i] += canon_fma(scale[t][i / 2] * step, dot, (bias[t][i / 2] * step) * total);
      }
    }
  }
}

/// 128 output rows of up to 64 activation rows at a time. A warp has 32 rows and every other eight of the tokens.
template <int kBits>
__global__ void __launch_bounds__(kThreads, kBits == 4 ? 2 : 1) affine_tiles_kernel(TileParams p) {
  constexpr int kPieces = kBits / 4;
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<Shared<kPieces>*>(memory);
  trigger_next_grid();
  wait_previous_grid();
  BlockPlace found;
  if (!found.find(p)) return;
  const TileJob& job = p.jobs[found.job];
  const Place& place = found.place;
  const int tile0 = found.tile0;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int pair = warp / 2;
  const int odd = warp % 2;
  const int stages = p.chunks / kStageChunks;
  for (int base = found.base; base < place.count; base += kTokens * job.token_blocks) {
    const int live = place.count - base < kTokens ? place.count - base : kTokens;
    Source<kPieces> source;
    source.start(p, job, place, tile0, place.first + base, live);
    __syncthreads();  // the buffers are free
#pragma unroll
    for (int s = 0; s + 1 < kStages; ++s) {
      if (s < stages) source.fetch(shared.stages[s], live);
      copies_made();
    }
    float sums[2][kWarpEights][4];
#pragma unroll
    for (int i = 0; i < 8 * kWarpEights; ++i) {
      sums[i / (4 * kWarpEights)][i / 4 % kWarpEights][i % 4] = 0.0F;
      shared.totals[i][thread] = 0.0F;
    }
#pragma unroll 1
    for (int s = 0; s < stages; ++s) {
      wait_copies<kStages - 2>();
      __syncthreads();
      if (s + kStages - 1 < stages) source.fetch(shared.stages[(s + kStages - 1) % kStages], live);
      copies_made();
#pragma unroll 1
      for (int chunk = 0; chunk < kStageChunks; ++chunk) {
        const int at = s * kStageChunks + chunk;
        add_group<kBits>(shared.stages[s % kStages], chunk, pair, odd, live, sums);
        if ((at + 1) % kSegmentChunks != 0 && at + 1 < p.chunks) continue;
#pragma unroll
        for (int i = 0; i < 8 * kWarpEights; ++i) {
          float& sum = sums[i / (4 * kWarpEights)][i / 4 % kWarpEights][i % 4];
          shared.totals[i][thread] += sum;
          sum = 0.0F;
        }
      }
    }
    const int row0 = (tile0 + 2 * pair) * 16 + lane_id() / 4;
#pragma unroll
    for (int n = 0; n < kWarpEights; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int token = (2 * n + odd) * 8 + lane_id() % 4 * 2 + c;
        if (token >= live) continue;
        float* out =
            job.out + static_cast<std::int64_t>(listed(job.out_rows, place.first + base + token)) * job.out_stride;
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // tile, half
          if (row0 + 8 * i < job.rows)
            out[row0 + 8 * i] = shared.totals[(i / 2 * kWarpEights + n) * 4 + i % 2 * 2 + c][thread];
        }
      }
    }
  }
}

/// Blocks of one product.
struct TileGrid {
  std::int64_t row_blocks, token_blocks, runs;
  [[nodiscard]] std::int64_t blocks() const { return row_blocks * token_blocks * runs; }
};

TileGrid grid_of(const AffineProduct& product) {
  const std::int64_t row_blocks = blocks_for(product.weights->tiles(), kBlockTiles);
  if (product.selection != nullptr) return {row_blocks, 1, product.selection->most_runs};
  return {row_blocks, blocks_for(product.x->rows, kTokens), 1};
}

/// Whether groups of warps are the better choice.
bool many(const Queue& queue, std::span<const AffineProduct* const> products) {
  if (!queue.clusters() || products.front()->weights->bits != 4) return false;
  for (const AffineProduct* product : products) {
    const Selection* selection = product->selection;
    if (selection != nullptr ? selection->pairs < kManyRunRows * selection->most_runs
                             : product->x->rows < kManyTokens) {
      return false;
    }
  }
  return true;
}

}  // namespace

bool affine_tiles_take(std::span<const AffineProduct* const> products) {
  std::int64_t blocks = 0;
  for (const AffineProduct* product : products) {
    const AffineWeights& weights = *product->weights;
    if (weights.group != 64 || weights.wide_pairs || weights.chunks() % kStageChunks != 0) return false;
    const Selection* selection = product->selection;
    if (selection != nullptr && selection->pairs < kLeastRunRows * selection->most_runs) return false;
    blocks += grid_of(*product).blocks();
  }
  return blocks >= kLeastBlocks;
}

void affine_tiles(Queue& queue, std::span<const AffineProduct* const> products) {
  if (many(queue, products)) {
    affine_groups(queue, products);
    return;
  }
  TileParams p{};
  const AffineWeights& kind = *products.front()->weights;
  p.chunks = static_cast<int>(kind.chunks());
  std::int64_t blocks = 0;
  for (const AffineProduct* product : products) {
    const AffineWeights& weights = *product->weights;
    const Selection* selection = product->selection;
    const TileGrid grid = grid_of(*product);
    TileJob& job = p.jobs[p.job_count++];
    job.codes = static_cast<const uint4*>(weights.codes);
    job.pairs = static_cast<const uint4*>(weights.pairs);
    job.out = product->out;
    job.out_stride = weights.rows;
    job.matrix_codes = static_cast<std::int64_t>(weights.matrix_code_bytes() / 16);
    job.matrix_pairs = static_cast<std::int64_t>(weights.matrix_pair_bytes() / 16);
    job.digits = static_cast<const uint4*>(product->x->digits);
    job.steps = static_cast<const float2*>(product->x->steps);
    job.rows = static_cast<int>(weights.rows);
    job.tiles = static_cast<int>(weights.tiles());
    job.tokens = static_cast<int>(product->x->rows);
    job.first_block = static_cast<int>(blocks);
    job.row_blocks = static_cast<int>(grid.row_blocks);
    job.token_blocks = static_cast<int>(grid.token_blocks);
    if (selection != nullptr) {
      job.runs = selection->runs;
      job.run_count = selection->run_count;
      job.in_rows = selection->in_rows;
      job.out_rows = selection->out_rows;
    }
    blocks += grid.blocks();
  }
  const bool narrow = kind.bits == 4;
  launch(queue, narrow ? affine_tiles_kernel<4> : affine_tiles_kernel<8>, {static_cast<unsigned>(blocks), 1, 1},
         {kThreads, 1, 1}, narrow ? sizeof(Shared<1>) : sizeof(Shared<2>), p);
}

}  // namespace lockstep::kernels::cuda
