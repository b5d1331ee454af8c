// Gated DeltaNet and causal convolutions on CUDA (docs/numerics.md N6).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/queue.hpp"

namespace lockstep::kernels::cuda {

/// Rows first_row..first_row+rows of one sequence. `columns` [history, channels]; with `captured` the new columns go
/// there and `columns` stays.
struct ConvRun {
  float *columns, *captured;
  std::int32_t first_row, rows;
};

struct ConvShape {
  std::int64_t channels = 0;
  int kernel = 0, step = 1;  ///< step: distance of taps in rows
};

/// out = silu(conv(x)) [rows, channels], then the columns move on.
void conv_silu(Queue& queue, std::span<const ConvRun> runs, const ConvShape& shape, const float* x, const float* weight,
               float* out);
/// The first `keep` captured rows happened.
void commit_conv(Queue& queue, float* columns, const float* captured, std::int64_t history, std::int64_t channels,
                 std::int64_t keep);

struct DeltaShape {
  int key_heads = 0, heads = 0, key_dim = 0, value_dim = 0;
  [[nodiscard]] constexpr std::int64_t key_size() const { return static_cast<std::int64_t>(key_heads) * key_dim; }
  [[nodiscard]] constexpr std::int64_t channels() const {
    return 2 * key_size() + static_cast<std::int64_t>(heads) * value_dim;
  }
};

/// One sequence's rows and state [heads, key_dim, value_dim]; keys, deltas and decays, where given, receive the factors
/// of every row.
struct DeltaRun {
  const float* state;
  float *next_state, *keys, *deltas, *decays;
  std::int32_t first_row, rows;
};

/// Unit vectors of q (scaled by 1/sqrt(key_dim)) and k from the convolution's rows: units [rows, 2, key_size].
void delta_units(Queue& queue, const DeltaShape& shape, const float* conv, std::int64_t rows, float* units);
/// decay and beta [rows, heads].
void delta_gates(Queue& queue, const float* a, const float* b, const float* neg_a, const float* dt_bias,
                 std::int64_t rows, std::int64_t heads, float* decay, float* beta);
struct GateInput {
  const float *a = nullptr, *b = nullptr, *neg_a = nullptr, *dt_bias = nullptr;
};

/// Whether delta_prepare() takes these runs: few rows each, a kernel of four taps, vectors of whole warps.
[[nodiscard]] bool delta_prepare_takes(std::span<const ConvRun> runs, const DeltaShape& shape, int kernel);
/// conv_silu(), delta_units() and delta_gates() in one launch. Of `conv` only the values are written.
void delta_prepare(Queue& queue, std::span<const ConvRun> runs, const DeltaShape& shape, const float* qkv,
                   const float* weight, const GateInput& gates, float* conv, float* units, float* decay, float* beta);
/// Whether delta_rows() takes this shape: a kernel of four taps, vectors of 128.
[[nodiscard]] bool delta_rows_takes(const DeltaShape& shape, int kernel);
/// The same as delta_prepare() for runs of any length.
void delta_rows(Queue& queue, std::span<const ConvRun> runs, const DeltaShape& shape, const float* qkv,
                const float* weight, const GateInput& gates, float* conv, float* units, float* decay, float* beta);
/// The recurrence: out [rows, heads, value_dim].
void delta_rule(Queue& queue, std::span<const DeltaRun> runs, const DeltaShape& shape, const float* conv,
                const float* units, const float* decay, const float* beta, float* out);
/// The first `keep` captured rows of `run` happened: next_state from state.
void delta_replay(Queue& queue, const DeltaRun& run, const DeltaShape& shape, std::int64_t keep);
/// In place, per row and head.
void gated_norm(Queue& queue, float* o, const float* z, const float* weight, std::int64_t items, std::int64_t n,
                float eps);

}  // namespace lockstep::kernels::cuda
