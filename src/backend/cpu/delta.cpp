// Gated DeltaNet layers and causal convolutions on the CPU.
#include <algorithm>
#include <vector>

#include "backend/cpu/cpu_backend.hpp"
#include "numerics/canon_math.hpp"

namespace lockstep::backend {
namespace {

/// Column of time `t` relative to the run's first row: from the history when negative.
const float* column(const ConvSlot& slot, const float* rows, std::int64_t t, std::int64_t history,
                    std::int64_t channels) {
  return t < 0 ? slot.columns + (history + t) * channels : rows + t * channels;
}

constexpr std::int64_t kMaxKernel = 16;

}  // namespace

void CpuBackend::convolve(const ConvSlot& slot, const Run& run, std::int64_t history_step, std::int64_t kernel,
                          std::int64_t channels, const float* rows, const float* weight, float* out) {
  const std::int64_t history = (kernel - 1) * history_step;
  parallel(channels, std::max<std::int64_t>(64, grain(8 * run.rows)), [&](std::int64_t begin, std::int64_t end) {
    std::array<const float*, kMaxKernel> taps{};
    for (std::int64_t t = 0; t < run.rows; ++t) {
      for (std::int64_t j = 0; j < kernel; ++j) {
        taps[static_cast<std::size_t>(j)] = column(slot, rows, t - (kernel - 1 - j) * history_step, history, channels);
      }
      kernels_.conv_silu(taps.data(), weight, kernel, begin, end, out + t * channels);
    }
  });
}

void CpuBackend::keep_columns(const ConvSlot& slot, const Run& run, std::int64_t history, std::int64_t channels,
                              const float* rows) {
  if (slot.captured != nullptr) {
    std::copy_n(rows, run.rows * channels, slot.captured);
    return;
  }
  for (std::int64_t i = 0; i < history; ++i) {
    std::copy_n(column(slot, rows, run.rows - history + i, history, channels), channels, slot.columns + i * channels);
  }
}

void CpuBackend::commit_conv(const ConvSlot& slot, std::int64_t history, std::int64_t channels, std::int64_t keep) {
  for (std::int64_t i = 0; i < history; ++i) {
    std::copy_n(column(slot, slot.captured, keep - history + i, history, channels), channels,
                slot.columns + i * channels);
  }
}

void CpuBackend::delta_net(const DeltaWeights& weights, const float* u, std::span<const DeltaSlot> slots,
                           std::int64_t rows, float* y) {
  const std::int64_t channels = config_.conv_channels();
  const std::int64_t values = config_.value_size();
  const std::int64_t heads = config_.linear_value_heads;
  const auto floats = [&](std::size_t slot, std::int64_t per_row) {
    return scratch_.at(slot).floats(static_cast<std::size_t>(rows * per_row));
  };
  float* qkv = floats(0, channels);
  float* z = floats(1, values);
  float* a = floats(2, heads);
  float* b = floats(3, heads);
  float* conv = floats(4, channels);
  float* decay = floats(5, heads);
  float* beta = floats(6, heads);
  float* units = floats(7, 2 * config_.linear_key_heads * config_.linear_key_dim);
  float* deltas = floats(8, values);
  float* o = floats(9, values);
  ProfileScope at(profile_, Part::DeltaProjections);
  Activations input = activations(u, rows, config_.hidden_size);
  matmul(*weights.qkv, input, qkv);
  matmul(*weights.z, input, z);
  matmul(*weights.a, input, a);
  matmul(*weights.b, input, b);
  at.next(Part::DeltaRecurrence);
  for (std::int64_t t = 0; t < rows; ++t) {
    kernels_.gates(a + t * heads, b + t * heads, weights.neg_a->floats(), weights.dt_bias->floats(), heads,
                   decay + t * heads, beta + t * heads);
  }
  for (const DeltaSlot& slot : slots) {
    const float* run_rows = qkv + slot.run.first_row * channels;
    at.next(Part::DeltaConvolution);
    convolve(slot.conv, slot.run, 1, config_.conv_kernel, channels, run_rows, weights.conv->floats(),
             conv + slot.run.first_row * channels);
    keep_columns(slot.conv, slot.run, config_.conv_kernel - 1, channels, run_rows);
    at.next(Part::DeltaRecurrence);
    delta_run(weights, slot, conv, decay, beta, units, deltas, o);
  }
  at.next(Part::DeltaOutput);
  parallel(rows * heads, grain(8 * config_.linear_value_dim), [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t n = config_.linear_value_dim;
    const auto eps = static_cast<float>(config_.rms_norm_eps);
    for (std::int64_t i = begin; i < end; ++i) {
      kernels_.gated_norm(o + i * n, z + i * n, weights.norm->floats(), n, eps, o + i * n);
    }
  });
  Activations output = activations(o, rows, values);
  matmul(*weights.out, output, y);
}

void CpuBackend::delta_run(const DeltaWeights& /*weights*/, const DeltaSlot& slot, const float* conv,
                           const float* decay, const float* beta, float* units, float* deltas, float* out) {
  const std::int64_t key_dim = config_.linear_key_dim;
  const std::int64_t value_dim = config_.linear_value_dim;
  const std::int64_t key_heads = config_.linear_key_heads;
  const std::int64_t heads = config_.linear_value_heads;
  const std::int64_t key_size = key_heads * key_dim;
  const std::int64_t channels = config_.conv_channels();
  const float q_scale = 1.0F / numerics::canon_sqrt(static_cast<float>(key_dim));
  float* q_units = units;
  float* k_units = units + slot.run.rows * key_size;
  parallel(slot.run.rows * key_heads, grain(4 * key_dim), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float* row = conv + (slot.run.first_row + i / key_heads) * channels + (i % key_heads) * key_dim;
      kernels_.unit_vector(row, key_dim, q_scale, q_units + i * key_dim);
      kernels_.unit_vector(row + key_size, key_dim, 1.0F, k_units + i * key_dim);
    }
  });
  // Heads are independent; inside a head one token follows the other (docs/numerics.md N6).
  parallel(heads, grain(2 * key_dim * value_dim * slot.run.rows), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t h = begin; h < end; ++h) {
      const std::int64_t state = h * key_dim * value_dim;
      const std::int64_t key_head = h / (heads / key_heads);
      for (std::int64_t t = 0; t < slot.run.rows; ++t) {
        const std::int64_t row = slot.run.first_row + t;
        const std::int64_t key = t * key_size + key_head * key_dim;
        const std::int64_t value = row * heads * value_dim + h * value_dim;
        kernels_.delta_step({(t == 0 ? slot.state : slot.next_state) + state, k_units + key, q_units + key,
                             conv + row * channels + 2 * key_size + h * value_dim, decay[row * heads + h],
                             beta[row * heads + h], key_dim, value_dim, slot.next_state + state, deltas + value,
                             out + value});
      }
    }
  });
  if (slot.keys == nullptr) return;
  std::copy_n(k_units, slot.run.rows * key_size, slot.keys);
  std::copy_n(deltas + slot.run.first_row * heads * value_dim, slot.run.rows * heads * value_dim, slot.deltas);
  std::copy_n(decay + slot.run.first_row * heads, slot.run.rows * heads, slot.decays);
}

void CpuBackend::commit_delta(const DeltaSlot& slot, std::int64_t keep) {
  const std::int64_t key_dim = config_.linear_key_dim;
  const std::int64_t value_dim = config_.linear_value_dim;
  const std::int64_t heads = config_.linear_value_heads;
  const std::int64_t key_heads = config_.linear_key_heads;
  parallel(heads, grain(key_dim * value_dim), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t h = begin; h < end; ++h) {
      const std::int64_t state = h * key_dim * value_dim;
      const std::int64_t key_head = h / (heads / key_heads);
      if (keep == 0) std::copy_n(slot.state + state, key_dim * value_dim, slot.next_state + state);
      for (std::int64_t t = 0; t < keep; ++t) {
        kernels_.delta_replay((t == 0 ? slot.state : slot.next_state) + state,
                              slot.keys + (t * key_heads + key_head) * key_dim,
                              slot.deltas + (t * heads + h) * value_dim, slot.decays[t * heads + h], key_dim, value_dim,
                              slot.next_state + state);
      }
    }
  });
}

}  // namespace lockstep::backend
