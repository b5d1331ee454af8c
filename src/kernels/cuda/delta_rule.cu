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
constexpr int kStages = 4;     ///< two on their way, two in use where a row is the last of its stage

/// Rows of one head. Segments lie in different banks.
template <int kSegments>
struct Stage {
  static constexpr int kColumns = kRuleThreads / kSegments;
  float q[kStageRows][kSegments * kPaddedKeys];
  float k[kStageRows][kSegments * kPaddedKeys];
  float values[kStageRows][kColumns];
  float decays[kStageRows], betas[kStageRows];
};

/// Starts the copies of rows first..first+kStageRows of a run.
template <int kSegments>
__device__ __forceinline__ void fetch(Stage<kSegments>& to, const RuleParams& p, const DeltaRun& run, int head,
                                      int first) {
  constexpr int kPieces = kSegments * kSegmentKeys / 4;
  constexpr int kColumns = Stage<kSegments>::kColumns;
  const DeltaShape& s = p.shape;
  const int thread = static_cast<int>(threadIdx.x);
  const int key_head = head / (s.heads / s.key_heads);
#pragma unroll
  for (int item = thread; item < kStageRows * 2 * kPieces; item += kRuleThreads) {
    const int r = item / (2 * kPieces);
    const int piece = item % kPieces;
    const bool key = item / kPieces % 2 == 1;
    if (first + r < run.rows) {
      const float* from = p.units + static_cast<std::int64_t>(run.first_row + first + r) * 2 * s.key_size() +
                          key_head * s.key_dim + piece * 4;
      const int at = piece * 4 + piece / (kSegmentKeys / 4) * (kPaddedKeys - kSegmentKeys);
      copy_soon(key ? &to.k[r][at] : &to.q[r][at], key ? from + s.key_size() : from);
    }
  }
  const int column0 = static_cast<int>(blockIdx.x) * kColumns;
#pragma unroll
  for (int item = thread; item < kStageRows * kColumns; item += kRuleThreads) {
    const int r = item / kColumns;
    const int c = item % kColumns;
    if (first + r < run.rows && column0 + c < s.value_dim) {
      copy_four_soon(&to.values[r][c], p.conv + (run.first_row + first + r) * s.channels() + 2 * s.key_size() +
                                           head * s.value_dim + column0 + c);
    }
  }
  if (thread < 2 * kStageRows && first + thread / 2 < run.rows) {
    const std::int64_t at = static_cast<std::int64_t>(run.first_row + first + thread / 2) * s.heads + head;
    copy_four_soon(thread % 2 == 0 ? &to.decays[thread / 2] : &to.betas[thread / 2],
                   (thread % 2 == 0 ? p.decay : p.beta) + at);
  }
}

/// Key dimension 32 * kSegments with kSegments = 1, 2 or 4: a warp holds 32 / kSegments value columns, each lane one
/// segment of 32 keys of one column in registers. Blocks: x covers value columns, y heads, z runs. A row's last pass
/// over the state is the next row's first.
template <int kSegments>
__global__ void __launch_bounds__(kRuleThreads) rule_kernel(RuleParams p) {
  __shared__ __align__(16) Stage<kSegments> stages[kStages];
  trigger_next_grid();
  wait_previous_grid();
  constexpr int kColumnsPerWarp = 32 / kSegments;
  const DeltaRun& run = p.runs[blockIdx.z];
  if (run.rows == 0) return;
  const int lane = lane_id();
  const int in_block = static_cast<int>(threadIdx.x) / 32 * kColumnsPerWarp + lane % kColumnsPerWarp;
  const int v = static_cast<int>(blockIdx.x) * Stage<kSegments>::kColumns + in_block;
  const int segment = lane / kColumnsPerWarp;
  const int head = static_cast<int>(blockIdx.y);
  const DeltaShape& s = p.shape;
  const bool live = v < s.value_dim;
  const std::int64_t base = static_cast<std::int64_t>(head) * s.key_dim * s.value_dim +
                            static_cast<std::int64_t>(segment) * kSegmentKeys * s.value_dim + (live ? v : 0);
  fetch(stages[0], p, run, head, 0);
  copies_made();
  fetch(stages[1], p, run, head, kStageRows);
  copies_made();
  float state[kSegmentKeys];
#pragma unroll
  for (int k = 0; k < kSegmentKeys; ++k) state[k] = run.state[base + static_cast<std::int64_t>(k) * s.value_dim];
  const auto arrive = [&](int stage) {
    wait_copies<1>();
    __syncthreads();
    fetch(stages[(stage + 2) % kStages], p, run, head, (stage + 2) * kStageRows);
    copies_made();
  };
  arrive(0);
  float keys[kSegmentKeys];
  load_keys(stages[0].k[0] + segment * kPaddedKeys, keys);
  float match = decay_and_match(state, stages[0].decays[0], keys);
#pragma unroll 1
  for (int t = 0; t < run.rows; ++t) {
    const Stage<kSegments>& stage = stages[t / kStageRows % kStages];
    const int r = t % kStageRows;
    const float* q = stage.q[r] + segment * kPaddedKeys;
    const float delta = stage.betas[r] * (stage.values[r][in_block] - add_segments<kSegments>(match));
    float read = 0.0F;
    if (t + 1 < run.rows) {
      const int next = (t + 1) % kStageRows;
      if (next == 0) arrive((t + 1) / kStageRows);
      const Stage<kSegments>& after = stages[(t + 1) / kStageRows % kStages];
      read = update_read_and_match(state, keys, delta, q, after.k[next] + segment * kPaddedKeys, after.decays[next],
                                   match);
    } else {
      read = update_and_read(state, keys, delta, q);
    }
    const float out = add_segments<kSegments>(read);
    if (live && segment == 0) {
      p.out[((run.first_row + t) * static_cast<std::int64_t>(s.heads) + head) * s.value_dim + v] = out;
      if (run.deltas != nullptr) {
        run.deltas[(static_cast<std::int64_t>(t) * s.heads + head) * s.value_dim + v] = delta;
      }
    }
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
