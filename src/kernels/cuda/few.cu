#include "kernels/cuda/few.hpp"

#include <algorithm>

#include "kernels/cuda/few.cuh"
#include "kernels/cuda/quantise.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kMostWarps = 20;
constexpr int kLeastWarps = 16;  ///< of a block that quantises
constexpr int kMostTiles = 15;   ///< of a block: each has a barrier
constexpr int kMostJobs = 6;
constexpr std::size_t kMostShared = 226 * 1024;

struct FewJob {
  const std::byte *codes, *pairs;
  float* out;
  int rows, first_tile;
};

struct FewParams {
  FewJob jobs[kMostJobs];
  int job_count, tiles, chunks, segments, tiles_per_block, depth, tokens, blocks;
  unsigned segment_part;  ///< of part_of()
  const float* x;
  const uint4* digits;
  const float2* steps;
  uint4* digits_kept;
  float2* steps_kept;
  float* wide;
  const float* inject;
  int streams, side_wide;
  const void* side;
  float* side_out;
};

/// fold32 of one dense row with every row of x, one warp a row.
__device__ void side_product(const FewParams& p, int warp, int warps, int lane) {
  const int cols = p.chunks * 64;
  for (int t = warp; t < p.tokens; t += warps) {
    const float* x = p.x + static_cast<std::int64_t>(t) * cols;
    float sum = 0.0F;
#pragma unroll 16
    for (int i = lane; i < cols; i += 32) {
      const int chunk = i / 256 * 256;
      const int step = i % 256 / 32;
      const float weight = p.side_wide != 0
                               ? static_cast<const float*>(p.side)[chunk + step / 4 * 128 + lane * 4 + step % 4]
                               : bf16_to_float(static_cast<const std::uint16_t*>(p.side)[chunk + lane * 8 + step]);
      sum = canon_fma(weight, x[i], sum);
    }
    const float y = fold_lanes(sum);
    if (lane == 0) p.side_out[t] = y;
  }
}

/// One warp per tile and segment of 512 inputs; a block keeps tiles_per_block tiles and goes on by the whole grid.
/// Weights of `depth` tiles are under way before the kernel in front has ended.
template <int kBits, int kTokens>
__device__ __forceinline__ void few_body(const FewParams& p, int block) {
  extern __shared__ __align__(16) std::byte memory[];
  constexpr int kStage = few_stage_bytes<kBits>(kSegmentChunks);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int threads = static_cast<int>(blockDim.x);
  const int warps = threads / 32;
  if (block == p.blocks) {
    wait_previous_grid();
    side_product(p, warp, warps, lane);
    return;
  }
  const int z = part_of(warp, p.segment_part);  // warps beyond the tiles only quantise
  const int segment = warp - z * p.segments;
  const int workers = p.segments * p.tiles_per_block;
  const int chunks =
      p.chunks - segment * kSegmentChunks < kSegmentChunks ? p.chunks - segment * kSegmentChunks : kSegmentChunks;
  const auto tile_of = [&](int round) {
    return warp < workers ? (round * p.blocks + block) * p.tiles_per_block + z : p.tiles;
  };
  const auto job_of = [&](int tile) {
    int j = 0;
#pragma unroll 1
    while (j + 1 < p.job_count && tile >= p.jobs[j + 1].first_tile) ++j;
    return j;
  };
  std::byte* stages = memory + warp * p.depth * kStage;
  const auto start = [&](int round) {
    const int tile = tile_of(round);
    if (tile < p.tiles) {
      const FewJob& job = p.jobs[job_of(tile)];
      const std::int64_t chunk = static_cast<std::int64_t>(tile - job.first_tile) * p.chunks + segment * kSegmentChunks;
      stage_tile<kBits>(stages + (round & (p.depth - 1)) * kStage, job.codes + chunk * (128 * kBits),
                        job.pairs + chunk * 64, chunks, kSegmentChunks, lane);
    }
    copies_made();
  };
#pragma unroll 1
  for (int round = 0; round < p.depth; ++round) start(round);

  auto* digits = reinterpret_cast<uint4*>(memory + workers * p.depth * kStage);
  auto* steps = reinterpret_cast<float2*>(digits + p.tokens * p.chunks * 8);
  auto* parts = reinterpret_cast<float*>(steps + p.tokens * p.chunks);  // [2][z][segment][16][kTokens]
  wait_previous_grid();
  const int groups = p.tokens * p.chunks;
  if (p.x != nullptr) {
    quantise_rows64(p.x, groups, reinterpret_cast<std::uint8_t*>(digits), steps, warp, warps, lane);
  } else {
    const float2 own = p.steps[thread < groups ? thread : 0];
#pragma unroll 2
    for (int i = thread; i < groups * 8; i += threads) digits[i] = p.digits[i];
    if (thread < groups) steps[thread] = own;
#pragma unroll 1
    for (int i = thread + threads; i < groups; i += threads) steps[i] = p.steps[i];
  }
  __syncthreads();
  if (p.digits_kept != nullptr && block == 0) {
#pragma unroll 1
    for (int i = thread; i < groups * 8; i += threads) p.digits_kept[i] = digits[i];
#pragma unroll 1
    for (int i = thread; i < groups; i += threads) p.steps_kept[i] = steps[i];
  }
  const int row = lane / 4;
  const int quad = lane % 4;
  // Columns of tokens that are not there repeat the first one's and are not read.
  const auto at_token = [&](int column) {
    const int token = Columns<kTokens>::token(column);
    return (token < p.tokens ? token : 0) * p.chunks + segment * kSegmentChunks;
  };
  const uint4* my_digits = digits + at_token(row) * 8 + quad * 2;
  const float2* steps0 = steps + at_token(2 * quad);
  const float2* steps1 = steps + at_token(2 * quad + 1);
  const int part_size = p.tiles_per_block * p.segments * 16 * kTokens;
#pragma unroll 1
  for (int round = 0; tile_of(round) < p.tiles; ++round) {
    if (p.depth == 2) {
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncwarp();
    const int tile = tile_of(round);
    const FewJob& job = p.jobs[job_of(tile)];
    const int row0 = (tile - job.first_tile) * 16;
    TailValues tail;
    const bool early = kTokens == 1 && p.wide != nullptr && segment == 0 && lane < 16 && row0 + lane < job.rows;
    if (early) tail.load(p.wide, p.inject, p.streams, 0, job.rows, row0 + lane);
    const std::byte* stage = stages + (round & (p.depth - 1)) * kStage;
    float* mine = parts + round % 2 * part_size + z * p.segments * 16 * kTokens;
    if constexpr (kTokens == 1) {
      const int first = segment * kSegmentChunks;
      const float sum =
          add_groups_of_row<kBits>(stage, kSegmentChunks, 0, chunks, digits + first * 8, steps + first, lane);
      if (quad < 2) mine[segment * 16 + quad * 8 + row] = sum;
    } else {
      float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
      add_groups<kBits, kTokens>(stage, kSegmentChunks, 0, chunks, my_digits, steps0, steps1, lane, sums);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int token = 2 * quad + c;
        if (token >= kTokens) continue;
        float* to = mine + (segment * kTokens + token) * 16 + row;
        to[0] = sums[c];
        to[8] = sums[2 + c];
      }
    }
    __syncwarp();
    start(round + p.depth);
    part_barrier(z, 32 * p.segments);
    if (segment != 0) continue;
#pragma unroll 1
    for (int i = lane; i < 16 * p.tokens; i += 32) {
      const int token = i / 16;
      const int r = row0 + i % 16;
      if (r >= job.rows) continue;
      if (!early && p.wide != nullptr) tail.load(p.wide, p.inject, p.streams, token, job.rows, r);
      float total = 0.0F;
#pragma unroll 4
      for (int s = 0; s < p.segments; ++s) total += mine[(s * kTokens + token) * 16 + i % 16];
      if (p.wide == nullptr) {
        job.out[static_cast<std::int64_t>(token) * job.rows + r] = total;
        continue;
      }
      tail.store(p.wide, p.streams, token, job.rows, r, total);
    }
  }
  wait_copies<0>();
}

/// A second product beside the first, of 4 bits beside 8, in blocks of its own.
struct FewPair {
  FewParams main, other;
};

/// One row: no more registers than leave room for the blocks of the kernel in front. Several: for two blocks of 12
/// warps.
template <int kBits, int kTokens>
__global__ void __launch_bounds__(kTokens == 1 ? 1024 : 768, 1) few_kernel(FewPair pair) {
  trigger_next_grid();
  const int block = static_cast<int>(blockIdx.x);
  const int own = pair.main.blocks + (pair.main.side != nullptr ? 1 : 0);
  if (kBits == 8 && block >= own) {
    few_body<4, kTokens>(pair.other, block - own);
  } else {
    few_body<kBits, kTokens>(pair.main, block);
  }
}

template <int kBits>
void run_few(Queue& queue, const FewPair& p, Extent grid, Extent block, std::size_t shared) {
  if (p.main.tokens == 1) {
    launch(queue, few_kernel<kBits, 1>, grid, block, shared, p);
  } else if (p.main.tokens <= 4) {
    launch(queue, few_kernel<kBits, 4>, grid, block, shared, p);
  } else {
    launch(queue, few_kernel<kBits, 8>, grid, block, shared, p);
  }
}

void run(Queue& queue, FewPair& pair, int bits, const FewInput& input) {
  FewParams& p = pair.main;
  p.tokens = static_cast<int>(input.rows);
  p.x = input.x;
  if (input.x == nullptr) {
    p.digits = static_cast<const uint4*>(input.quantised->digits);
    p.steps = static_cast<const float2*>(input.quantised->steps);
  } else if (input.keep != nullptr) {
    p.digits_kept = static_cast<uint4*>(input.keep->digits);
    p.steps_kept = static_cast<float2*>(input.keep->steps);
  }
  p.segments = (p.chunks + kSegmentChunks - 1) / kSegmentChunks;
  p.segment_part = part_factor(p.segments);
  const int room = queue.multiprocessors();
  const int columns = p.tokens == 1 ? 1 : (p.tokens <= 4 ? 4 : 8);
  const std::size_t stage =
      static_cast<std::size_t>(bits == 4 ? few_stage_bytes<4>(kSegmentChunks) : few_stage_bytes<8>(kSegmentChunks));
  const auto shared = [&] {
    const auto warps = static_cast<std::size_t>(p.segments * p.tiles_per_block);
    return warps * static_cast<std::size_t>(p.depth) * stage +
           static_cast<std::size_t>(p.tokens * p.chunks) * (kChunkDigits + 8) +
           2 * warps * 16 * static_cast<std::size_t>(columns) * sizeof(float);
  };
  // As few tiles a block as give every multiprocessor one block, then two rounds of them.
  const int most = std::clamp(kMostWarps / p.segments, 1, kMostTiles);
  p.depth = 1;
  p.tiles_per_block = (p.tiles + room - 1) / room;
  if (p.tiles_per_block > most) {
    p.tiles_per_block = most;
    p.depth = 2;
  }
  while (p.tiles_per_block > 1 && shared() > kMostShared) --p.tiles_per_block;
  if (p.tiles > room * p.tiles_per_block) {
    // Little more than one tile for everybody: two small blocks side by side end sooner than two rounds of one.
    p.depth = 1;
    const bool beside = p.tiles_per_block == 1 && p.tiles <= 2 * room && 2 * shared() <= kMostShared;
    p.depth = beside ? 1 : 2;
  }
  if (shared() > kMostShared) p.depth = 1;
  const int needed = (p.tiles + p.tiles_per_block - 1) / p.tiles_per_block;
  // With one tile a block, more blocks than multiprocessors share them.
  p.blocks = p.depth == 1 || needed < room ? needed : room;
  FewParams& other = pair.other;
  if (other.tiles > 0) {
    other.tokens = p.tokens;
    other.x = p.x;
    other.segments = p.segments;
    other.segment_part = p.segment_part;
    other.tiles_per_block = other.depth = 1;
    other.blocks = other.tiles;
  }
  const Extent grid{static_cast<unsigned>(p.blocks + (p.side != nullptr ? 1 : 0) + other.blocks), 1, 1};
  const int warps = std::max(p.segments * p.tiles_per_block, input.x != nullptr ? kLeastWarps : 1);
  const Extent block{static_cast<unsigned>(32 * warps), 1, 1};
  if (bits == 4) {
    run_few<4>(queue, pair, grid, block, shared());
  } else {
    run_few<8>(queue, pair, grid, block, shared());
  }
}

void add_job(FewParams& p, const AffineWeights& weights, float* out) {
  FewJob& job = p.jobs[p.job_count++];
  job.codes = static_cast<const std::byte*>(weights.codes);
  job.pairs = static_cast<const std::byte*>(weights.pairs);
  job.out = out;
  job.rows = static_cast<int>(weights.rows);
  job.first_tile = p.tiles;
  p.tiles += static_cast<int>(weights.tiles());
}

}  // namespace

bool few_takes(const AffineWeights& weights, std::int64_t rows) {
  constexpr std::int64_t kMostInputs = 12 * kSegmentInputs;
  return rows <= kFewRows && weights.count == 1 && weights.group == 64 && !weights.wide_pairs &&
         weights.cols % 64 == 0 && weights.cols <= kMostInputs;
}

void few_products(Queue& queue, std::span<const FewProduct> products, const FewInput& input, const FewBeside& beside) {
  FewPair pair{};
  FewParams& p = pair.main;
  p.chunks = static_cast<int>(products.front().weights->chunks());
  for (const FewProduct& product : products) add_job(p, *product.weights, product.out);
  if (beside.dense != nullptr) {
    p.side = beside.dense->weights->data;
    p.side_wide = beside.dense->weights->wide ? 1 : 0;
    p.side_out = beside.dense->out;
  }
  if (beside.product != nullptr) {
    pair.other.chunks = p.chunks;
    add_job(pair.other, *beside.product->weights, beside.product->out);
  }
  run(queue, pair, products.front().weights->bits, input);
}

void few_product_into(Queue& queue, const AffineWeights& weights, const FewInput& input, const Tail& tail) {
  FewPair pair{};
  FewParams& p = pair.main;
  p.chunks = static_cast<int>(weights.chunks());
  add_job(p, weights, tail.y);
  p.wide = tail.x;
  p.inject = tail.inject;
  p.streams = tail.streams;
  run(queue, pair, weights.bits, input);
}

}  // namespace lockstep::kernels::cuda
