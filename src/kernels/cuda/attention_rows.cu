// Attention of many rows on CUDA: two warps take all attended positions of a row, in order, and keep the running
// state (docs/numerics.md N5).
#include "kernels/cuda/attention.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kHeads = 12;  ///< query heads of a block, of one key head
constexpr int kDim = 256;
constexpr int kWarpsHere = 2;
constexpr int kThreads = 32 * kWarpsHere;
constexpr int kThreadDims = kDim / kThreads;  ///< of the values that a thread adds up
constexpr int kSteps = kDim / 32;
constexpr int kHalf = kDim / 2;
constexpr int kStageBytes = 4096;
constexpr int kStages = 4;        ///< of a warp's ring
constexpr int kStageKeys = 8;     ///< whole keys, of one warp's own
constexpr int kStageValues = 16;  ///< the warp's half of the dimensions
constexpr int kPhase = 4;         ///< stages of a block's keys, and of its values
constexpr int kLeastRows = 128;   ///< fewer rows leave multiprocessors idle

struct Shared {
  std::uint16_t ring[kWarpsHere][kStages][kStageBytes / 2];
  float sums[kHeads][kDim];         ///< of the blocks that are done, each thread its own dimensions
  float shares[2][kBlock][kHeads];  ///< of this and the next block: scores at first, then the shares of the keys
  float2 factors[2][kHeads];        ///< what earlier blocks and this one are multiplied with
  float totals[kHeads];
  alignas(16) const
      std::byte* rows[kWarpsHere][2][kBlock];  ///< where this and the next block's keys lie, less the offset of keys
};

/// What a block's positions are and where they lie.
struct Rows {
  const AttentionRun* run;
  const std::int32_t* positions;
  int count, kv_heads, kv_head;
};

/// A lane's two positions of block b; behind the end the last one again.
__device__ __forceinline__ int2 find_positions(const Rows& r, int b) {
  const int at = b * kBlock + lane_id();
  const int last = r.count - 1;
  return make_int2(r.positions[at < last ? at : last], r.positions[at + 32 < last ? at + 32 : last]);
}

__device__ __forceinline__ const std::byte* place(const Rows& r, const std::byte* page, int position) {
  return page + r.run->layer_offset + static_cast<std::int64_t>(position % kPage * r.kv_heads + r.kv_head) * (kDim * 2);
}

/// Starts the copies of a stage: rows from[0..8], of which the lanes' two halves copy 256 bytes each, from places of
/// their own. The addresses are loaded together: one after the other each copy would wait for its own.
__device__ __forceinline__ void fetch_stage(std::uint16_t* stage, const std::byte* const* from, std::int64_t offset) {
  const int lane = lane_id();
  std::uint16_t* to = stage + lane / 16 * (kHalf * 8) + lane % 16 * 8;
  ulonglong2 rows[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) rows[i] = reinterpret_cast<const ulonglong2*>(from)[i];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    copy_soon(to + 2 * i * kHalf, reinterpret_cast<const std::byte*>(rows[i].x) + offset);
    copy_soon(to + (2 * i + 1) * kHalf, reinterpret_cast<const std::byte*>(rows[i].y) + offset);
  }
}

/// A lane's elements of the queries of heads 0..7 and 8..11, in its own order of the heads.
struct Query {
  float a[8][kSteps], b[4][kSteps];
};

/// Sums of two keys and twelve heads, spread over the warp's lanes: of heads 0..7 and of heads 8..11, [key][head], in
/// each lane's own order (fold_permuted()).
struct Sums {
  float a[16], b[8];

  /// Step i of head h and key k.
  __device__ __forceinline__ void add(const Query& q, int h, int i, int k, float key) {
    float& sum = h < 8 ? a[8 * k + h] : b[4 * k + h - 8];
    sum = canon_fma(h < 8 ? q.a[h][i] : q.b[h - 8][i], key, i == 0 ? 0.0F : sum);
  }
  /// A round of the fold.
  template <int kWidth>
  __device__ __forceinline__ void fold() {
#pragma unroll
    for (int i = 0; i < (kWidth > 1 ? kWidth / 2 : 1); ++i) {
      a[i] += __shfl_xor_sync(kAllLanes, a[kWidth > 1 ? i + kWidth / 2 : 0], kWidth);
    }
#pragma unroll
    for (int i = 0; i < (kWidth > 2 ? kWidth / 4 : 1); ++i) {
      b[i] += __shfl_xor_sync(kAllLanes, b[kWidth > 2 ? i + kWidth / 4 : 0], kWidth);
    }
  }
};

/// scores = query * key of every head and the keys of a stage, which has the first halves of all of them in front.
__device__ __forceinline__ void score_stage(const std::uint16_t* stage, const Query& q, float scale, float* scores) {
  const int lane = lane_id();
  const std::uint16_t* first = stage + lane / 16 * kHalf + lane;
  const std::uint16_t* second = stage + (1 - lane / 16) * kHalf + lane;
  float* to = scores + lane / 16 * kHeads + (lane % 2 == 0 ? lane / 2 % 8 : 8 + lane / 4 % 4);
  Sums sums[2];
  std::uint16_t raw[2][2][kSteps];
  const auto load = [&](int pair) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int at = pair * (2 * kHalf) + i / (kSteps / 2) * (kStageKeys * kHalf) + i % (kSteps / 2) * 32;
      raw[pair % 2][0][i] = first[at];
      raw[pair % 2][1][i] = second[at];
    }
  };
  const auto store = [&](const Sums& s, int pair) {
    to[pair * (2 * kHeads)] = (lane % 2 == 0 ? s.a[0] : s.b[0]) * scale;
  };
  load(0);
#pragma unroll
  for (int pair = 0; pair < kStageKeys / 2; ++pair) {
    Sums& now = sums[pair % 2];
    Sums& before = sums[(pair + 1) % 2];
    if (pair + 1 < kStageKeys / 2) load(pair + 1);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const float key[2] = {bf16_to_float(raw[pair % 2][0][i]), bf16_to_float(raw[pair % 2][1][i])};
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        // There and back: two products behind each other share an operand, which spares reading it. Registers lie in
        // two banks, and what a product reads beyond one of each costs as much as another instruction.
        now.add(q, h, i, h % 2, key[h % 2]);
        now.add(q, h, i, 1 - h % 2, key[1 - h % 2]);
      }
      if (pair == 0) continue;
      if (i == 0) before.fold<16>();
      if (i == 1) before.fold<8>();
      if (i == 2) before.fold<4>();
      if (i == 3) before.fold<2>();
      if (i == 4) before.fold<1>();
      if (i == 5) store(before, pair - 1);
    }
  }
  Sums& last = sums[1];
  last.fold<16>();
  last.fold<8>();
  last.fold<4>();
  last.fold<2>();
  last.fold<1>();
  store(last, kStageKeys / 2 - 1);
}

constexpr int kWarpHeads = kHeads / kWarpsHere;

/// The running state of the warp's heads: four neighbouring ones and two others; lane i has that of head i % 8.
struct Running {
  float maximum, total;
};

/// values[lane % 8], where there are that many: without an index, for which they would have to lie in memory.
__device__ __forceinline__ float of_lane(const float (&values)[kWarpHeads], int lane) {
  const bool odd = (lane & 1) != 0;
  const float first = odd ? values[1] : values[0];
  const float second = odd ? values[3] : values[2];
  const float third = odd ? values[5] : values[4];
  const float low = (lane & 2) != 0 ? second : first;
  return (lane & 4) != 0 ? third : low;
}

/// canon_exp() without a branch around it: with one, every exponential would wait for the one before.
__device__ __forceinline__ float exp_always(float x) {
  const ExpParts e = canon_exp_parts(x);
  float y = (e.y.high * e.s1) * e.s2;
  asm volatile("" : "+f"(y));
  return x == x ? y : x;
}

/// The shares of the warp's heads' keys in the block, and how block and earlier blocks merge.
__device__ __forceinline__ void share_block(float (&shares)[kBlock][kHeads], float2 (&factors)[kHeads],
                                            Running& running, int warp, int size, bool first) {
  const int lane = lane_id();
  float p[kWarpHeads][2];
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float4 four = *reinterpret_cast<const float4*>(&shares[lane + 32 * k][warp * 4]);
    const float2 two = *reinterpret_cast<const float2*>(&shares[lane + 32 * k][8 + warp * 2]);
    const bool has = lane + 32 * k < size;
    const float scores[kWarpHeads] = {four.x, four.y, four.z, four.w, two.x, two.y};
#pragma unroll
    for (int h = 0; h < kWarpHeads; ++h) p[h][k] = has ? scores[h] : -INFINITY;
  }
  // Where a score is no number the total is none either, whatever the maximum.
  float maxima[kWarpHeads];
#pragma unroll
  for (int h = 0; h < kWarpHeads; ++h) maxima[h] = fmaxf(p[h][0], p[h][1]);
#pragma unroll
  for (int width = 16; width > 0; width /= 2) {
#pragma unroll
    for (int h = 0; h < kWarpHeads; ++h) maxima[h] = fmaxf(maxima[h], __shfl_xor_sync(kAllLanes, maxima[h], width));
  }
  float sums[kWarpHeads];
#pragma unroll
  for (int h = 0; h < kWarpHeads; ++h) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const float e = exp_always(p[h][k] - maxima[h]);
      p[h][k] = lane + 32 * k < size ? e : 0.0F;
    }
    sums[h] = p[h][0] + p[h][1];
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    *reinterpret_cast<float4*>(&shares[lane + 32 * k][warp * 4]) = make_float4(p[0][k], p[1][k], p[2][k], p[3][k]);
    *reinterpret_cast<float2*>(&shares[lane + 32 * k][8 + warp * 2]) = make_float2(p[4][k], p[5][k]);
  }
#pragma unroll
  for (int width = 16; width > 0; width /= 2) {
#pragma unroll
    for (int h = 0; h < kWarpHeads; ++h) sums[h] += __shfl_xor_sync(kAllLanes, sums[h], width);
  }
  const float maximum = of_lane(maxima, lane);
  const float sum = of_lane(sums, lane);
  if (first) {
    running = {maximum, sum};
    return;
  }
  const float top = maximum > running.maximum ? maximum : running.maximum;
  const bool of_earlier = (lane & 8) == 0;
  const float mine = exp_always((of_earlier ? running.maximum : maximum) - top);
  const float other = __shfl_xor_sync(kAllLanes, mine, 8);
  const float old_factor = of_earlier ? mine : other;
  const float new_factor = of_earlier ? other : mine;
  running = {top, canon_fma(running.total, old_factor, sum * new_factor)};
  if (lane < kWarpHeads) {
    factors[lane < 4 ? warp * 4 + lane : 8 + warp * 2 + lane - 4] = make_float2(old_factor, new_factor);
  }
}

using Out = float[kHeads][kThreadDims];

/// Adds `keys` keys of a stage of values.
__device__ __forceinline__ void add_stage(const std::uint16_t* stage, const float (*shares)[kHeads], int keys,
                                          Out& out) {
  const std::uint16_t* mine = stage + lane_id() * kThreadDims;
  const auto add = [&](int j) {
    static_assert(kThreadDims == 4);
    const uint2 four = *reinterpret_cast<const uint2*>(mine + j * kHalf);
    const float value[4] = {bits_float(four.x << 16), bits_float(four.x & 0xffff0000U), bits_float(four.y << 16),
                            bits_float(four.y & 0xffff0000U)};
    float of_heads[kHeads];
#pragma unroll
    for (int f = 0; f < kHeads / 4; ++f) {
      const float4 share = *reinterpret_cast<const float4*>(&shares[j][4 * f]);
      of_heads[4 * f] = share.x;
      of_heads[4 * f + 1] = share.y;
      of_heads[4 * f + 2] = share.z;
      of_heads[4 * f + 3] = share.w;
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < kThreadDims; ++i) {
        const int d = h % 2 == 0 ? i : kThreadDims - 1 - i;  // there and back
        out[h][d] = canon_fma(of_heads[h], value[d], out[h][d]);
      }
    }
  };
  int j = 0;
#pragma unroll 1
  for (; j + 8 <= keys; j += 8) {
#pragma unroll
    for (int k = 0; k < 8; ++k) add(j + k);
  }
#pragma unroll 1
  for (; j < keys; ++j) add(j);
}

/// Merges the block's values with those of the earlier blocks. Half of the sums are loaded together.
__device__ __forceinline__ void merge_block(Shared& shared, const float2 (&factors)[kHeads], const Out& out,
                                            bool first) {
  const int dim = static_cast<int>(threadIdx.x) * kThreadDims;
  if (first) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      *reinterpret_cast<float4*>(&shared.sums[h][dim]) = make_float4(out[h][0], out[h][1], out[h][2], out[h][3]);
    }
    return;
  }
#pragma unroll
  for (int half = 0; half < kHeads; half += kHeads / 2) {
    float4 sums[kHeads / 2];
    float2 f[kHeads / 2];
#pragma unroll
    for (int i = 0; i < kHeads / 2; ++i) {
      sums[i] = *reinterpret_cast<const float4*>(&shared.sums[half + i][dim]);
      f[i] = factors[half + i];
    }
#pragma unroll
    for (int i = 0; i < kHeads / 2; ++i) {
      sums[i].x = canon_fma(sums[i].x, f[i].x, out[half + i][0] * f[i].y);
      sums[i].y = canon_fma(sums[i].y, f[i].x, out[half + i][1] * f[i].y);
      sums[i].z = canon_fma(sums[i].z, f[i].x, out[half + i][2] * f[i].y);
      sums[i].w = canon_fma(sums[i].w, f[i].x, out[half + i][3] * f[i].y);
      *reinterpret_cast<float4*>(&shared.sums[half + i][dim]) = sums[i];
    }
  }
}

/// Grid: x key heads and parts of their query heads, y rows. Each warp has its own keys to score and its own
/// dimensions of the values, which it copies for itself: the two meet only for the shares.
__global__ void __launch_bounds__(kThreads, 4) attend_rows_kernel(AttendParams p) {
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
                  p.scratch.positions + static_cast<std::int64_t>(blockIdx.y) * s.width(), p.scratch.counts[blockIdx.y],
                  s.kv_heads, kv_head};
  const int blocks = (rows.count + kBlock - 1) / kBlock;
  const int lane = lane_id();
  // The same in all lanes for the compiler too: it would make a second version of everything that exchanges.
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / 32, 0);
  auto& ring = shared.ring[warp];
  auto& places = shared.rows[warp];
  const std::int64_t keys_offset = s.keys_offset + lane * 16;
  const std::int64_t values_offset = s.values_offset + warp * kDim + lane % 16 * 16;
  // Starts the copies of stage i of the block's keys and values, of which the first kPhase stages are keys.
  const auto fetch = [&](int b, int i) {
    const bool key = i < kPhase;
    const int from = i % kPhase * kStageValues + (key ? warp : lane / 16) * kStageKeys;
    fetch_stage(ring[i % kStages], &places[b % 2][from], key ? keys_offset : values_offset);
    copies_made();
  };
  static_assert(kPhase == kStages);
  int2 positions = find_positions(rows, 0);
  places[0][lane] = place(rows, rows.run->pages[positions.x / kPage], positions.x);
  places[0][lane + 32] = place(rows, rows.run->pages[positions.y / kPage], positions.y);
  positions = find_positions(rows, 1);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) fetch(0, i);
  Query q;
  {
    const float* from = p.q + (row * s.heads + head0) * kDim + lane;
#pragma unroll
    for (int h = 0; h < 8; ++h) {
      const int head = h ^ (lane / 2 % 8);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) q.a[h][i] = head < heads ? from[head * kDim + i * 32] : 0.0F;
    }
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      const int head = 8 + (h ^ (lane / 4 % 4));
#pragma unroll
      for (int i = 0; i < kSteps; ++i) q.b[h][i] = head < heads ? from[head * kDim + i * 32] : 0.0F;
    }
  }
  const float scale = canon_rsqrt(static_cast<float>(kDim));
  Running running{0.0F, 0.0F};
#pragma unroll 1
  for (int b = 0; b < blocks; ++b) {
    const int size = rows.count - b * kBlock < kBlock ? rows.count - b * kBlock : kBlock;
    auto& shares = shared.shares[b % 2];
    const std::byte* const page0 = rows.run->pages[positions.x / kPage];
    const std::byte* const page1 = rows.run->pages[positions.y / kPage];
    const int2 after = find_positions(rows, b + 2);
#pragma unroll 1
    for (int stage = 0; stage < kPhase; ++stage) {
      wait_copies<kStages - 2>();
      __syncwarp();  // the stage is there, the one before it is used
      fetch(b, stage + kStages - 1);
      const int key0 = stage * (kWarpsHere * kStageKeys) + warp * kStageKeys;
      if (key0 < size) score_stage(ring[stage], q, scale, shares[key0]);
    }
    places[(b + 1) % 2][lane] = place(rows, page0, positions.x);
    places[(b + 1) % 2][lane + 32] = place(rows, page1, positions.y);
    positions = after;
    __syncthreads();
    share_block(shares, shared.factors[b % 2], running, warp, size, b == 0);
    __syncthreads();
    Out out;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int d = 0; d < kThreadDims; ++d) out[h][d] = 0.0F;
    }
#pragma unroll 1
    for (int stage = 0; stage < kPhase; ++stage) {
      wait_copies<kStages - 2>();
      __syncwarp();
      fetch(stage == 0 ? b : b + 1, (kPhase + stage + kStages - 1) % (2 * kPhase));
      const int here = size - stage * kStageValues;
      add_stage(ring[stage], shares + stage * kStageValues, here < kStageValues ? here : kStageValues, out);
    }
    merge_block(shared, shared.factors[b % 2], out, b == 0);
  }
  wait_copies<0>();
  if (lane < kWarpHeads) shared.totals[lane < 4 ? warp * 4 + lane : 8 + warp * 2 + lane - 4] = running.total;
  __syncthreads();
  const int dim = static_cast<int>(threadIdx.x) * kThreadDims;
#pragma unroll 2
  for (int h = 0; h < heads; ++h) {
    const std::int64_t head = row * s.heads + head0 + h;
    const float total = shared.totals[h];
    const float4 sums = *reinterpret_cast<const float4*>(&shared.sums[h][dim]);
    const float4 gate = *reinterpret_cast<const float4*>(p.q_gate + (head * 2 + 1) * kDim + dim);
    *reinterpret_cast<float4*>(p.out + head * kDim + dim) =
        make_float4(sums.x / total * canon_sigmoid(gate.x), sums.y / total * canon_sigmoid(gate.y),
                    sums.z / total * canon_sigmoid(gate.z), sums.w / total * canon_sigmoid(gate.w));
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
