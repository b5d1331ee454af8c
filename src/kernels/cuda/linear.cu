// Matrix products of the canon on CUDA (docs/numerics.md N3 and N4).
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
  int rows, tiles, tokens, first_block,
      run_blocks;  ///< run_blocks: blocks of one matrix
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
  if (job.runs == nullptr) {
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
  for (int base = 0; base < tokens; base += kColumns) {
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
      if (p.segments > warps && (base > 0 || segment >= warps)) weights.load(p, job, expert, tile, segment, lane);
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

struct AffineLayoutParams {
  AffineSource source;
  unsigned* codes;
  float* pairs;
  std::int64_t words, count, rows, cols;
  int bits, group;
  bool wide;
};

__device__ std::uint8_t source_code(const std::uint8_t* row, int bits, std::int64_t input) {
  const std::int64_t bit = input * bits;
  unsigned value = row[bit / 8];
  if (bit % 8 + bits > 8) value |= static_cast<unsigned>(row[bit / 8 + 1]) << 8;
  return static_cast<std::uint8_t>((value >> (bit % 8)) & ((1U << bits) - 1U));
}

/// One thread per word of codes.
__global__ void affine_codes_kernel(AffineLayoutParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t word = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (word >= p.words) return;
  const int pieces = p.bits / 4;
  const std::int64_t chunks = (p.cols + 63) / 64;
  const std::int64_t tiles = (p.rows + 15) / 16;
  const int part = static_cast<int>(word % 4);
  const int lane = static_cast<int>(word / 4 % 32);
  const int piece = static_cast<int>(word / 128 % pieces);
  const std::int64_t chunk = word / (128 * pieces) % chunks;
  const std::int64_t tile = word / (128 * pieces) / chunks % tiles;
  const std::int64_t matrix = word / (128 * pieces) / chunks / tiles;
  const std::int64_t row = tile * 16 + lane / 4 + part % 2 * 8;
  unsigned value = 0;
  if (row < p.rows) {
    const std::uint8_t* source = p.source.codes + (matrix * p.rows + row) * (p.cols * p.source.bits / 8);
    const int half = p.bits == 4 ? part / 2 : piece;
    const std::int64_t input0 = chunk * 64 + half * 32 + lane % 4 * 8;
    if (p.bits == 4) {
      for (int n = 0; n < 8; ++n) {
        if (input0 + n < p.cols) {
          value |= static_cast<unsigned>(source_code(source, p.source.bits, input0 + n)) << (4 * n);
        }
      }
    } else {
      for (int n = 0; n < 4; ++n) {
        const std::int64_t input = input0 + 2 * n + part / 2;
        if (input < p.cols) value |= static_cast<unsigned>(source_code(source, p.source.bits, input)) << (8 * n);
      }
    }
  }
  p.codes[word] = value;
}

/// One thread per scale and bias.
__global__ void affine_pairs_kernel(AffineLayoutParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t groups = p.cols / p.group;
  const std::int64_t tiles = (p.rows + 15) / 16;
  if (item >= p.count * tiles * groups * 16) return;
  const int place = static_cast<int>(item % 16);
  const std::int64_t group = item / 16 % groups;
  const std::int64_t tile = item / 16 / groups % tiles;
  const std::int64_t matrix = item / 16 / groups / tiles;
  const std::int64_t row = tile * 16 + place / 2 + place % 2 * 8;
  float s = 0.0F;
  float b = 0.0F;
  if (row < p.rows) {
    const std::int64_t at = (matrix * p.rows + row) * groups + group;
    s = load_element(p.source.scales, p.source.scale_type, at);
    b = load_element(p.source.biases, p.source.scale_type, at);
  }
  if (p.wide) {
    p.pairs[2 * item] = s;
    p.pairs[2 * item + 1] = b;
  } else {
    reinterpret_cast<unsigned*>(p.pairs)[item] = (float_bits(s) >> 16) | (float_bits(b) & 0xffff0000U);
  }
}

struct DenseLayoutParams {
  const void* source;
  ElementType type;
  void* data;
  std::int64_t items, cols, chunks;
  bool wide;
};

/// One thread per weight of the target.
__global__ void dense_layout_kernel(DenseLayoutParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= p.items) return;
  const std::int64_t row = item / (p.chunks * 256);
  const std::int64_t chunk = item / 256 % p.chunks;
  const int in_chunk = static_cast<int>(item % 256);
  const int lane = p.wide ? in_chunk / 4 % 32 : in_chunk / 8;
  const int step = p.wide ? in_chunk / 128 * 4 + in_chunk % 4 : in_chunk % 8;
  const std::int64_t input = chunk * 256 + 32 * step + lane;
  const float value = input < p.cols ? load_element(p.source, p.type, row * p.cols + input) : 0.0F;
  if (p.wide) {
    static_cast<float*>(p.data)[item] = value;
  } else {
    static_cast<std::uint16_t*>(p.data)[item] = static_cast<std::uint16_t>(float_bits(value) >> 16);
  }
}

struct LookupParams {
  AffineWeights affine;
  DenseWeights dense;
  const std::int32_t* ids;
  std::int64_t cols, copies;
  float* out;
};

/// Blocks in y are ids, threads are inputs.
__global__ void affine_lookup_kernel(LookupParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const int input = thread_item();
  if (input >= p.cols) return;
  const std::int64_t id = p.ids[blockIdx.y];
  const std::int64_t tile = id / 16;
  const int row = static_cast<int>(id % 16);
  const std::int64_t chunks = (p.cols + 63) / 64;
  const std::int64_t groups = p.cols / p.affine.group;
  const int c = input % 64;
  const int lane = row % 8 * 4 + c % 32 / 8;
  const int n = c % 8;
  const int half = c / 32;
  const auto* words = static_cast<const unsigned*>(p.affine.codes) + (tile * chunks + input / 64) * 32 * p.affine.bits;
  unsigned code = 0;
  if (p.affine.bits == 4) {
    code = words[lane * 4 + half * 2 + row / 8] >> (4 * n) & 15U;
  } else {
    code = words[half * 128 + lane * 4 + n % 2 * 2 + row / 8] >> (8 * (n / 2)) & 255U;
  }
  const std::int64_t pair = (tile * groups + input / p.affine.group) * 16 + row % 8 * 2 + row / 8;
  float s = 0.0F;
  float b = 0.0F;
  if (p.affine.wide_pairs) {
    s = static_cast<const float*>(p.affine.pairs)[2 * pair];
    b = static_cast<const float*>(p.affine.pairs)[2 * pair + 1];
  } else {
    const unsigned both = static_cast<const unsigned*>(p.affine.pairs)[pair];
    s = bits_float(both << 16);
    b = bits_float(both & 0xffff0000U);
  }
  const float value = canon_fma(s, static_cast<float>(code), b);
  float* out = p.out + blockIdx.y * p.copies * p.cols + input;
  for (std::int64_t i = 0; i < p.copies; ++i) out[i * p.cols] = value;
}

__global__ void dense_lookup_kernel(LookupParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const int input = thread_item();
  if (input >= p.cols) return;
  const std::int64_t id = p.ids[blockIdx.y];
  const std::int64_t base = (id * ((p.cols + 255) / 256) + input / 256) * 256;
  const int lane = input % 32;
  const int step = input % 256 / 32;
  float value = 0.0F;
  if (p.dense.wide) {
    value = static_cast<const float*>(p.dense.data)[base + step / 4 * 128 + lane * 4 + step % 4];
  } else {
    value = bf16_to_float(static_cast<const std::uint16_t*>(p.dense.data)[base + lane * 8 + step]);
  }
  float* out = p.out + blockIdx.y * p.copies * p.cols + input;
  for (std::int64_t i = 0; i < p.copies; ++i) out[i * p.cols] = value;
}

Extent lookup_grid(std::int64_t cols, std::int64_t n) {
  return {blocks_for(cols, 256), static_cast<unsigned>(n), 1};
}

}  // namespace

void lay_out_affine(Queue& queue, const AffineSource& source, const AffineWeights& target) {
  AffineLayoutParams p{};
  p.source = source;
  p.codes = static_cast<unsigned*>(const_cast<void*>(target.codes));
  p.pairs = static_cast<float*>(const_cast<void*>(target.pairs));
  p.words = target.count * static_cast<std::int64_t>(target.matrix_code_bytes() / 4);
  p.count = target.count;
  p.rows = target.rows;
  p.cols = target.cols;
  p.bits = target.bits;
  p.group = target.group;
  p.wide = target.wide_pairs;
  launch_threads(queue, affine_codes_kernel, p.words, p);
  launch_threads(queue, affine_pairs_kernel, target.count * target.tiles() * target.groups() * 16, p);
}

void lay_out_dense(Queue& queue, const void* source, ElementType type, const DenseWeights& target) {
  DenseLayoutParams p{};
  p.source = source;
  p.type = type;
  p.data = const_cast<void*>(target.data);
  p.items = target.count * target.rows * target.chunks() * 256;
  p.cols = target.cols;
  p.chunks = target.chunks();
  p.wide = target.wide;
  launch_threads(queue, dense_layout_kernel, p.items, p);
}

namespace {

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

void affine_lookup(Queue& queue, const AffineWeights& weights, const std::int32_t* ids, std::int64_t n,
                   std::int64_t copies, float* out) {
  LookupParams p{};
  p.affine = weights;
  p.ids = ids;
  p.cols = weights.cols;
  p.copies = copies;
  p.out = out;
  launch(queue, affine_lookup_kernel, lookup_grid(p.cols, n), {256, 1, 1}, 0, p);
}

void dense_lookup(Queue& queue, const DenseWeights& weights, const std::int32_t* ids, std::int64_t n,
                  std::int64_t copies, float* out) {
  LookupParams p{};
  p.dense = weights;
  p.ids = ids;
  p.cols = weights.cols;
  p.copies = copies;
  p.out = out;
  launch(queue, dense_lookup_kernel, lookup_grid(p.cols, n), {256, 1, 1}, 0, p);
}

}  // namespace lockstep::kernels::cuda
