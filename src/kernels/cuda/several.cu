#include "kernels/cuda/several.hpp"

#include <algorithm>
#include <array>

#include "kernels/cuda/quantise.cuh"
#include "kernels/cuda/several.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kRows = static_cast<int>(kSeveralRows);
constexpr int kPasses = kRows / 8;  ///< of eight rows
constexpr int kMostWarps = 20;
constexpr int kMostTiles = 15;  ///< of a block: each has a barrier
constexpr int kMostJobs = 6;
constexpr int kShares = 4;  ///< blocks of a cluster that share the inputs of long rows
constexpr int kLongTiles = kShares;
constexpr std::size_t kMostShared = 226 * 1024;

struct SeveralJob {
  const std::byte *codes, *pairs;
  float* out;
  int rows, first_tile;
};

/// Products of one number of bits.
struct SeveralPart {
  SeveralJob jobs[kMostJobs];
  int job_count, tiles, tiles_per_block, blocks;
};

struct SeveralParams {
  SeveralPart four, eight;
  int chunks;    ///< of an input row
  int segments;  ///< of a block
  int tokens;
  unsigned segment_part;  ///< of part_of()
  const uint4* digits;
  const float2* steps;
  Tail tail;
};

/// Segments of one activation row in shared memory: so that two rows do not meet the same banks.
__host__ __device__ constexpr int row_words(int segments) {
  return segments * kSegmentChunks * 8 + 1;
}
/// Bytes of the rows' digits and steps, [chunk][row].
__host__ __device__ constexpr int rows_bytes(int segments) {
  return kRows * (row_words(segments) * 16 + segments * kSegmentChunks * 8);
}
constexpr int kPartFloats = kRows * 16;  ///< what a warp hands over, [row of x][output]

/// Adds the groups of a staged segment to sums [pass]{row g, row g + 8} x {column 2j, column 2j + 1}, as add_groups()
/// does. `digits`: of the lane's row of the first pass, the lane's quad first; `steps`: of columns 2j and 2j + 1.
template <int kBits>
__device__ __forceinline__ void add_passes(const std::byte* stage, int chunks, const uint4* digits, int pass_words,
                                           const float4* steps, int lane, float (&sums)[kPasses][4]) {
  constexpr int kPieces = kBits / 4;
  const uint4* codes = reinterpret_cast<const uint4*>(stage) + lane;
  const uint2* pairs = reinterpret_cast<const uint2*>(stage + kSegmentChunks * 128 * kBits) + lane / 4;
#pragma unroll 1
  for (int i = 0; i < chunks; ++i) {
    uint4 chunk[kPieces];
#pragma unroll
    for (int k = 0; k < kPieces; ++k) chunk[k] = codes[(i * kPieces + k) * 32];
    const uint2 pair = pairs[i * 8];
    uint4 h[kPasses];
    uint4 l[kPasses];
    float4 t[kPasses];
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      h[pass] = digits[pass * pass_words + i * 8];
      l[pass] = digits[pass * pass_words + i * 8 + 1];
      t[pass] = steps[i * (kRows / 2) + pass * 4];
    }
    int high[kPasses][4] = {};
    int low[kPasses][4] = {};
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      unsigned a[4];
      unpack<kBits>(chunk, m, a);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        mma_signed(high[pass], a, m == 0 ? h[pass].x : h[pass].z, m == 0 ? h[pass].y : h[pass].w);
        mma_unsigned(low[pass], a, m == 0 ? l[pass].x : l[pass].z, m == 0 ? l[pass].y : l[pass].w);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const unsigned word = half == 0 ? pair.x : pair.y;
      const float scale = bits_float(word << 16);
      const float bias = bits_float(word & 0xffff0000U);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float step = c == 0 ? t[pass].x : t[pass].z;
          const float total = c == 0 ? t[pass].y : t[pass].w;
          const float dot = static_cast<float>(high[pass][2 * half + c] * 256 + low[pass][2 * half + c]);
          sums[pass][2 * half + c] += canon_fma(scale * step, dot, (bias * step) * total);
        }
      }
    }
  }
}

/// A value of a block of the cluster's shared memory.
__device__ __forceinline__ float of_share(const float* at, int share) {
  float value = 0.0F;
#if __CUDA_ARCH__ >= 900
  unsigned address = 0;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(static_cast<unsigned>(__cvta_generic_to_shared(at))), "r"(share));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
#endif
  return value;
}
__device__ __forceinline__ void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/// One warp per tile and segment. A block keeps all rows of its segments; with kLong four blocks share the segments and
/// add their sums through shared memory.
template <int kBits, bool kLong>
__device__ __forceinline__ void several_body(const SeveralParams& p, const SeveralPart& part, int block) {
  extern __shared__ __align__(16) std::byte memory[];
  constexpr int kStage = few_stage_bytes<kBits>(kSegmentChunks);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int threads = static_cast<int>(blockDim.x);
  const int z = part_of(warp, p.segment_part);
  const int segment = warp - z * p.segments;
  const int share = kLong ? block % kShares : 0;
  const int group0 = kLong ? block / kShares : block;
  const int first_chunk = share * p.segments * kSegmentChunks;
  const int own_chunks = p.chunks - first_chunk < p.segments * kSegmentChunks
                             ? (p.chunks > first_chunk ? p.chunks - first_chunk : 0)
                             : p.segments * kSegmentChunks;
  const int left = own_chunks - segment * kSegmentChunks;
  const int chunks = z < part.tiles_per_block ? (left < kSegmentChunks ? (left > 0 ? left : 0) : kSegmentChunks) : 0;
  const auto tile_of = [&](int round) {
    return z < part.tiles_per_block ? (round * part.blocks + group0) * part.tiles_per_block + z : part.tiles;
  };
  const auto job_of = [&](int tile) {
    int j = 0;
#pragma unroll 1
    while (j + 1 < part.job_count && tile >= part.jobs[j + 1].first_tile) ++j;
    return j;
  };
  std::byte* stage = memory + warp * kStage;
  const std::uint64_t policy = once_policy();
  const auto start = [&](int round) {
    const int tile = tile_of(round);
    if (tile < part.tiles && chunks > 0) {
      const SeveralJob& job = part.jobs[job_of(tile)];
      const std::int64_t chunk =
          static_cast<std::int64_t>(tile - job.first_tile) * p.chunks + first_chunk + segment * kSegmentChunks;
      stage_chunks<kSegmentChunks, kBits>(stage, job.codes + chunk * (128 * kBits), job.pairs + chunk * 64, chunks,
                                          policy, lane);
    }
    copies_made();
  };
  start(0);
  const int workers = part.tiles_per_block * p.segments;  // warps beyond them only fetch
  auto* digits = reinterpret_cast<uint4*>(memory + workers * kStage);
  const int words = row_words(p.segments);
  auto* steps = reinterpret_cast<float2*>(digits + kRows * words);
  auto* parts =
      kLong ? reinterpret_cast<float*>(memory) : reinterpret_cast<float*>(steps + kRows * p.segments * kSegmentChunks);
  wait_previous_grid();
#pragma unroll 1
  for (int t = 0; t < p.tokens; ++t) {
    const uint4* from = p.digits + (static_cast<std::int64_t>(t) * p.chunks + first_chunk) * 8;
#pragma unroll 1
    for (int i = thread; i < own_chunks * 8; i += threads) copy_soon(digits + t * words + i, from + i);
  }
#pragma unroll 1
  for (int i = thread; i < own_chunks * kRows; i += threads) {
    const int t = i % kRows;
    if (t < p.tokens)
      copy_eight_soon(steps + i, p.steps + static_cast<std::int64_t>(t) * p.chunks + first_chunk + i / kRows);
  }
  copies_made();
  wait_copies<0>();
  __syncthreads();
  const int row = lane / 4;
  const int quad = lane % 4;
  const uint4* my_digits = digits + row * words + segment * kSegmentChunks * 8 + quad * 2;
  const auto* my_steps = reinterpret_cast<const float4*>(steps + segment * kSegmentChunks * kRows) + quad;
  const auto hand_over = [&](float* to, const float(&sums)[kPasses][4]) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float* at = to + (pass * 8 + 2 * quad + c) * 16 + row;
        at[0] = sums[pass][c];
        at[8] = sums[pass][2 + c];
      }
    }
  };
  if constexpr (kLong) {
    float sums[kPasses][4] = {};
    add_passes<kBits>(stage, chunks, my_digits, 8 * words, my_steps, lane, sums);
    const int tile = group0 * kLongTiles + share;  // whose sums this block adds
    const SeveralJob& job = part.jobs[job_of(tile < part.tiles ? tile : 0)];
    const int r = (tile - job.first_tile) * 16 + thread % 16;
    const bool inside = tile < part.tiles && r < job.rows;
    TailValues tail;
    if (p.tail.x != nullptr && inside && thread / 16 < p.tokens) {
      tail.load(p.tail.x, p.tail.inject, p.tail.streams, thread / 16, job.rows, r);
    }
    __syncthreads();  // the stages are free
    hand_over(parts + warp * kPartFloats, sums);
    cluster_barrier();
#pragma unroll 1
    for (int i = thread; i < 16 * p.tokens && inside; i += threads) {
      const int token = i / 16;
      float total = 0.0F;
#pragma unroll
      for (int from = 0; from < kShares; ++from) {
#pragma unroll 3
        for (int s = 0; s < p.segments; ++s) {
          if ((from * p.segments + s) * kSegmentChunks >= p.chunks) continue;
          total += of_share(parts + (share * p.segments + s) * kPartFloats + i, from);
        }
      }
      if (p.tail.x == nullptr) {
        job.out[static_cast<std::int64_t>(token) * job.rows + r] = total;
        continue;
      }
      if (i != thread) tail.load(p.tail.x, p.tail.inject, p.tail.streams, token, job.rows, r);
      tail.store(p.tail.x, p.tail.streams, token, job.rows, r, total);
    }
    cluster_barrier();  // nobody leaves before its sums are read
  } else {
    const int part_size = workers * kPartFloats;
#pragma unroll 1
    for (int round = 0; tile_of(round) < part.tiles; ++round) {
      wait_copies<0>();
      __syncwarp();
      const int tile = tile_of(round);
      float sums[kPasses][4] = {};
      add_passes<kBits>(stage, chunks, my_digits, 8 * words, my_steps, lane, sums);
      __syncwarp();
      start(round + 1);
      float* mine = parts + round % 2 * part_size + z * p.segments * kPartFloats;
      hand_over(mine + segment * kPartFloats, sums);
      part_barrier(z, 32 * p.segments);
      const SeveralJob& job = part.jobs[job_of(tile)];
      const int row0 = (tile - job.first_tile) * 16;
#pragma unroll 1
      for (int i = segment * 32 + lane; i < 16 * p.tokens; i += 32 * p.segments) {
        const int token = i / 16;
        const int r = row0 + i % 16;
        if (r >= job.rows) continue;
        float total = 0.0F;
#pragma unroll 5
        for (int s = 0; s < p.segments; ++s) total += mine[s * kPartFloats + i];
        if (p.tail.x == nullptr) {
          job.out[static_cast<std::int64_t>(token) * job.rows + r] = total;
          continue;
        }
        TailValues tail;
        tail.load(p.tail.x, p.tail.inject, p.tail.streams, token, job.rows, r);
        tail.store(p.tail.x, p.tail.streams, token, job.rows, r, total);
      }
    }
    wait_copies<0>();
  }
}

__global__ void __launch_bounds__(32 * kMostWarps, 1) several_kernel(SeveralParams p) {
  trigger_next_grid();
  const int block = static_cast<int>(blockIdx.x);
  if (block < p.four.blocks) {
    several_body<4, false>(p, p.four, block);
  } else {
    several_body<8, false>(p, p.eight, block - p.four.blocks);
  }
}

#if __CUDA_ARCH__ >= 900
#define LOCKSTEP_CLUSTER __cluster_dims__(kShares, 1, 1)
#else
#define LOCKSTEP_CLUSTER  // never launched: several_takes()
#endif

template <int kBits>
__global__ void LOCKSTEP_CLUSTER __launch_bounds__(32 * kMostWarps, 1) several_long_kernel(SeveralParams p) {
  trigger_next_grid();
  several_body<kBits, true>(p, kBits == 4 ? p.four : p.eight, static_cast<int>(blockIdx.x));
}

void add_job(SeveralPart& part, const AffineWeights& weights, float* out) {
  SeveralJob& job = part.jobs[part.job_count++];
  job.codes = static_cast<const std::byte*>(weights.codes);
  job.pairs = static_cast<const std::byte*>(weights.pairs);
  job.out = out;
  job.rows = static_cast<int>(weights.rows);
  job.first_tile = part.tiles;
  part.tiles += static_cast<int>(weights.tiles());
}

std::size_t stage_bytes(int bits) {
  return static_cast<std::size_t>(bits == 4 ? few_stage_bytes<4>(kSegmentChunks) : few_stage_bytes<8>(kSegmentChunks));
}

void run(Queue& queue, SeveralParams& p, const ActivationRows& x) {
  p.chunks = static_cast<int>(x.chunks());
  p.tokens = static_cast<int>(x.rows);
  p.digits = static_cast<const uint4*>(x.digits);
  p.steps = static_cast<const float2*>(x.steps);
  const int segments = (p.chunks + kSegmentChunks - 1) / kSegmentChunks;
  constexpr int kShort = kMostWarps / kShares;
  p.segments = segments <= kShort ? segments : (segments + kShares - 1) / kShares;
  p.segment_part = part_factor(p.segments);
  const auto rows = static_cast<std::size_t>(rows_bytes(p.segments));
  const int room = queue.multiprocessors();
  if (segments > kShort) {
    for (SeveralPart* part : {&p.four, &p.eight}) {
      if (part->tiles == 0) continue;
      const bool narrow = part == &p.four;
      part->tiles_per_block = kLongTiles;
      part->blocks = (part->tiles + kLongTiles - 1) / kLongTiles;
      const auto warps = static_cast<std::size_t>(kLongTiles * p.segments);
      launch(queue, narrow ? several_long_kernel<4> : several_long_kernel<8>,
             {static_cast<unsigned>(kShares * part->blocks), 1, 1}, {static_cast<unsigned>(32 * warps), 1, 1},
             warps * stage_bytes(narrow ? 4 : 8) + rows, p);
    }
    return;
  }
  const auto shared = [&](int tiles_per_block, int bits) {
    const auto warps = static_cast<std::size_t>(tiles_per_block * p.segments);
    return warps * (stage_bytes(bits) + 2 * kPartFloats * sizeof(float)) + rows;
  };
  // As few tiles a block as give every multiprocessor one block.
  const auto place = [&](SeveralPart& part, int bits, int most_blocks) {
    if (part.tiles == 0) return;
    part.tiles_per_block =
        std::clamp((part.tiles + most_blocks - 1) / most_blocks, 1, std::min(kMostTiles, kMostWarps / p.segments));
    while (part.tiles_per_block > 1 && shared(part.tiles_per_block, bits) > kMostShared) --part.tiles_per_block;
    part.blocks = std::min((part.tiles + part.tiles_per_block - 1) / part.tiles_per_block, most_blocks);
  };
  const int all = p.four.tiles + 2 * p.eight.tiles;
  const int wide_blocks = all == 0 ? 0 : std::max(1, room * 2 * p.eight.tiles / all);
  place(p.eight, 8, p.four.tiles == 0 ? room : wide_blocks);
  place(p.four, 4, std::max(1, room - p.eight.blocks));
  const int tiles = std::max(p.four.tiles_per_block, p.eight.tiles_per_block);
  const std::size_t bytes = std::max(shared(p.four.tiles_per_block, 4), shared(p.eight.tiles_per_block, 8));
  launch(queue, several_kernel, {static_cast<unsigned>(p.four.blocks + p.eight.blocks), 1, 1},
         {static_cast<unsigned>(32 * tiles * p.segments), 1, 1}, bytes, p);
}

}  // namespace

bool several_takes(const AffineWeights& weights, std::int64_t rows) {
  // Blocks that share the inputs of long rows need the machine code of a device that has clusters of blocks.
  static const bool clusters = [] {
    cudaFuncAttributes attributes{};
    const bool known = cudaFuncGetAttributes(&attributes, several_long_kernel<4>) == cudaSuccess;
    return known && attributes.ptxVersion >= 90;
  }();
  // Five segments of 8 bits a block have no room in shared memory.
  const int long_segments = weights.bits == 8 ? kMostWarps - kShares : kMostWarps;
  const std::int64_t most_inputs = (clusters ? long_segments : kMostWarps / kShares) * kSegmentInputs;
  return rows > kFewRows && rows <= kSeveralRows && weights.count == 1 && weights.group == 64 && !weights.wide_pairs &&
         weights.cols % 64 == 0 && weights.cols <= most_inputs;
}

void several_products(Queue& queue, std::span<const FewProduct> products, const ActivationRows& x) {
  SeveralParams p{};
  for (const FewProduct& product : products) {
    add_job(product.weights->bits == 4 ? p.four : p.eight, *product.weights, product.out);
  }
  run(queue, p, x);
}

void several_product_into(Queue& queue, const AffineWeights& weights, const ActivationRows& x, const Tail& tail) {
  SeveralParams p{};
  add_job(weights.bits == 4 ? p.four : p.eight, weights, tail.y);
  p.tail.y = tail.y;
  p.tail.x = tail.x;
  p.tail.inject = tail.inject;
  p.tail.streams = tail.streams;
  run(queue, p, x);
}

}  // namespace lockstep::kernels::cuda
