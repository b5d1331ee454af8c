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

constexpr int kRuleThreads = 128;
constexpr int kStageRows = 8;  ///< rows that arrive together
constexpr int kRingRows = 32;  ///< two stages on their way, two in use where a row is the last of its stage

/// Rows of one head, row t at t % kRingRows. Segments lie in different banks.
template <int kSegments>
struct Ring {
  static constexpr int kColumns = kRuleThreads / kSegments;
  float units[2][kRingRows][kSegments * kPaddedKeys];  ///< q and k
  float values[kRingRows][kColumns];
  float gates[2][kRingRows];  ///< decay and beta
};

/// Where a thread's copies of the next rows come from.
template <int kSegments>
struct Feed {
  static constexpr int kColumns = Ring<kSegments>::kColumns;
  static constexpr int kPieces = kSegments * kSegmentKeys / 4;    ///< of 16 bytes, of a row's q or k
  static constexpr int kUnitRows = kRuleThreads / (2 * kPieces);  ///< rows whose units are copied at once
  static constexpr int kValueRows = kRuleThreads / kColumns;      ///< the same for values
  const float *units, *values, *gates;
  std::int64_t unit_step, value_step, gate_step;  ///< from row to row
  int row, rows;
  bool has_value;

  __device__ __forceinline__ void start(const RuleParams& p, const DeltaRun& run, int head) {
    const DeltaShape& s = p.shape;
    const int thread = static_cast<int>(threadIdx.x);
    const int key_head = head / (s.heads / s.key_heads);
    const int column = static_cast<int>(blockIdx.x) * kColumns + thread % kColumns;
    unit_step = 2 * s.key_size();
    value_step = s.channels();
    gate_step = s.heads;
    units = p.units + (run.first_row + thread / (2 * kPieces)) * unit_step + thread / kPieces % 2 * s.key_size() +
            key_head * s.key_dim + thread % kPieces * 4;
    values = p.conv + (run.first_row + thread / kColumns) * value_step + 2 * s.key_size() + head * s.value_dim + column;
    gates = (thread % 2 == 0 ? p.decay : p.beta) + (run.first_row + thread / 2) * gate_step + head;
    row = 0;
    rows = run.rows;
    has_value = column < s.value_dim;
  }

  /// Starts the copies of the next kStageRows rows.
  __device__ __forceinline__ void fetch(Ring<kSegments>& to) {
    const int thread = static_cast<int>(threadIdx.x);
    const int slot = row % kRingRows;
    const int piece = thread % kPieces;
    const int left = rows - row;
    float* unit = &to.units[thread / kPieces % 2][slot + thread / (2 * kPieces)]
                           [piece * 4 + piece / (kSegmentKeys / 4) * (kPaddedKeys - kSegmentKeys)];
#pragma unroll
    for (int i = 0; i < kStageRows; i += kUnitRows) {
      if (thread / (2 * kPieces) + i < left) copy_soon(unit + i * (kSegments * kPaddedKeys), units + i * unit_step);
    }
    float* value = &to.values[slot + thread / kColumns][thread % kColumns];
#pragma unroll
    for (int i = 0; i < kStageRows; i += kValueRows) {
      if (has_value && thread / kColumns + i < left) copy_four_soon(value + i * kColumns, values + i * value_step);
    }
    if (thread < 2 * kStageRows && thread / 2 < left) copy_four_soon(&to.gates[thread % 2][slot + thread / 2], gates);
    copies_made();
    row += kStageRows;
    units += kStageRows * unit_step;
    values += kStageRows * value_step;
    gates += kStageRows * gate_step;
  }
};

/// Key dimension 32 * kSegments with kSegments = 1, 2 or 4: a warp holds 32 / kSegments value columns, each lane one
/// segment of 32 keys of one column in registers. Blocks: x covers value columns, y heads, z runs. A row's last pass
/// over the state is the next row's first.
template <int kSegments>
__global__ void __launch_bounds__(kRuleThreads) rule_kernel(RuleParams p) {
  __shared__ __align__(16) Ring<kSegments> ring;
  trigger_next_grid();
  wait_previous_grid();
  constexpr int kColumnsPerWarp = 32 / kSegments;
  const DeltaRun& run = p.runs[blockIdx.z];
  if (run.rows == 0) return;
  const int lane = lane_id();
  const int in_block = static_cast<int>(threadIdx.x) / 32 * kColumnsPerWarp + lane % kColumnsPerWarp;
  const int v = static_cast<int>(blockIdx.x) * Ring<kSegments>::kColumns + in_block;
  const int segment = lane / kColumnsPerWarp;
  const int head = static_cast<int>(blockIdx.y);
  const DeltaShape& s = p.shape;
  const bool live = v < s.value_dim;
  const std::int64_t base = static_cast<std::int64_t>(head) * s.key_dim * s.value_dim +
                            static_cast<std::int64_t>(segment) * kSegmentKeys * s.value_dim + (live ? v : 0);
  Feed<kSegments> feed;
  feed.start(p, run, head);
  feed.fetch(ring);
  feed.fetch(ring);
  float state[kSegmentKeys];
#pragma unroll
  for (int k = 0; k < kSegmentKeys; ++k) state[k] = run.state[base + static_cast<std::int64_t>(k) * s.value_dim];
  // The oldest stage on its way is there; another one takes its place.
  const auto arrive = [&] {
    wait_copies<1>();
    __syncthreads();
    feed.fetch(ring);
  };
  arrive();
  float even[kSegmentKeys];  // keys of even rows
  float odd[kSegmentKeys];
  float query[kSegmentKeys];
  const int mine = segment * kPaddedKeys;
  load_keys(ring.units[1][0] + mine, even);
  load_keys(ring.units[1][1] + mine, odd);
  load_keys(ring.units[0][0] + mine, query);
  float match = add_segments<kSegments>(decay_and_match(state, ring.gates[0][0], even));
  float* out = p.out + (static_cast<std::int64_t>(run.first_row) * s.heads + head) * s.value_dim + v;
  float* captured = run.deltas != nullptr ? run.deltas + static_cast<std::int64_t>(head) * s.value_dim + v : nullptr;
  const int row_values = s.heads * s.value_dim;
  const bool writes = live && segment == 0;
  float beta = ring.gates[1][0];
  float value = ring.values[0][in_block];
  float next_decay = ring.gates[0][1];
  const auto finish_row = [&](float read, float delta) {
    const float sum = add_segments<kSegments>(read);
    if (!writes) return;
    *out = sum;
    out += row_values;
    if (captured == nullptr) return;
    *captured = delta;
    captured += row_values;
  };
  // Row t, which is not the last one. Beyond the last row come numbers that nobody uses.
  const auto pass = [&](int t, float(&keys)[kSegmentKeys], const float(&next_keys)[kSegmentKeys]) {
    const int next = (t + 1) % kRingRows;
    const int after = (t + 2) % kRingRows;
    const float delta = beta * (value - match);
    const float decay = next_decay;
    beta = ring.gates[1][next];
    value = ring.values[next][in_block];
    next_decay = ring.gates[0][after];
    const float read = flow_row(state, keys, next_keys, query, delta, decay, ring.units[1][after] + mine,
                                ring.units[0][next] + mine, match);
    match = add_segments<kSegments>(match);
    finish_row(read, delta);
  };
  int t = 0;
  static_assert(kStageRows % 2 == 0, "rows arrive in front of an even one");
#pragma unroll 1
  for (; t + 2 < run.rows; t += 2) {
    if ((t + 2) % kStageRows == 0) arrive();
    pass(t, even, odd);
    pass(t + 1, odd, even);
  }
  const auto last = [&](const float(&keys)[kSegmentKeys]) {
    const float delta = beta * (value - match);
    float read = 0.0F;
#pragma unroll
    for (int k = 0; k < kSegmentKeys; ++k) {
      state[k] = canon_fma(keys[k], delta, state[k]);
      read = canon_fma(state[k], query[k], read);
    }
    finish_row(read, delta);
  };
  if (t + 1 < run.rows) {
    pass(t, even, odd);
    last(odd);
  } else {
    last(even);
  }
  wait_copies<0>();
  if (!live) return;
#pragma unroll
  for (int k = 0; k < kSegmentKeys; ++k) run.next_state[base + static_cast<std::int64_t>(k) * s.value_dim] = state[k];
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
      captures = captures || run.keys != nullptr;
    }
    runs = runs.subspan(count);
    p.shape = shape;
    p.conv = conv;
    p.units = units;
    p.decay = decay;
    p.beta = beta;
    p.out = out;
    const auto heads = static_cast<unsigned>(shape.heads);
    const auto fast = [&](void (*kernel)(RuleParams), int segments) {
      launch(queue, kernel, {blocks_for(shape.value_dim, kRuleThreads / segments), heads, count}, {kRuleThreads, 1, 1},
             0, p);
    };
    if (shape.key_dim == 128) {
      fast(rule_kernel<4>, 4);
    } else if (shape.key_dim == 64) {
      fast(rule_kernel<2>, 2);
    } else if (shape.key_dim == 32) {
      fast(rule_kernel<1>, 1);
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
