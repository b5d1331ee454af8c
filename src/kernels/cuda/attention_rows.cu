// Attention of many rows on CUDA: one block takes all attended positions of a row, in order, and keeps the running
// state (docs/numerics.md N5).
#include "kernels/cuda/attention.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kHeads = 12;              ///< query heads of a block, of one key head
constexpr int kPartHeads = kHeads / 2;  ///< of a thread that adds up values
constexpr int kDim = 256;
constexpr int kThreads = kDim;
constexpr int kWarpsHere = kThreads / 32;
constexpr int kWarpKeys = kBlock / kWarpsHere;  ///< keys of a warp
constexpr int kPieces = kDim / 8;               ///< of 16 bytes, of a key or value
constexpr int kLeastRows = 128;                 ///< fewer rows leave multiprocessors idle

struct Shared {
  float query[kHeads][kDim];
  float sums[kHeads][kDim];  ///< of the blocks that are done, each thread its own dimensions and heads
  std::uint16_t keys[kBlock][kDim];
  std::uint16_t values[kBlock][kDim];
  float shares[kHeads][kBlock];  ///< scores at first, then the shares of the keys
  float old_factors[kHeads], new_factors[kHeads];
  float maxima[kHeads], totals[kHeads];
  const std::byte* rows[2][kBlock];  ///< keys of this and the next block
};

/// What a block's positions are and where they lie.
struct Rows {
  const AttentionRun* run;
  const std::int32_t* positions;
  std::int64_t keys_offset, values_offset;
  int count, kv_heads, kv_head;
};

/// The addresses of block b's keys, less the offset of keys.
__device__ __forceinline__ void place_block(Shared& shared, const Rows& r, int b) {
  const int thread = static_cast<int>(threadIdx.x);
  const int at = b * kBlock + thread;
  if (thread >= kBlock || at >= r.count) return;
  const int position = r.positions[at];
  shared.rows[b % 2][thread] = r.run->pages[position / kPage] + r.run->layer_offset +
                               static_cast<std::int64_t>(position % kPage * r.kv_heads + r.kv_head) * (kDim * 2);
}

/// Starts the copies of block b's keys or values.
__device__ __forceinline__ void fetch_block(std::uint16_t (&to)[kBlock][kDim], const Shared& shared, const Rows& r,
                                            int b, std::int64_t offset) {
  const int lane = lane_id();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  static_assert(kPieces == 32);
#pragma unroll
  for (int i = 0; i < kWarpKeys; ++i) {
    const int k = warp + i * kWarpsHere;
    if (b * kBlock + k < r.count) copy_soon(&to[k][lane * 8], shared.rows[b % 2][k] + offset + lane * 16);
  }
  copies_made();
}

/// What a thread adds up of the values.
struct Part {
  int dim, head;
  __device__ __forceinline__ Part()
      : dim(static_cast<int>(threadIdx.x) % (kDim / 2) * 2),
        head(static_cast<int>(threadIdx.x) / (kDim / 2) * kPartHeads) {}
};

/// scores = query * key of every head and a warp's keys.
__device__ __forceinline__ void score_block(Shared& shared, float scale) {
  const int lane = lane_id();
  const int key0 = static_cast<int>(threadIdx.x) / 32 * kWarpKeys;
  static_assert(kWarpKeys == 8);
  // Of four heads: [key of the warp][head], permuted by the lane's number as fold_permuted() wants it.
  float sums[kHeads / 4][32];
#pragma unroll
  for (int f = 0; f < kHeads / 4; ++f) {
#pragma unroll
    for (int i = 0; i < 32; ++i) sums[f][i] = 0.0F;
  }
  const float* queries[4];
  const std::uint16_t* keys[kWarpKeys];
#pragma unroll
  for (int h = 0; h < 4; ++h) queries[h] = &shared.query[h ^ (lane % 4)][lane];
#pragma unroll
  for (int j = 0; j < kWarpKeys; ++j) keys[j] = &shared.keys[key0 + (j ^ (lane / 4))][lane];
#pragma unroll 1
  for (int i = 0; i < kDim; i += 32) {
    float q[kHeads];
#pragma unroll
    for (int h = 0; h < kHeads; ++h) q[h] = queries[h % 4][h / 4 * (4 * kDim) + i];
#pragma unroll
    for (int j = 0; j < kWarpKeys; ++j) {
      const float key = bf16_to_float(keys[j][i]);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) sums[h / 4][j * 4 + h % 4] = canon_fma(q[h], key, sums[h / 4][j * 4 + h % 4]);
    }
  }
#pragma unroll
  for (int f = 0; f < kHeads / 4; ++f) {
    const float dot = fold_permuted(sums[f]);
    shared.shares[4 * f + lane % 4][key0 + lane / 4] = dot * scale;
  }
}

/// The shares of a head's keys in the block, and how block and earlier blocks merge. By one warp.
__device__ __forceinline__ void share_block(Shared& shared, int h, int size, bool first) {
  const int lane = lane_id();
  const bool has0 = lane < size;
  const bool has1 = lane + 32 < size;
  const float s0 = shared.shares[h][has0 ? lane : 0];
  const float s1 = shared.shares[h][has1 ? lane + 32 : 0];
  const float maximum = warp_max(s1 > s0 ? s1 : s0);
  const float p0 = has0 ? canon_exp(s0 - maximum) : 0.0F;
  const float p1 = has1 ? canon_exp(s1 - maximum) : 0.0F;
  __syncwarp();  // all lanes have their scores
  shared.shares[h][lane] = p0;
  shared.shares[h][lane + 32] = p1;
  const float sum = fold_lanes(p0 + p1);
  if (first) {
    if (lane == 0) {
      shared.maxima[h] = maximum;
      shared.totals[h] = sum;
    }
    return;
  }
  const float before = shared.maxima[h];
  const float top = maximum > before ? maximum : before;
  const float factor = canon_exp((lane == 0 ? before : maximum) - top);  // lane 0: of earlier blocks; 1: of this one
  const float new_factor = __shfl_sync(kAllLanes, factor, 1);
  if (lane != 0) return;
  shared.maxima[h] = top;
  shared.totals[h] = canon_fma(shared.totals[h], factor, sum * new_factor);
  shared.old_factors[h] = factor;
  shared.new_factors[h] = new_factor;
}

/// A thread's two dimensions and six heads of the block's values, and their merge with the earlier blocks.
__device__ __forceinline__ void add_block(Shared& shared, const Part& part, int size, bool first) {
  float out[kPartHeads][2];
#pragma unroll
  for (int h = 0; h < kPartHeads; ++h) out[h][0] = out[h][1] = 0.0F;
  const auto add = [&](int j, const float(&shares)[kPartHeads]) {
    const unsigned two = *reinterpret_cast<const unsigned*>(&shared.values[j][part.dim]);
    const float value[2] = {bits_float(two << 16), bits_float(two & 0xffff0000U)};
#pragma unroll
    for (int h = 0; h < kPartHeads; ++h) {
      out[h][0] = canon_fma(shares[h], value[0], out[h][0]);
      out[h][1] = canon_fma(shares[h], value[1], out[h][1]);
    }
  };
  int j = 0;
#pragma unroll 1
  for (; j + 4 <= size; j += 4) {
    float shares[4][kPartHeads];
#pragma unroll
    for (int h = 0; h < kPartHeads; ++h) {
      const float4 four = *reinterpret_cast<const float4*>(&shared.shares[part.head + h][j]);
      shares[0][h] = four.x;
      shares[1][h] = four.y;
      shares[2][h] = four.z;
      shares[3][h] = four.w;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) add(j + k, shares[k]);
  }
#pragma unroll 1
  for (; j < size; ++j) {
    float shares[kPartHeads];
#pragma unroll
    for (int h = 0; h < kPartHeads; ++h) shares[h] = shared.shares[part.head + h][j];
    add(j, shares);
  }
#pragma unroll
  for (int h = 0; h < kPartHeads; ++h) {
    auto& sums = *reinterpret_cast<float2*>(&shared.sums[part.head + h][part.dim]);
    if (!first) {
      const float old_factor = shared.old_factors[part.head + h];
      const float new_factor = shared.new_factors[part.head + h];
      const float2 before = sums;
      out[h][0] = canon_fma(before.x, old_factor, out[h][0] * new_factor);
      out[h][1] = canon_fma(before.y, old_factor, out[h][1] * new_factor);
    }
    sums = make_float2(out[h][0], out[h][1]);
  }
}

/// Grid: x key heads and parts of their query heads, y rows. While a block of positions is scored its values arrive,
/// while its values are added the next keys do.
__global__ void __launch_bounds__(kThreads, 2) attend_rows_kernel(AttendParams p) {
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  trigger_next_grid();
  wait_previous_grid();
  const AttentionShape& s = p.shape;
  const int group = s.heads / s.kv_heads;
  const int parts = (group + kHeads - 1) / kHeads;
  const int kv_head = static_cast<int>(blockIdx.x) / parts;
  const int head0 = kv_head * group + static_cast<int>(blockIdx.x) % parts * kHeads;
  const int left = (kv_head + 1) * group - head0;
  const int heads = left < kHeads ? left : kHeads;
  const std::int64_t row = p.first_row + static_cast<int>(blockIdx.y);
  const Rows rows{place_row(p, static_cast<int>(row)).run,
                  p.scratch.positions + static_cast<std::int64_t>(blockIdx.y) * s.width(),
                  s.keys_offset,
                  s.values_offset,
                  p.scratch.counts[blockIdx.y],
                  s.kv_heads,
                  kv_head};
  const int blocks = (rows.count + kBlock - 1) / kBlock;
  const int thread = static_cast<int>(threadIdx.x);
  place_block(shared, rows, 0);
  __syncthreads();
  fetch_block(shared.keys, shared, rows, 0, rows.keys_offset);
  for (int h = 0; h < kHeads; ++h) {
    shared.query[h][thread] = h < heads ? p.q[(row * s.heads + head0 + h) * kDim + thread] : 0.0F;
  }
  const float scale = canon_rsqrt(static_cast<float>(kDim));
  const Part part;
#pragma unroll 1
  for (int b = 0; b < blocks; ++b) {
    const int size = rows.count - b * kBlock < kBlock ? rows.count - b * kBlock : kBlock;
    wait_copies<0>();
    __syncthreads();  // the keys are there, the values before them are used
    fetch_block(shared.values, shared, rows, b, rows.values_offset);
    place_block(shared, rows, b + 1);
    score_block(shared, scale);
    __syncthreads();
    fetch_block(shared.keys, shared, rows, b + 1, rows.keys_offset);
    for (int h = thread / 32; h < heads; h += kWarpsHere) share_block(shared, h, size, b == 0);
    wait_copies<1>();
    __syncthreads();
    add_block(shared, part, size, b == 0);
  }
  wait_copies<0>();
#pragma unroll 1
  for (int h = part.head; h < part.head + kPartHeads && h < heads; ++h) {
    const std::int64_t head = row * s.heads + head0 + h;
    const float total = shared.totals[h];
    const float2 sums = *reinterpret_cast<const float2*>(&shared.sums[h][part.dim]);
    const float2 gate = *reinterpret_cast<const float2*>(p.q_gate + (head * 2 + 1) * kDim + part.dim);
    *reinterpret_cast<float2*>(p.out + head * kDim + part.dim) =
        make_float2(sums.x / total * canon_sigmoid(gate.x), sums.y / total * canon_sigmoid(gate.y));
  }
}

}  // namespace

bool attend_rows_takes(const AttendParams& p) {
  return p.rows >= kLeastRows && p.shape.type == ElementType::BF16 && p.shape.dim == kDim &&
         p.shape.heads / p.shape.kv_heads > kHeads / 2;
}

void attend_rows(Queue& queue, const AttendParams& p) {
  const int group = p.shape.heads / p.shape.kv_heads;
  const auto parts = static_cast<unsigned>(p.shape.kv_heads * ((group + kHeads - 1) / kHeads));
  launch(queue, attend_rows_kernel, {parts, static_cast<unsigned>(p.rows), 1}, {kThreads, 1, 1}, sizeof(Shared), p);
}

}  // namespace lockstep::kernels::cuda
