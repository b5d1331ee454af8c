// Products of affine weights and quantised activations on CUDA (docs/numerics.md N3).
#include <array>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/linear.hpp"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/tiles.hpp"
#include "numerics/affine.hpp"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kSegmentChunks = kSegmentInputs / 64;
constexpr int kMaxWarps = 16;
/// Activation rows of one mma.
constexpr int kColumns = 8;
/// Blocks that fill the device: a product with fewer tiles of weights shares its activation rows among more blocks.
constexpr std::int64_t kFullBlocks = 528;

/// One matrix, or the chosen ones of a stack, of a launch that computes several
/// products of the same activations.
struct AffineJob {
  const uint4* codes;
  const void* pairs;
  float* out;
  std::int64_t out_stride, matrix_codes,
      matrix_pairs;  ///< matrix strides in bytes
  const uint4* digits;
  const float2* steps;
  int rows, tiles, tokens, first_block;
  int run_blocks;    ///< blocks of one matrix, each with one tile or a few
  int token_blocks;  ///< of one matrix without a selection: each takes every token_blocks-th eight rows
  const ExpertRun* runs;
  const std::int32_t *run_count, *in_rows, *out_rows;
};

constexpr int kMaxJobs = 6;

struct AffineParams {
  AffineJob jobs[kMaxJobs];
  int job_count, chunks, groups, segments, tiles_per_block;
};

/// Scale and bias of rows g and g + 8, as they lie in memory.
template <bool kWide>
struct Pairs {
  float4 v;
  __device__ __forceinline__ void load(const void* pairs, std::int64_t index) {
    v = __ldg(static_cast<const float4*>(pairs) + index);
  }
  __device__ __forceinline__ float scale(int half) const { return half == 0 ? v.x : v.z; }
  __device__ __forceinline__ float bias(int half) const { return half == 0 ? v.y : v.w; }
};
template <>
struct Pairs<false> {
  uint2 v;
  __device__ __forceinline__ void load(const void* pairs, std::int64_t index) {
    v = __ldg(static_cast<const uint2*>(pairs) + index);
  }
  __device__ __forceinline__ float scale(int half) const { return bits_float((half == 0 ? v.x : v.y) << 16); }
  __device__ __forceinline__ float bias(int half) const { return bits_float((half == 0 ? v.x : v.y) & 0xffff0000U); }
};

/// The weights of one tile and segment in a warp's registers.
template <int kBits, int kGroup, bool kWide>
struct SegmentWeights {
  static constexpr int kPieces = kBits / 4;
  static constexpr int kGroups = kSegmentInputs / kGroup;
  uint4 codes[kSegmentChunks * kPieces];
  Pairs<kWide> pairs[kGroups];

  __device__ __forceinline__ void load(const AffineParams& p, const AffineJob& job, int expert, int tile, int segment,
                                       int lane) {
    const uint4* from = job.codes + expert * (job.matrix_codes / 16) +
                        (static_cast<std::int64_t>(tile) * p.chunks + segment * kSegmentChunks) * (32 * kPieces) + lane;
    const char* pairs_from = static_cast<const char*>(job.pairs) + expert * job.matrix_pairs;
    const std::int64_t pair0 = (static_cast<std::int64_t>(tile) * p.groups + segment * kGroups) * 8 + lane / 4;
    const int chunks = p.chunks - segment * kSegmentChunks;
    const int groups = p.groups - segment * kGroups;
#pragma unroll
    for (int i = 0; i < kSegmentChunks * kPieces; ++i) {
      codes[i] = make_uint4(0, 0, 0, 0);
      if (i / kPieces < chunks) codes[i] = __ldcs(from + i * 32);
    }
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      pairs[i] = {};
      if (i < groups) pairs[i].load(pairs_from, pair0 + i * 8);
    }
  }
};

/// Sums of one tile and segment for the eight tokens of a pass: {row g, row g +
/// 8} x {token 2j, token 2j + 1}; with kSingle only of token 0.
template <int kBits, int kGroup, bool kWide, bool kSingle>
__device__ __forceinline__ void segment_sums(const SegmentWeights<kBits, kGroup, kWide>& w, const AffineParams& p,
                                             int segment, const uint4* digits, bool live, const float2* steps0,
                                             const float2* steps1, float (&sums)[4]) {
  constexpr int kPieces = kBits / 4;
  constexpr int kStepsPerGroup = kGroup / 32;
  const int chunk0 = segment * kSegmentChunks;
  const int group0 = segment * (kSegmentInputs / kGroup);
  int high[4] = {0, 0, 0, 0};
  int low[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < kSegmentChunks; ++i) {
    if (chunk0 + i < p.chunks) {
      uint4 h = make_uint4(0, 0, 0, 0);
      uint4 l = h;
      if (live) {
        h = digits[(chunk0 + i) * 8];
        l = digits[(chunk0 + i) * 8 + 1];
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        unsigned a[4];
        unpack<kBits>(w.codes + i * kPieces, m, a);
        mma_signed(high, a, m == 0 ? h.x : h.z, m == 0 ? h.y : h.w);
        mma_unsigned(low, a, m == 0 ? l.x : l.z, m == 0 ? l.y : l.w);
        const int step = 2 * i + m;
        if ((step + 1) % kStepsPerGroup == 0) {
          const int local = step / kStepsPerGroup;
          if (group0 + local < p.groups) {
#pragma unroll
            for (int c = 0; c < (kSingle ? 1 : 2); ++c) {
              const float2 t = c == 0 ? steps0[group0 + local] : steps1[group0 + local];
#pragma unroll
              for (int half = 0; half < 2; ++half) {
                const float dot = static_cast<float>(high[2 * half + c] * 256 + low[2 * half + c]);
                sums[2 * half + c] +=
                    canon_fma(w.pairs[local].scale(half) * t.x, dot, (w.pairs[local].bias(half) * t.x) * t.y);
              }
            }
          }
#pragma unroll
          for (int c = 0; c < 4; ++c) high[c] = low[c] = 0;
        }
      }
    }
  }
}

/// One warp per segment of 512 inputs of a tile of 16 rows; the segments' sums
/// meet in shared memory.
template <int kBits, int kGroup, bool kWide, bool kSingle, int kThreads>
__global__ void __launch_bounds__(kThreads, kBits != 4 || kWide || kThreads == 512 ? 1 : (kThreads == 160 ? 4 : 2))
    affine_kernel(AffineParams p) {
  extern __shared__ float parts[];  // [tile of the block][segment][16][kColumns]
  trigger_next_grid();
  int j = 0;
  while (j + 1 < p.job_count && static_cast<int>(blockIdx.x) >= p.jobs[j + 1].first_block) ++j;
  const AffineJob& job = p.jobs[j];
  const int block = static_cast<int>(blockIdx.x) - job.first_block;
  const int lane = static_cast<int>(threadIdx.x);
  const int row = lane / 4;
  const int quad = lane % 4;
  const int warps = static_cast<int>(blockDim.y);
  const int tile = block % job.run_blocks * p.tiles_per_block + static_cast<int>(threadIdx.z);
  const bool inside = tile < job.tiles;
  SegmentWeights<kBits, kGroup, kWide> weights;
  int expert = 0;
  int first = 0;
  int tokens = job.tokens;
  int base0 = 0;
  if (job.runs == nullptr) {
    base0 = block / job.run_blocks * kColumns;
    // Weights are constant: they may come before the previous kernel has ended.
    if (inside && static_cast<int>(threadIdx.y) < p.segments) {
      weights.load(p, job, 0, tile, static_cast<int>(threadIdx.y), lane);
    }
    wait_previous_grid();
  } else {
    wait_previous_grid();
    const int index = block / job.run_blocks;
    if (index >= *job.run_count) return;
    const ExpertRun run = job.runs[index];
    expert = run.expert;
    first = run.first;
    tokens = run.count;
    if (inside && static_cast<int>(threadIdx.y) < p.segments) {
      weights.load(p, job, expert, tile, static_cast<int>(threadIdx.y), lane);
    }
  }
  float* part = parts + static_cast<int>(threadIdx.z) * p.segments * 16 * kColumns;
  const uint4* staged_digits = nullptr;
  const float2* staged_steps = nullptr;
  if constexpr (kSingle) {
    // The one activation row goes through shared memory while the weights are on their way.
    auto* digits = reinterpret_cast<uint4*>(parts + p.tiles_per_block * p.segments * 16 * kColumns);
    auto* steps = reinterpret_cast<float2*>(digits + p.chunks * 8);
    const std::int64_t in = job.in_rows != nullptr ? job.in_rows[first] : first;
    const int threads = 32 * warps * p.tiles_per_block;
    const int thread = (static_cast<int>(threadIdx.z) * warps + static_cast<int>(threadIdx.y)) * 32 + lane;
    for (int i = thread; i < p.chunks * 8; i += threads) digits[i] = job.digits[in * p.chunks * 8 + i];
    for (int i = thread; i < p.groups; i += threads) steps[i] = job.steps[in * p.groups + i];
    __syncthreads();
    staged_digits = digits + quad * 2;
    staged_steps = steps;
  }
  for (int base = base0; base < tokens; base += kColumns * job.token_blocks) {
    const int mine = base + row;  // the activation row whose digits this lane loads
    const bool live = mine < tokens;
    const std::int64_t in = !live ? 0 : (job.in_rows != nullptr ? job.in_rows[first + mine] : first + mine);
    const uint4* digits = job.digits + in * p.chunks * 8 + quad * 2;
    const float2* steps[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int token = base + 2 * quad + c < tokens ? base + 2 * quad + c : tokens - 1;
      const std::int64_t from = job.in_rows != nullptr ? job.in_rows[first + token] : first + token;
      steps[c] = job.steps + from * p.groups;
    }
    for (int segment = static_cast<int>(threadIdx.y); inside && segment < p.segments; segment += warps) {
      if (p.segments > warps && (base > base0 || segment >= warps)) weights.load(p, job, expert, tile, segment, lane);
      float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
      segment_sums<kBits, kGroup, kWide, kSingle>(weights, p, segment, kSingle ? staged_digits : digits, live,
                                                  kSingle ? staged_steps : steps[0], steps[1], sums);
      float* to = part + segment * 16 * kColumns + row * kColumns + 2 * quad;
      to[0] = sums[0];
      to[8 * kColumns] = sums[2];
      if constexpr (!kSingle) {
        to[1] = sums[1];
        to[8 * kColumns + 1] = sums[3];
      }
    }
    __syncthreads();
    const int in_tile = static_cast<int>(threadIdx.y) * 32 + lane;
    for (int i = in_tile; inside && i < (kSingle ? 16 : 16 * kColumns); i += 32 * warps) {
      const int r = i % 16;
      const int token = base + i / 16;
      if (tile * 16 + r >= job.rows || token >= tokens) continue;
      float total = 0.0F;
      for (int s = 0; s < p.segments; ++s) total += part[s * 16 * kColumns + r * kColumns + i / 16];
      const std::int64_t to = job.out_rows != nullptr ? job.out_rows[first + token] : first + token;
      job.out[to * job.out_stride + tile * 16 + r] = total;
    }
    __syncthreads();
  }
}

struct AffineLaunch {
  Extent grid, block;
  std::size_t shared;
  bool single;
};

template <int kBits, int kGroup, bool kWide>
void run_affine(Queue& queue, const AffineParams& p, const AffineLaunch& l) {
  void (*kernel)(AffineParams) = nullptr;
  constexpr bool kSingle = !kWide;  // f32 pairs are rare
  const unsigned threads = l.block.y * l.block.z * 32;
  if (threads <= 160) {
    kernel =
        l.single ? affine_kernel<kBits, kGroup, kWide, kSingle, 160> : affine_kernel<kBits, kGroup, kWide, false, 160>;
  } else if (kBits == 4 && !kWide && threads <= 384) {
    kernel =
        l.single ? affine_kernel<kBits, kGroup, kWide, kSingle, 384> : affine_kernel<kBits, kGroup, kWide, false, 384>;
  } else {
    kernel =
        l.single ? affine_kernel<kBits, kGroup, kWide, kSingle, 512> : affine_kernel<kBits, kGroup, kWide, false, 512>;
  }
  launch(queue, kernel, l.grid, l.block, l.shared, p);
}

template <int kBits, bool kWide>
void run_affine_group(Queue& queue, int group, const AffineParams& p, const AffineLaunch& l) {
  if (group == 32) {
    run_affine<kBits, 32, kWide>(queue, p, l);
  } else if (group == 64) {
    run_affine<kBits, 64, kWide>(queue, p, l);
  } else {
    run_affine<kBits, 128, kWide>(queue, p, l);
  }
}

bool same_kind(const AffineWeights& a, const AffineWeights& b) {
  return a.bits == b.bits && a.group == b.group && a.wide_pairs == b.wide_pairs && a.cols == b.cols;
}

/// The jobs of one kind in one launch.
void launch_affine(Queue& queue, const AffineWeights& kind, std::span<const AffineProduct> products) {
  AffineParams p{};
  p.chunks = static_cast<int>(kind.chunks());
  p.groups = static_cast<int>(kind.groups());
  p.segments = (p.chunks + kSegmentChunks - 1) / kSegmentChunks;
  const int warps = p.segments < kMaxWarps ? p.segments : kMaxWarps;
  p.tiles_per_block = warps >= 5 ? 1 : 4 / warps;
  std::int64_t blocks = 0;
  bool single = true;
  for (const AffineProduct& product : products) {
    const AffineWeights& weights = *product.weights;
    if (!same_kind(weights, kind)) continue;
    AffineJob& job = p.jobs[p.job_count++];
    job.codes = static_cast<const uint4*>(weights.codes);
    job.pairs = weights.pairs;
    job.out = product.out;
    job.out_stride = weights.rows;
    job.digits = static_cast<const uint4*>(product.x->digits);
    job.steps = static_cast<const float2*>(product.x->steps);
    job.tokens = static_cast<int>(product.x->rows);
    job.matrix_codes = static_cast<std::int64_t>(weights.matrix_code_bytes());
    job.matrix_pairs = static_cast<std::int64_t>(weights.matrix_pair_bytes());
    job.rows = static_cast<int>(weights.rows);
    job.tiles = static_cast<int>(weights.tiles());
    job.first_block = static_cast<int>(blocks);
    job.run_blocks = static_cast<int>(blocks_for(job.tiles, p.tiles_per_block));
    job.token_blocks = 1;
    std::int64_t runs = 1;
    if (product.selection != nullptr) {
      job.runs = product.selection->runs;
      job.run_count = product.selection->run_count;
      job.in_rows = product.selection->in_rows;
      job.out_rows = product.selection->out_rows;
      runs = product.selection->most_runs;
      single = single && product.selection->single;
    } else {
      single = single && product.x->rows == 1;
      const std::int64_t eights = (product.x->rows + kColumns - 1) / kColumns;
      const std::int64_t room = kFullBlocks > job.run_blocks ? kFullBlocks / job.run_blocks : 1;
      job.token_blocks = static_cast<int>(eights < room ? eights : room);
      runs = job.token_blocks;
    }
    blocks += job.run_blocks * runs;
  }
  const AffineLaunch l{{static_cast<unsigned>(blocks), 1, 1},
                       {32, static_cast<unsigned>(warps), static_cast<unsigned>(p.tiles_per_block)},
                       static_cast<std::size_t>(p.tiles_per_block * p.segments * 16 * kColumns) * sizeof(float) +
                           static_cast<std::size_t>(single ? p.chunks * 128 + p.groups * 8 : 0),
                       single};
  if (kind.bits == 4) {
    if (kind.wide_pairs) {
      run_affine_group<4, true>(queue, kind.group, p, l);
    } else {
      run_affine_group<4, false>(queue, kind.group, p, l);
    }
  } else if (kind.wide_pairs) {
    run_affine_group<8, true>(queue, kind.group, p, l);
  } else {
    run_affine_group<8, false>(queue, kind.group, p, l);
  }
}

}  // namespace

void affine_products(Queue& queue, std::span<const AffineProduct> products) {
  for (std::size_t i = 0; i < products.size(); ++i) {
    // Each kind is launched where it appears first.
    bool done = false;
    for (std::size_t k = 0; k < i; ++k) done = done || same_kind(*products[k].weights, *products[i].weights);
    if (done) continue;
    std::array<const AffineProduct*, kMaxJobs> some{};
    std::size_t count = 0;
    for (const AffineProduct& product : products.subspan(i)) {
      if (same_kind(*product.weights, *products[i].weights)) some.at(count++) = &product;
    }
    const auto same = std::span(some).first(count);
    if (affine_tiles_take(same)) {
      affine_tiles(queue, same);
    } else {
      launch_affine(queue, *products[i].weights, products);
    }
  }
}

}  // namespace lockstep::kernels::cuda
