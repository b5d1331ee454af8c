// The rows of one run, a value head in a cluster of two blocks, each with half of its columns: the state is on its way
// to registers before the rows are there, and the rows are prepared by warps of their own beside it.
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/delta_rule.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/few_delta.hpp"
#include "kernels/cuda/quantise.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kDim = 128;  ///< of keys and values
constexpr int kTaps = 4;
constexpr int kSegments = kDim / kSegmentKeys;
constexpr int kPadded = kSegments * kPaddedKeys;
constexpr int kColumnsPerWarp = 32 / kSegments;
constexpr int kParts = 2;                ///< blocks of a head
constexpr int kColumns = kDim / kParts;  ///< of a block; it norms their values, a group of the quantised outputs
constexpr int kStateWarps = kColumns / kColumnsPerWarp;
/// Warps that prepare queries; as many for keys and for values. Each takes every kPer-th row.
constexpr int kPer = 2;
constexpr int kHelpers = 3 * kPer + 1;  ///< the last one computes decays
constexpr int kThreads = 32 * (kStateWarps + kHelpers);

struct RunParams {
  ConvRun conv;
  DeltaRun rule;
  DeltaShape shape;
  const float *qkv, *z, *weight, *norm;
  GateInput gates;
  std::uint32_t* readers;
  std::uint8_t* digits;
  float2* steps;
  float eps, q_scale;
  std::int64_t settled;
};

struct Line {
  float q[kPadded], k[kPadded], v[kColumns], z[kColumns], o[kDim];  ///< z: its sigmoid; v and z: the block's own
};

struct Shared {
  Line lines[kFewDeltaRows];
  float decays[kFewDeltaRows], betas[kFewDeltaRows];
  int last_reader;
};

/// Some warps of the block wait there, others only arrive.
enum Barrier { kPrepared = 1, kColumnsRead, kCounted };

__device__ __forceinline__ int padded(int i) {
  return i + i / kSegmentKeys * 4;
}

/// Values that another kernel wrote a step ago, past the first-level cache, which may hold older ones.
__device__ __forceinline__ float earlier(const float* at) {
  float value;
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(value) : "l"(at));
  return value;
}

/// canon_silu() of several values; that far below zero is rare enough for a branch.
template <int kCount>
__device__ __forceinline__ void silu_all(float (&x)[kCount]) {
  bool usual = true;
#pragma unroll
  for (int i = 0; i < kCount; ++i) usual = usual && x[i] >= -80.0F;
  if (!usual) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = canon_silu(x[i]);
    return;
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const Pair s = canon_sigmoid_pair(x[i]);
    const float low = x[i] * s.low;
    x[i] = canon_fma(x[i], s.high, low == low ? low : 0.0F);
  }
}

/// The convolution of a lane's channels, 32 apart.
template <int kCount>
struct Channels {
  float4 weight[kCount];
  float taps[kCount][kTaps];
  float next[kCount];

  /// Loads what there is before the rows, then the first of them.
  __device__ __forceinline__ void open(const RunParams& p, std::int64_t channel) {
    const std::int64_t channels = p.shape.channels();
#pragma unroll
    for (int i = 0; i < kCount; ++i) weight[i] = __ldg(reinterpret_cast<const float4*>(p.weight) + channel + 32 * i);
    if (p.settled == 0) wait_previous_grid();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int j = 0; j + 1 < kTaps; ++j) taps[i][j + 1] = earlier(p.conv.columns + j * channels + channel + 32 * i);
    }
    wait_previous_grid();
    load_row(p.qkv + p.conv.first_row * channels + channel);
  }
  __device__ __forceinline__ void load_row(const float* row) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) next[i] = row[32 * i];
  }
  __device__ __forceinline__ void shift() {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int j = 0; j + 1 < kTaps; ++j) taps[i][j] = taps[i][j + 1];
      taps[i][kTaps - 1] = next[i];
    }
  }
  __device__ __forceinline__ void capture(float* to) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[32 * i] = taps[i][kTaps - 1];
  }
  __device__ __forceinline__ void convolve(float (&out)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float sum = canon_fma(weight[i].x, taps[i][0], 0.0F);
      sum = canon_fma(weight[i].y, taps[i][1], sum);
      sum = canon_fma(weight[i].z, taps[i][2], sum);
      out[i] = canon_fma(weight[i].w, taps[i][3], sum);
    }
    silu_all(out);
  }
  /// The columns move on.
  __device__ __forceinline__ void store_columns(const RunParams& p, std::int64_t channel) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int j = 0; j + 1 < kTaps; ++j) {
        p.conv.columns[j * p.shape.channels() + channel + 32 * i] = taps[i][j + 1];
      }
    }
  }
};

/// decay_and_match() with the keys where they lie.
__device__ __forceinline__ float decay_and_match_at(float (&state)[kSegmentKeys], float decay, const float* keys) {
  float match = 0.0F;
#pragma unroll
  for (int i = 0; i < kSegmentKeys; i += 4) {
    const float4 four = *reinterpret_cast<const float4*>(keys + i);
    const float key[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      state[i + k] = state[i + k] * decay;
      match = canon_fma(state[i + k], key[k], match);
    }
  }
  return match;
}

/// update_and_read() with the keys where they lie.
__device__ __forceinline__ float update_and_read_at(float (&state)[kSegmentKeys], const float* keys, float delta,
                                                    const float* q) {
  float read = 0.0F;
#pragma unroll
  for (int i = 0; i < kSegmentKeys; i += 4) {
    const float4 key4 = *reinterpret_cast<const float4*>(keys + i);
    const float4 query4 = *reinterpret_cast<const float4*>(q + i);
    const float key[4] = {key4.x, key4.y, key4.z, key4.w};
    const float query[4] = {query4.x, query4.y, query4.z, query4.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      state[i + k] = canon_fma(key[k], delta, state[i + k]);
      read = canon_fma(state[i + k], query[k], read);
    }
  }
  return read;
}

/// A block's half of a head.
struct Work {
  const RunParams& p;
  Shared& shared;
  int rank, head, key_head, ratio, lane, warp;

  __device__ __forceinline__ Work(const RunParams& params, Shared& memory) : p(params), shared(memory) {
    const auto block = static_cast<int>(blockIdx.x);
    rank = block % kParts;
    head = block / kParts;
    ratio = p.shape.heads / p.shape.key_heads;
    key_head = head / ratio;
    lane = lane_id();
    warp = static_cast<int>(threadIdx.x) / 32;
  }
  /// Stores what the heads of a key head share.
  [[nodiscard]] __device__ __forceinline__ bool leads() const { return head % ratio == 0 && rank == 0; }
  [[nodiscard]] __device__ __forceinline__ bool captures() const { return p.conv.captured != nullptr; }
  [[nodiscard]] __device__ __forceinline__ int first_column() const { return rank * kColumns; }

  __device__ __forceinline__ void hold_state() const;
  __device__ __forceinline__ void prepare_units(bool keys, int turn) const;
  __device__ __forceinline__ void prepare_values(int turn) const;
  __device__ __forceinline__ void prepare_gates() const;
  __device__ __forceinline__ void norm_rows(int helper) const;
  /// A helper is done with its rows.
  __device__ __forceinline__ void rows_prepared() const {
    part_arrive(kPrepared, kThreads);
    cluster_wait();
    cluster_arrive();
    if (!captures()) part_sync(kColumnsRead, 32 * kHelpers);
  }
};

/// The block's columns of the state through all rows. A warp holds eight columns, a lane 32 keys of one of them.
__device__ __forceinline__ void Work::hold_state() const {
  const int own = warp * kColumnsPerWarp + lane % kColumnsPerWarp;
  const int column = first_column() + own;
  const int segment = lane / kColumnsPerWarp;
  const std::int64_t base = (static_cast<std::int64_t>(head) * kDim + segment * kSegmentKeys) * kDim + column;
  if (p.settled == 0) wait_previous_grid();
  float state[kSegmentKeys];
#pragma unroll
  for (int k = 0; k < kSegmentKeys; ++k) state[k] = earlier(p.rule.state + base + k * kDim);
  wait_previous_grid();
  cluster_wait();
  part_sync(kPrepared, kThreads);
#pragma unroll 1
  for (int t = 0; t < p.rule.rows; ++t) {
    Line& line = shared.lines[t];
    const float* keys = line.k + segment * kPaddedKeys;
    const float match = decay_and_match_at(state, shared.decays[t], keys);
    const float delta = shared.betas[t] * (line.v[own] - add_segments<kSegments>(match));
    const float out = add_segments<kSegments>(update_and_read_at(state, keys, delta, line.q + segment * kPaddedKeys));
    // Every lane has it: one gives it to each block.
    if (segment < kParts) store_remote(remote(line.o + column, segment), float_bits(out));
    if (segment == 0 && p.rule.deltas != nullptr) {
      p.rule.deltas[(static_cast<std::int64_t>(t) * p.shape.heads + head) * kDim + column] = delta;
    }
  }
  cluster_arrive();
#pragma unroll
  for (int k = 0; k < kSegmentKeys; ++k) p.rule.next_state[base + k * kDim] = state[k];
  cluster_wait();
}

/// Unit vectors of the queries or keys.
__device__ __forceinline__ void Work::prepare_units(bool keys, int turn) const {
  constexpr int kOwn = kDim / 32;
  const std::int64_t channels = p.shape.channels();
  const std::int64_t channel = (keys ? p.shape.key_size() : 0) + key_head * kDim + lane;
  Channels<kOwn> mine;
  mine.open(p, channel);
  const float scale = keys ? 1.0F : p.q_scale;
#pragma unroll 1
  for (int t = 0; t < p.conv.rows; ++t) {
    mine.shift();
    if (t + 1 < p.conv.rows) mine.load_row(p.qkv + (p.conv.first_row + t + 1) * channels + channel);
    if (t % kPer != turn) continue;
    if (captures() && leads()) mine.capture(p.conv.captured + t * channels + channel);
    float values[kOwn];
    mine.convolve(values);
    float sum = 0.0F;
#pragma unroll
    for (const float value : values) sum = canon_fma(value, value, sum);
    const float inverse = canon_rsqrt(fold_lanes(sum) + 1e-6F);
    float* to = keys ? shared.lines[t].k : shared.lines[t].q;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      values[i] = (values[i] * inverse) * scale;
      to[padded(lane + 32 * i)] = values[i];
    }
    if (keys && p.rule.keys != nullptr && leads()) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        p.rule.keys[t * p.shape.key_size() + key_head * kDim + lane + 32 * i] = values[i];
      }
    }
  }
  rows_prepared();
  if (captures()) return;
  // The columns of q and k belong to several blocks: the last one to have read them moves them on.
  part_sync(kCounted, 32 * (2 * kPer + 1));
  if (turn == 0 && shared.last_reader != 0) mine.store_columns(p, channel);
}

/// Values of the block's columns, and the gates of its norm.
__device__ __forceinline__ void Work::prepare_values(int turn) const {
  constexpr int kOwn = kColumns / 32;
  const std::int64_t channels = p.shape.channels();
  const std::int64_t place = head * kDim + first_column() + lane;
  const std::int64_t channel = 2 * p.shape.key_size() + place;
  Channels<kOwn> mine;
  mine.open(p, channel);
  const std::int64_t stride = static_cast<std::int64_t>(p.shape.heads) * kDim;
  const float* z = p.z + p.conv.first_row * stride + place;
#pragma unroll 1
  for (int t = 0; t < p.conv.rows; ++t) {
    float gates[kOwn];
    const bool own = t % kPer == turn;
    if (own) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) gates[i] = z[t * stride + 32 * i];
    }
    mine.shift();
    if (t + 1 < p.conv.rows) mine.load_row(p.qkv + (p.conv.first_row + t + 1) * channels + channel);
    if (!own) continue;
    if (captures()) mine.capture(p.conv.captured + t * channels + channel);
    float values[kOwn];
    mine.convolve(values);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      shared.lines[t].v[lane + 32 * i] = values[i];
      shared.lines[t].z[lane + 32 * i] = canon_sigmoid(gates[i]);
    }
  }
  rows_prepared();
  if (turn == 0 && !captures()) mine.store_columns(p, channel);
}

/// Decay and beta of all rows; then counts the readers of the columns of q and k.
__device__ __forceinline__ void Work::prepare_gates() const {
  const float neg_a = __ldg(p.gates.neg_a + head);
  const float dt_bias = __ldg(p.gates.dt_bias + head);
  const int t = lane < p.conv.rows ? lane : 0;
  wait_previous_grid();
  const std::int64_t at = static_cast<std::int64_t>(p.conv.first_row + t) * p.shape.heads + head;
  const float a = p.gates.a[at];
  const float b = p.gates.b[at];
  const float decay = canon_exp(neg_a * canon_softplus(a + dt_bias));
  const float beta = canon_sigmoid(b);
  if (lane < p.conv.rows) {
    shared.decays[t] = decay;
    shared.betas[t] = beta;
    if (p.rule.decays != nullptr && rank == 0) {
      p.rule.decays[static_cast<std::int64_t>(t) * p.shape.heads + head] = decay;
    }
  }
  rows_prepared();
  if (captures()) return;
  if (lane == 0) {
    __threadfence();
    // Counts up to the readers and begins again, so that it never overflows.
    const auto last = static_cast<unsigned>(ratio * kParts - 1);
    const unsigned before = atomicInc(p.readers + key_head, last);
    shared.last_reader = before == last ? 1 : 0;
  }
  part_sync(kCounted, 32 * (2 * kPer + 1));
}

/// Gated norm and digits of every kHelpers-th row, beginning with the warps of the values, which are ready first.
__device__ __forceinline__ void Work::norm_rows(int helper) const {
  constexpr int kOwn = kColumns / 32;
  float norm[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) norm[i] = __ldg(p.norm + first_column() + lane + 32 * i);
  cluster_wait();
#pragma unroll 1
  for (int t = (helper + kHelpers - 2 * kPer) % kHelpers; t < p.rule.rows; t += kHelpers) {
    const Line& line = shared.lines[t];
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) {
      const float o = line.o[lane + 32 * i];
      sum = canon_fma(o, o, sum);
    }
    float values[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) values[i] = line.o[first_column() + lane + 32 * i];
    const float mean = fold_lanes(sum) / static_cast<float>(kDim);
    const float inverse = canon_rsqrt(mean + p.eps);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) values[i] = ((values[i] * inverse) * norm[i]) * line.z[lane + 32 * i];
    const std::int64_t group = (static_cast<std::int64_t>(p.rule.first_row + t) * p.shape.heads + head) * kParts + rank;
    static_assert(kOwn == 2);
    quantise_group64(values[0], values[1], lane, lane + 32, p.digits + group * kChunkDigits, p.steps + group, lane);
  }
}

/// So many registers that a multiprocessor takes one block: two clusters side by side would share what one needs.
__global__ void LOCKSTEP_CLUSTER(kParts) __launch_bounds__(kThreads, 1) run_kernel(RunParams p) {
  __shared__ Shared shared;
  trigger_next_grid();
  cluster_arrive();
  const Work work(p, shared);
  if (work.warp < kStateWarps) {
    work.hold_state();
    return;
  }
  const int helper = work.warp - kStateWarps;
  if (helper < 2 * kPer) {
    work.prepare_units(helper >= kPer, helper % kPer);
  } else if (helper < 3 * kPer) {
    work.prepare_values(helper % kPer);
  } else {
    work.prepare_gates();
  }
  work.norm_rows(helper);
}

}  // namespace

void few_delta_run(Queue& queue, const ConvRun& conv, const DeltaRun& rule, const DeltaShape& shape,
                   const FewDeltaInput& input, const ActivationRows& out) {
  RunParams p{};
  p.conv = conv;
  p.rule = rule;
  p.shape = shape;
  p.qkv = input.qkv;
  p.z = input.z;
  p.weight = input.conv;
  p.norm = input.norm;
  p.gates = input.gates;
  p.readers = input.readers;
  p.digits = static_cast<std::uint8_t*>(out.digits);
  p.steps = static_cast<float2*>(out.steps);
  p.eps = input.eps;
  p.q_scale = 1.0F / canon_sqrt(static_cast<float>(kDim));
  p.settled = input.settled ? 1 : 0;
  launch(queue, run_kernel, {static_cast<unsigned>(shape.heads) * kParts, 1, 1}, {kThreads, 1, 1}, 0, p);
}

}  // namespace lockstep::kernels::cuda
