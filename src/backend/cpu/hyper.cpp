// Hyper-connections, the n-gram embedding and the draft head's input on the CPU.
#include <algorithm>

#include "backend/cpu/cpu_backend.hpp"

namespace lockstep::backend {

void CpuBackend::hyper_read(const HyperWeights& weights, const float* x, std::int64_t rows, float* u, float* inject) {
  const std::int64_t wide = config_.wide_size();
  const std::int64_t lowrank = weights.down->rows();
  ProfileScope at(profile_, Part::HyperNorm);
  float* n = scratch_[0].floats(static_cast<std::size_t>(rows * wide));
  float* low = scratch_[1].floats(static_cast<std::size_t>(rows * lowrank));
  float* gate = scratch_[2].floats(static_cast<std::size_t>(rows * wide));
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  parallel(rows, grain(4 * wide), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      kernels_.rms_norm(x + t * wide, weights.norm->floats(), config_.streams, config_.hidden_size, eps, n + t * wide);
    }
  });
  at.next(Part::HyperMix);
  Activations normed = activations(n, rows, wide);
  matmul(*weights.down, normed, low);
  if (inject != nullptr) matmul(*weights.inject, normed, inject);
  kernels_.silu_divided(low, rows * lowrank, static_cast<float>(config_.streams));
  Activations lowered = activations(low, rows, lowrank);
  matmul(*weights.up, lowered, gate);
  at.next(Part::HyperGate);
  parallel(rows, grain(4 * wide), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      kernels_.gated_mean(gate + t * wide, n + t * wide, config_.streams, config_.hidden_size,
                          u + t * config_.hidden_size);
      if (inject != nullptr) kernels_.inject_weights(inject + t * config_.streams, config_.streams);
    }
  });
}

void CpuBackend::hyper_write(const float* inject, const float* y, std::int64_t rows, float* x) {
  const ProfileScope at(profile_, Part::HyperWrite);
  parallel(rows, grain(config_.wide_size()), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      kernels_.inject(x + t * config_.wide_size(), inject + t * config_.streams, y + t * config_.hidden_size,
                      config_.streams, config_.hidden_size);
    }
  });
}

Status CpuBackend::ngram_request(std::span<const std::int64_t> row_ids) {
  return ngram_->request(row_ids);
}

Status CpuBackend::ngram_lookup(std::span<const std::int64_t> row_ids, float* e) {
  const ProfileScope at(profile_, Part::NgramRows);
  if (!ple_ahead_ || !ple_ahead_->begun()) return ngram_->gather(row_ids, e);
  LOCKSTEP_TRY(ple_ahead_->collect(pool_, min_work_));
  ple_ready_ = true;
  return {};
}

void CpuBackend::ple_begin(const PleWeights& weights, std::span<const std::int64_t> row_ids) {
  if (ple_ahead_) ple_ahead_->begin(weights, row_ids, *ngram_);
}

void CpuBackend::ple_products(const PleWeights& weights, const float* e, std::int64_t rows, float* key, float* value) {
  const std::int64_t wide = config_.wide_size();
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  Activations embedded = activations(e, rows, config_.ple_dim);
  matmul(*weights.key, embedded, key);
  matmul(*weights.value, embedded, value);
  parallel(rows, grain(2 * wide), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      kernels_.rms_norm(key + t * wide, weights.norm_key->floats(), config_.streams, config_.hidden_size, eps,
                        key + t * wide);
    }
  });
}

void CpuBackend::ple_inject(const PleWeights& weights, const float* e, std::span<const PleSlot> slots,
                            std::int64_t rows, float* x) {
  const ProfileScope at(profile_, Part::NgramInjection);
  const std::int64_t wide = config_.wide_size();
  const std::int64_t hidden = config_.hidden_size;
  const auto size = static_cast<std::size_t>(rows * wide);
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  const float* key = nullptr;
  const float* value = nullptr;
  float* gated = scratch_[2].floats(size);
  float* normed = scratch_[3].floats(size);
  float* conv = scratch_[4].floats(size);
  if (ple_ready_) {
    ple_ready_ = false;
    key = ple_ahead_->keys();
    value = ple_ahead_->values();
  } else {
    float* new_key = scratch_[0].floats(size);
    float* new_value = scratch_[1].floats(static_cast<std::size_t>(rows * hidden));
    ple_products(weights, e, rows, new_key, new_value);
    key = new_key;
    value = new_value;
  }
  parallel(rows, grain(4 * wide), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      const auto norm = [&](const float* from, const BufferPtr& weight, float* to) {
        kernels_.rms_norm(from + t * wide, weight->floats(), config_.streams, hidden, eps, to + t * wide);
      };
      norm(x, weights.norm_query, normed);
      kernels_.ple_gate(key + t * wide, normed + t * wide, value + t * hidden, config_.streams, hidden,
                        gated + t * wide);
      norm(gated, weights.norm_conv, normed);
    }
  });
  for (const PleSlot& slot : slots) {
    const float* run_rows = normed + slot.run.first_row * wide;
    convolve(slot.conv, slot.run, config_.ngram_size, config_.ple_conv_kernel, wide, run_rows, weights.conv->floats(),
             conv + slot.run.first_row * wide);
    keep_columns(slot.conv, slot.run, (config_.ple_conv_kernel - 1) * config_.ngram_size, wide, run_rows);
  }
  parallel(rows, grain(4 * wide), [&](std::int64_t begin, std::int64_t end) {
    kernels_.add(x + begin * wide, gated + begin * wide, conv + begin * wide, (end - begin) * wide);
  });
}

void CpuBackend::draft_input(const DraftWeights& weights, const Matrix& embedding, std::span<const std::int32_t> tokens,
                             const float* h, float* x) {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  const std::int64_t hidden = config_.hidden_size;
  const std::int64_t wide = config_.wide_size();
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  float* e = scratch_[0].floats(static_cast<std::size_t>(rows * hidden));
  float* projected = scratch_[1].floats(static_cast<std::size_t>(rows * hidden));
  float* normed = scratch_[2].floats(static_cast<std::size_t>(rows * wide));
  for (std::int64_t t = 0; t < rows; ++t) {
    float* row = e + t * hidden;
    matrix_row(static_cast<const CpuMatrix&>(embedding), tokens[static_cast<std::size_t>(t)], row);
    kernels_.rms_norm(row, weights.norm_embedding->floats(), 1, hidden, eps, row);
    const std::int64_t groups = weights.norm_hidden_groups;
    kernels_.rms_norm(h + t * wide, weights.norm_hidden->floats(), groups, wide / groups, eps, normed + t * wide);
  }
  Activations embedded = activations(e, rows, hidden);
  matmul(*weights.fc_embedding, embedded, projected);
  // The same matrix for every stream: the wide rows are streams * rows narrow ones.
  Activations streams = activations(normed, rows * config_.streams, hidden);
  matmul(*weights.fc_hidden, streams, x);
  for (std::int64_t t = 0; t < rows; ++t) {
    for (std::int64_t i = 0; i < wide; ++i) x[t * wide + i] += projected[t * hidden + i % hidden];
  }
}

}  // namespace lockstep::backend
