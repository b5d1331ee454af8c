// Matrix products of the canon on CUDA (docs/numerics.md N3 and N4).
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/linear.hpp"
#include "numerics/affine.hpp"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kSegmentChunks = kSegmentInputs / 64;
constexpr int kMaxWarps = 16;
/// Activation rows of one mma.
constexpr int kColumns = 8;

struct AffineParams {
  const uint4* codes;
  const void* pairs;
  const uint4* digits;
  const float2* steps;
  float* out;
  std::int64_t out_stride, matrix_codes, matrix_pairs;  ///< matrix strides in bytes
  int rows, chunks, groups, segments, tokens, tiles, tiles_per_block;
  const ExpertRun* runs;
  const std::int32_t *run_count, *in_rows, *out_rows;
};

/// D += A * B for 16 rows, 8 columns, 32 inputs: unsigned weights, signed or unsigned digits.
__device__ __forceinline__ void mma_signed(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_unsigned(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The codes of inputs 32m..32m+31 of a chunk as the mma's A operand: even inputs of every eight, then odd ones.
template <int kBits>
__device__ __forceinline__ void unpack(const uint4* chunk, int m, unsigned (&a)[4]) {
  if constexpr (kBits == 4) {
    const unsigned low = m == 0 ? chunk[0].x : chunk[0].z;
    const unsigned high = m == 0 ? chunk[0].y : chunk[0].w;
    a[0] = low & 0x0f0f0f0fU;
    a[1] = high & 0x0f0f0f0fU;
    a[2] = (low >> 4) & 0x0f0f0f0fU;
    a[3] = (high >> 4) & 0x0f0f0f0fU;
  } else {
    a[0] = chunk[m].x;
    a[1] = chunk[m].y;
    a[2] = chunk[m].z;
    a[3] = chunk[m].w;
  }
}

/// Scale and bias of rows g and g + 8.
struct Pairs {
  float s0, b0, s1, b1;
};
template <bool kWide>
__device__ __forceinline__ Pairs load_pairs(const void* pairs, std::int64_t index) {
  if constexpr (kWide) {
    const float4 v = __ldg(static_cast<const float4*>(pairs) + index);
    return {v.x, v.y, v.z, v.w};
  } else {
    const uint2 v = __ldg(static_cast<const uint2*>(pairs) + index);
    return {bits_float(v.x << 16), bits_float(v.x & 0xffff0000U), bits_float(v.y << 16), bits_float(v.y & 0xffff0000U)};
  }
}

/// One warp per segment of 512 inputs of a tile of 16 rows; the segments' sums meet in shared memory.
template <int kBits, int kGroup, bool kWide>
__global__ void __launch_bounds__(32 * kMaxWarps) affine_kernel(AffineParams p) {
  constexpr int kPieces = kBits / 4;
  constexpr int kGroupsPerSegment = kSegmentInputs / kGroup;
  extern __shared__ float parts[];  // [tile of the block][segment][16][kColumns]
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
  const int row = lane / 4;
  const int quad = lane % 4;
  const int warps = static_cast<int>(blockDim.y);
  const int tile = static_cast<int>(blockIdx.x) * p.tiles_per_block + static_cast<int>(threadIdx.z);
  const bool inside = tile < p.tiles;
  float* part = parts + static_cast<int>(threadIdx.z) * p.segments * 16 * kColumns;
  const uint4* codes =
      p.codes + expert * (p.matrix_codes / 16) + static_cast<std::int64_t>(tile) * p.chunks * (32 * kPieces) + lane;
  const char* pairs = static_cast<const char*>(p.pairs) + expert * p.matrix_pairs;

  uint4 weights[kSegmentChunks * kPieces];
  Pairs scales[kGroupsPerSegment];
  for (int base = 0; base < tokens; base += kColumns) {
    const int mine = base + row;  // the activation row whose digits this lane loads
    const bool live = mine < tokens;
    const std::int64_t in = !live ? 0 : (p.in_rows != nullptr ? p.in_rows[first + mine] : first + mine);
    const uint4* digits = p.digits + in * p.chunks * 8 + quad * 2;
    const float2* steps[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int token = base + 2 * quad + c < tokens ? base + 2 * quad + c : tokens - 1;
      const std::int64_t from = p.in_rows != nullptr ? p.in_rows[first + token] : first + token;
      steps[c] = p.steps + from * p.groups;
    }
    for (int segment = static_cast<int>(threadIdx.y); inside && segment < p.segments; segment += warps) {
      const int chunk0 = segment * kSegmentChunks;
      const int group0 = segment * kGroupsPerSegment;
      if (base == 0 || p.segments > warps) {
#pragma unroll
        for (int i = 0; i < kSegmentChunks * kPieces; ++i) {
          weights[i] = make_uint4(0, 0, 0, 0);
          if (chunk0 + i / kPieces < p.chunks) weights[i] = __ldcs(codes + (chunk0 * kPieces + i) * 32);
        }
#pragma unroll
        for (int i = 0; i < kGroupsPerSegment; ++i) {
          scales[i] = Pairs{};
          if (group0 + i < p.groups) {
            scales[i] = load_pairs<kWide>(pairs, (static_cast<std::int64_t>(tile) * p.groups + group0 + i) * 8 + row);
          }
        }
      }
      float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
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
            unpack<kBits>(weights + i * kPieces, m, a);
            mma_signed(high, a, m == 0 ? h.x : h.z, m == 0 ? h.y : h.w);
            mma_unsigned(low, a, m == 0 ? l.x : l.z, m == 0 ? l.y : l.w);
            constexpr int kStepsPerGroup = kGroup / 32;
            const int step = 2 * i + m;
            if ((step + 1) % kStepsPerGroup == 0) {
              const int local = step / kStepsPerGroup;
              if (group0 + local < p.groups) {
                const Pairs s = scales[local];
#pragma unroll
                for (int c = 0; c < 2; ++c) {
                  const float2 t = steps[c][group0 + local];
                  const float i0 = static_cast<float>(high[c] * 256 + low[c]);
                  const float i1 = static_cast<float>(high[2 + c] * 256 + low[2 + c]);
                  sums[c] += canon_fma(s.s0 * t.x, i0, (s.b0 * t.x) * t.y);
                  sums[2 + c] += canon_fma(s.s1 * t.x, i1, (s.b1 * t.x) * t.y);
                }
              }
#pragma unroll
              for (int c = 0; c < 4; ++c) high[c] = low[c] = 0;
            }
          }
        }
      }
      float* to = part + segment * 16 * kColumns + row * kColumns + 2 * quad;
      to[0] = sums[0];
      to[1] = sums[1];
      to[8 * kColumns] = sums[2];
      to[8 * kColumns + 1] = sums[3];
    }
    __syncthreads();
    const int in_tile = static_cast<int>(threadIdx.y) * 32 + lane;
    for (int i = in_tile; inside && i < 16 * kColumns; i += 32 * warps) {
      const int r = i % 16;
      const int token = base + i / 16;
      if (tile * 16 + r >= p.rows || token >= tokens) continue;
      float total = 0.0F;
      for (int s = 0; s < p.segments; ++s) total += part[s * 16 * kColumns + r * kColumns + i / 16];
      const std::int64_t to = p.out_rows != nullptr ? p.out_rows[first + token] : first + token;
      p.out[to * p.out_stride + tile * 16 + r] = total;
    }
    __syncthreads();
  }
}

template <int kBits, int kGroup, bool kWide>
void run_affine(Queue& queue, const AffineParams& p, Extent grid, Extent block, std::size_t shared) {
  launch(queue, affine_kernel<kBits, kGroup, kWide>, grid, block, shared, p);
}

template <int kBits, bool kWide>
void run_affine_group(Queue& queue, int group, const AffineParams& p, Extent grid, Extent block, std::size_t shared) {
  if (group == 32) {
    run_affine<kBits, 32, kWide>(queue, p, grid, block, shared);
  } else if (group == 64) {
    run_affine<kBits, 64, kWide>(queue, p, grid, block, shared);
  } else {
    run_affine<kBits, 128, kWide>(queue, p, grid, block, shared);
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

/// One warp per output row; lane j is lane j of fold32.
template <bool kWide, int kTokens>
__global__ void __launch_bounds__(256) dense_kernel(DenseParams p) {
  constexpr int kAhead = kWide ? 4 : 8;
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
  for (int base = 0; base < tokens; base += kTokens) {
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

struct QuantiseParams {
  const float* x;
  std::uint8_t* digits;
  float2* steps;
  int items, cols, chunks, groups, group;  ///< items = rows * groups
};

/// One warp per group of inputs.
__global__ void quantise_kernel(QuantiseParams p) {
  const int item = warp_item();
  if (item >= p.items) return;
  const int lane = lane_id();
  const int row = item / p.groups;
  const int input0 = item % p.groups * p.group;
  const float* x = p.x + static_cast<std::int64_t>(row) * p.cols + input0;
  const int per_lane = p.group / 32;  // 1, 2 or 4
  float values[4];
  unsigned top = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= per_lane) continue;
    values[i] = x[lane * per_lane + i];
    const unsigned magnitude = float_bits(values[i]) & 0x7fffffffU;
    top = magnitude > top ? magnitude : top;
  }
  top = __reduce_max_sync(kAllLanes, top);
  const bool finite = top < 0x7f800000U;
  const float t = finite ? bits_float(top) / 32767.0F : bits_float(0x7fc00000U);
  int total = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= per_lane) continue;
    int a = 0;
    if (finite && t != 0.0F) {
      float q = values[i] / t;
      q = q > 32767.0F ? 32767.0F : q;
      q = q < -32767.0F ? -32767.0F : q;
      a = static_cast<int>(canon_round(q));
    }
    total += a;
    // Input c of a chunk: half m, lane quad j, place n of eight; even places come first.
    const int input = input0 + lane * per_lane + i;
    const int c = input % 64;
    const int n = c % 8;
    std::uint8_t* at = p.digits + (static_cast<std::int64_t>(row) * p.chunks + input / 64) * 128 + c % 32 / 8 * 32 +
                       c / 32 * 8 + n % 2 * 4 + n / 2;
    at[0] = static_cast<std::uint8_t>(a >> 8);
    at[16] = static_cast<std::uint8_t>(a);
  }
  total = __reduce_add_sync(kAllLanes, total);
  if (lane == 0) p.steps[item] = make_float2(t, static_cast<float>(total));
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

void quantise_rows(Queue& queue, const float* x, const ActivationRows& target) {
  QuantiseParams p{};
  p.x = x;
  p.digits = static_cast<std::uint8_t*>(target.digits);
  p.steps = static_cast<float2*>(target.steps);
  p.cols = static_cast<int>(target.cols);
  p.chunks = static_cast<int>(target.chunks());
  p.group = target.group;
  p.groups = p.cols / p.group;
  p.items = static_cast<int>(target.rows) * p.groups;
  launch_warps(queue, quantise_kernel, p.items, p);
}

void affine_product(Queue& queue, const AffineWeights& weights, const ActivationRows& x, const Selection* selection,
                    float* out, std::int64_t out_stride) {
  AffineParams p{};
  p.codes = static_cast<const uint4*>(weights.codes);
  p.pairs = weights.pairs;
  p.digits = static_cast<const uint4*>(x.digits);
  p.steps = static_cast<const float2*>(x.steps);
  p.out = out;
  p.out_stride = out_stride;
  p.matrix_codes = static_cast<std::int64_t>(weights.matrix_code_bytes());
  p.matrix_pairs = static_cast<std::int64_t>(weights.matrix_pair_bytes());
  p.rows = static_cast<int>(weights.rows);
  p.chunks = static_cast<int>(weights.chunks());
  p.groups = static_cast<int>(weights.groups());
  p.segments = (p.chunks + kSegmentChunks - 1) / kSegmentChunks;
  p.tokens = static_cast<int>(x.rows);
  p.tiles = static_cast<int>(weights.tiles());
  const int warps = p.segments < kMaxWarps ? p.segments : kMaxWarps;
  p.tiles_per_block = warps >= 5 ? 1 : 4 / warps;
  unsigned grid_y = 1;
  if (selection != nullptr) {
    p.runs = selection->runs;
    p.run_count = selection->run_count;
    p.in_rows = selection->in_rows;
    p.out_rows = selection->out_rows;
    grid_y = static_cast<unsigned>(selection->most_runs);
  }
  const Extent grid{blocks_for(p.tiles, p.tiles_per_block), grid_y, 1};
  const Extent block{32, static_cast<unsigned>(warps), static_cast<unsigned>(p.tiles_per_block)};
  const std::size_t shared = static_cast<std::size_t>(p.tiles_per_block * p.segments * 16 * kColumns) * sizeof(float);
  if (weights.bits == 4) {
    if (weights.wide_pairs) {
      run_affine_group<4, true>(queue, weights.group, p, grid, block, shared);
    } else {
      run_affine_group<4, false>(queue, weights.group, p, grid, block, shared);
    }
  } else if (weights.wide_pairs) {
    run_affine_group<8, true>(queue, weights.group, p, grid, block, shared);
  } else {
    run_affine_group<8, false>(queue, weights.group, p, grid, block, shared);
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
  const int warps = p.rows >= 4096 ? 8 : (p.rows >= 1024 ? 4 : 2);
  const Extent grid{blocks_for(p.rows, warps), grid_y, 1};
  const Extent block{32, static_cast<unsigned>(warps), 1};
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
