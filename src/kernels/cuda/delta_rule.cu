// The recurrence of the gated delta rule (docs/numerics.md N6).
#include "kernels/cuda/delta.hpp"
#include "kernels/cuda/delta_rule.cuh"
#include "kernels/cuda/device.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct RuleParams {
  DeltaRun runs[kMaxRuns];
  DeltaShape shape;
  const float *conv, *units, *decay, *beta;
  float* out;
};

constexpr int kRuleWarps = 3;  ///< of a block that hold the state; one more brings the rows
constexpr int kRuleThreads = 32 * (kRuleWarps + 1);
constexpr int kStageRows = 8;  ///< rows that arrive together
constexpr int kRingRows = 32;  ///< two stages on their way, two in use where a row is the last of its stage

/// Shared memory that nobody uses, so that a multiprocessor takes one block: while the kernel in front ends, some would
/// take two, which then last twice as long (883 us instead of 583 for 2,048 rows).
constexpr std::size_t kAlone = 76 * 1024;

/// Value columns of a warp: two neighbours a lane, which share their keys. A line of lanes holds one segment.
template <int kSegments>
constexpr int kWarpColumns = 2 * (32 / kSegments);

/// What a row brings for one key head and the block's columns. Segments lie in different banks.
template <int kSegments>
struct __align__(16) RingRow {
  float units[2][kSegments * kPaddedKeys];  ///< q and k
  float values[kRuleWarps][kWarpColumns<kSegments>];
  float2 gates[kRuleWarps + 1];  ///< decay and beta; one for the size
};
/// Row t at t % kRingRows.
template <int kSegments>
using Ring = RingRow<kSegments>[kRingRows];

/// Columns of the warp that comes `index`-th among those of a key head.
struct Place {
  int head, column;
  bool live;
};
template <int kSegments>
__device__ __forceinline__ Place place_of(const DeltaShape& s, int key_head, int warp) {
  const int per_head = (s.value_dim + kWarpColumns<kSegments> - 1) / kWarpColumns<kSegments>;
  const int ratio = s.heads / s.key_heads;
  const int index = static_cast<int>(blockIdx.x) * kRuleWarps + warp;
  const bool live = index < ratio * per_head;
  return {key_head * ratio + (live ? index / per_head : 0), index % per_head * kWarpColumns<kSegments>, live};
}

/// Starts the copies of kStageRows rows, by one warp. Rows beyond the last one stay as they are: nobody uses them.
template <int kSegments>
__device__ __forceinline__ void fetch_rows(const RuleParams& p, const DeltaRun& run, int key_head, int row,
                                           Ring<kSegments>& ring) {
  constexpr int kPieces = kSegments * kSegmentKeys / 4;  ///< of 16 bytes, of a row's q or k
  constexpr int kColumns = kWarpColumns<kSegments>;
  const DeltaShape& s = p.shape;
  const int lane = lane_id();
  const int left = run.rows - row;
  RingRow<kSegments>* to = ring + row % kRingRows;
  const std::int64_t first = run.first_row + row;
#pragma unroll
  for (int i = lane; i < kStageRows * 2 * kPieces; i += 32) {
    const int piece = i % kPieces;
    const int kind = i / kPieces % 2;
    const int r = i / (2 * kPieces);
    if (r >= left) continue;
    const float* from = p.units + ((first + r) * 2 + kind) * s.key_size() + key_head * s.key_dim + piece * 4;
    copy_soon(&to[r].units[kind][piece / (kSegmentKeys / 4) * kPaddedKeys + piece % (kSegmentKeys / 4) * 4], from);
  }
#pragma unroll
  for (int warp = 0; warp < kRuleWarps; ++warp) {
    const Place at = place_of<kSegments>(s, key_head, warp);
    if (!at.live) continue;
    const std::int64_t channel = 2 * s.key_size() + static_cast<std::int64_t>(at.head) * s.value_dim + at.column;
#pragma unroll
    for (int i = lane; i < kStageRows * kColumns; i += 32) {
      const int r = i / kColumns;
      const int c = i % kColumns;
      if (r < left && at.column + c < s.value_dim) {
        copy_four_soon(&to[r].values[warp][c], p.conv + (first + r) * s.channels() + channel + c);
      }
    }
    const int r = lane / 2;
    if (r < kStageRows && r < left) {
      const std::int64_t from = (first + r) * s.heads + at.head;
      if (lane % 2 == 0) {
        copy_four_soon(&to[r].gates[warp].x, p.decay + from);
      } else {
        copy_four_soon(&to[r].gates[warp].y, p.beta + from);
      }
    }
  }
  copies_made();
}

/// The warp that brings the rows: a stage is there, another one takes its place, as often as the others wait.
template <int kSegments>
__device__ __forceinline__ void bring_rows(const RuleParams& p, const DeltaRun& run, int key_head,
                                           Ring<kSegments>& ring) {
  int row = 0;
  for (; row < 2 * kStageRows; row += kStageRows) fetch_rows<kSegments>(p, run, key_head, row, ring);
  for (int there = 0; there < run.rows; there += kStageRows) {
    wait_copies<1>();
    __syncthreads();
    fetch_rows<kSegments>(p, run, key_head, row, ring);
    row += kStageRows;
  }
  wait_copies<0>();
}

/// What a lane holds: one segment of 32 keys of two value columns, and what the next rows need of the ring.
template <int kSegments>
struct Flow {
  static constexpr int kLine = 32 / kSegments;
  using Row = RingRow<kSegments>;
  Ring<kSegments>& ring;
  const Row *next, *after;  ///< the two rows behind the present one
  int warp, in_line, mine;
  bool odd;
  float state[2][kSegmentKeys];
  float query[kSegmentKeys];
  float match[2];  ///< of the present row's keys, all segments
  float beta;
  float2 gates;  ///< of the next row
  float2 values;

  __device__ __forceinline__ void start(const float (&keys)[kSegmentKeys]) {
    load_keys(ring[0].units[0] + mine, query);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      match[c] = add_segments<kSegments>(decay_and_match(state[c], ring[0].gates[warp].x, keys));
    }
    beta = ring[0].gates[warp].y;
    gates = ring[1].gates[warp];
    values = reinterpret_cast<const float2*>(ring[0].values[warp])[in_line];
    next = ring + 1;
    after = ring + 2;
  }

  /// The sums of both columns over the segments: of the first in lanes of even segments, of the second in odd ones.
  __device__ __forceinline__ float add_columns(const float (&read)[2]) const {
    const float sum = (odd ? read[1] : read[0]) + __shfl_xor_sync(kAllLanes, odd ? read[0] : read[1], kLine);
    if constexpr (kSegments == 4) return sum + __shfl_xor_sync(kAllLanes, sum, 2 * kLine);
    return sum;
  }

  /// One key of a row's second pass over the state and of the next row's first. Both columns side by side: a
  /// multiprocessor's registers deliver two numbers a cycle, so what both need is read once.
  __device__ __forceinline__ void flow_key(int k, float key, float q, float next_key, const float (&delta)[2],
                                           float (&read)[2], float (&sum)[2]) {
    float updated[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) updated[c] = canon_fma(delta[c], key, state[c][k]);
#pragma unroll
    for (int c = 0; c < 2; ++c) read[c] = canon_fma(updated[c], q, read[c]);
#pragma unroll
    for (int c = 0; c < 2; ++c) state[c][k] = updated[c] * gates.x;
#pragma unroll
    for (int c = 0; c < 2; ++c) sum[c] = canon_fma(state[c][k], next_key, sum[c]);
  }

  /// A row that is not the last one; beyond that come numbers that nobody uses. `keys` are the row's and become those
  /// of the row after the next.
  __device__ __forceinline__ float pass(float (&keys)[kSegmentKeys], const float (&next_keys)[kSegmentKeys],
                                        float (&delta)[2]) {
    float read[2] = {0.0F, 0.0F};
    float sum[2] = {0.0F, 0.0F};
    delta[0] = beta * (values.x - match[0]);
    delta[1] = beta * (values.y - match[1]);
    // What has been used makes room at once, so that loads have the time of a row.
#pragma unroll
    for (int i = 0; i < kSegmentKeys; i += 4) {
#pragma unroll
      for (int k = i; k < i + 4; ++k) {
        flow_key(k, keys[k], query[k], next_keys[k], delta, read, sum);
      }
      load_four(after->units[1] + mine + i, keys + i);
      load_four(next->units[0] + mine + i, query + i);
    }
    match[0] = add_segments<kSegments>(sum[0]);
    match[1] = add_segments<kSegments>(sum[1]);
    beta = gates.y;
    gates = after->gates[warp];
    values = reinterpret_cast<const float2*>(next->values[warp])[in_line];
    next = after;
    after = after + 1 == ring + kRingRows ? ring : after + 1;
    return add_columns(read);
  }

  __device__ __forceinline__ float last(const float (&keys)[kSegmentKeys], float (&delta)[2]) {
    float read[2] = {0.0F, 0.0F};
    delta[0] = beta * (values.x - match[0]);
    delta[1] = beta * (values.y - match[1]);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int k = 0; k < kSegmentKeys; ++k) {
        state[c][k] = canon_fma(keys[k], delta[c], state[c][k]);
        read[c] = canon_fma(state[c][k], query[k], read[c]);
      }
    }
    return add_columns(read);
  }
};

/// Key dimension 32 * kSegments with kSegments = 2 or 4, the state in registers. Blocks: x covers the columns of a key
/// head, y key heads, z runs. A row's last pass over the state is the next row's first. While the sums of one column
/// cross the lanes, the other column goes on.
template <int kSegments, bool kCaptures>
__global__ void __launch_bounds__(kRuleThreads) rule_kernel(RuleParams p) {
  __shared__ Ring<kSegments> ring;
  trigger_next_grid();
  wait_previous_grid();
  constexpr int kLine = 32 / kSegments;
  const DeltaRun& run = p.runs[blockIdx.z];
  const DeltaShape& s = p.shape;
  if (run.rows == 0) return;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int key_head = static_cast<int>(blockIdx.y);
  if (warp == kRuleWarps) {
    bring_rows<kSegments>(p, run, key_head, ring);
    return;
  }
  const int segment = lane_id() / kLine;
  const Place at = place_of<kSegments>(s, key_head, warp);
  Flow<kSegments> flow{ring, nullptr, nullptr, warp, lane_id() % kLine, segment * kPaddedKeys, segment % 2 != 0};
  const int column = at.column + 2 * flow.in_line;
  const std::int64_t base = (static_cast<std::int64_t>(at.head) * s.key_dim + segment * kSegmentKeys) * s.value_dim;
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const float* from = run.state + base + (column + c < s.value_dim ? column + c : 0);
#pragma unroll
    for (int k = 0; k < kSegmentKeys; ++k) flow.state[c][k] = from[static_cast<std::int64_t>(k) * s.value_dim];
  }
  __syncthreads();
  float even_keys[kSegmentKeys];  // of even rows
  float odd_keys[kSegmentKeys];
  load_keys(ring[0].units[1] + flow.mine, even_keys);
  load_keys(ring[1].units[1] + flow.mine, odd_keys);
  flow.start(even_keys);
  const int written = column + segment % 2;
  const bool writes = at.live && segment < 2 && written < s.value_dim;
  const std::int64_t first = static_cast<std::int64_t>(at.head) * s.value_dim + written;
  const int row_values = s.heads * s.value_dim;
  float* out = p.out + static_cast<std::int64_t>(run.first_row) * row_values + first;
  float* captured = run.deltas + first;
  float delta[2] = {0.0F, 0.0F};
  const auto finish_row = [&](float sum) {
    if (writes) *out = sum;
    out += row_values;
    if constexpr (kCaptures) {
      if (writes && run.deltas != nullptr) *captured = flow.odd ? delta[1] : delta[0];
      captured += row_values;
    }
  };
  int t = 0;
  static_assert(kStageRows % 2 == 0, "rows arrive in front of an even one");
#pragma unroll 1
  for (; t + 2 < run.rows; t += 2) {
    if ((t + 2) % kStageRows == 0) __syncthreads();
    finish_row(flow.pass(even_keys, odd_keys, delta));
    finish_row(flow.pass(odd_keys, even_keys, delta));
  }
  if (t + 1 < run.rows) {
    finish_row(flow.pass(even_keys, odd_keys, delta));
    finish_row(flow.last(odd_keys, delta));
  } else {
    finish_row(flow.last(even_keys, delta));
  }
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    if (!at.live || column + c >= s.value_dim) continue;
    float* to = run.next_state + base + column + c;
#pragma unroll
    for (int k = 0; k < kSegmentKeys; ++k) to[static_cast<std::int64_t>(k) * s.value_dim] = flow.state[c][k];
  }
}

constexpr int kMaxSegments = 16;

/// Any key dimension up to 512: one thread per value column, the state in memory.
__global__ void any_rule_kernel(RuleParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const DeltaRun& run = p.runs[blockIdx.z];
  const DeltaShape& s = p.shape;
  const int v = thread_item();
  if (v >= s.value_dim) return;
  const int head = static_cast<int>(blockIdx.y);
  const int key_head = head / (s.heads / s.key_heads);
  const std::int64_t base = static_cast<std::int64_t>(head) * s.key_dim * s.value_dim + v;
  const int segments = (s.key_dim + kSegmentKeys - 1) / kSegmentKeys;
  const float* in = run.state + base;
  float* out = run.next_state + base;
  for (int t = 0; t < run.rows; ++t) {
    const std::int64_t row = run.first_row + t;
    const float* q = p.units + row * 2 * s.key_size() + key_head * s.key_dim;
    const float* k = q + s.key_size();
    const float decay = p.decay[row * s.heads + head];
    float sums[kMaxSegments];
    const auto fold = [&] {
      for (int count = segments; count > 1; count = (count + 1) / 2) {
        for (int i = 0; i < count / 2; ++i) sums[i] = sums[2 * i] + sums[2 * i + 1];
        if (count % 2 != 0) sums[count / 2] = sums[count - 1];
      }
      return sums[0];
    };
    for (int i = 0; i < s.key_dim; ++i) {
      const std::int64_t at = static_cast<std::int64_t>(i) * s.value_dim;
      if (i % kSegmentKeys == 0) sums[i / kSegmentKeys] = 0.0F;
      out[at] = in[at] * decay;
      sums[i / kSegmentKeys] = canon_fma(out[at], k[i], sums[i / kSegmentKeys]);
    }
    const float value = p.conv[row * s.channels() + 2 * s.key_size() + head * s.value_dim + v];
    const float delta = p.beta[row * s.heads + head] * (value - fold());
    for (int i = 0; i < s.key_dim; ++i) {
      const std::int64_t at = static_cast<std::int64_t>(i) * s.value_dim;
      if (i % kSegmentKeys == 0) sums[i / kSegmentKeys] = 0.0F;
      out[at] = canon_fma(k[i], delta, out[at]);
      sums[i / kSegmentKeys] = canon_fma(out[at], q[i], sums[i / kSegmentKeys]);
    }
    p.out[(row * s.heads + head) * s.value_dim + v] = fold();
    if (run.deltas != nullptr) run.deltas[(static_cast<std::int64_t>(t) * s.heads + head) * s.value_dim + v] = delta;
    in = out;
  }
}

/// Captured keys and decays. Blocks in y are runs.
__global__ void capture_kernel(RuleParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const DeltaRun& run = p.runs[blockIdx.y];
  if (run.keys == nullptr) return;
  const DeltaShape& s = p.shape;
  const std::int64_t item = thread_item();
  if (item < run.rows * s.key_size()) {
    const std::int64_t row = run.first_row + item / s.key_size();
    run.keys[item] = p.units[(row * 2 + 1) * s.key_size() + item % s.key_size()];
  }
  if (item < static_cast<std::int64_t>(run.rows) * s.heads) run.decays[item] = p.decay[run.first_row * s.heads + item];
}

}  // namespace

void delta_rule(Queue& queue, std::span<const DeltaRun> runs, const DeltaShape& shape, const float* conv,
                const float* units, const float* decay, const float* beta, float* out) {
  while (!runs.empty()) {
    RuleParams p{};
    unsigned count = 0;
    std::int64_t most_rows = 0;
    bool captures = false;
    for (const DeltaRun& run : runs.first(runs.size() < kMaxRuns ? runs.size() : kMaxRuns)) {
      p.runs[count++] = run;
      most_rows = run.rows > most_rows ? run.rows : most_rows;
      captures = captures || run.keys != nullptr || run.deltas != nullptr;
    }
    runs = runs.subspan(count);
    p.shape = shape;
    p.conv = conv;
    p.units = units;
    p.decay = decay;
    p.beta = beta;
    p.out = out;
    const auto heads = static_cast<unsigned>(shape.heads);
    const auto fast = [&](void (*kernel)(RuleParams), int columns) {
      const std::int64_t warps =
          static_cast<std::int64_t>(shape.heads / shape.key_heads) * blocks_for(shape.value_dim, columns);
      launch(queue, kernel, {blocks_for(warps, kRuleWarps), static_cast<unsigned>(shape.key_heads), count},
             {kRuleThreads, 1, 1}, queue.clusters() ? kAlone : 0, p);
    };
    if (shape.key_dim == 128) {
      fast(captures ? rule_kernel<4, true> : rule_kernel<4, false>, kWarpColumns<4>);
    } else if (shape.key_dim == 64) {
      fast(captures ? rule_kernel<2, true> : rule_kernel<2, false>, kWarpColumns<2>);
    } else {
      launch(queue, any_rule_kernel, {blocks_for(shape.value_dim, 64), heads, count}, {64, 1, 1}, 0, p);
    }
    if (captures) {
      const std::int64_t per_row = shape.key_size() > shape.heads ? shape.key_size() : shape.heads;
      launch(queue, capture_kernel, {blocks_for(most_rows * per_row, 256), count, 1}, {256, 1, 1}, 0, p);
    }
  }
}

}  // namespace lockstep::kernels::cuda
