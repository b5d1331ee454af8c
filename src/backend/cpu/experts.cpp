// The mixture of experts on the CPU: rows are grouped by expert, so that each expert's weights are read once a call.
#include <algorithm>

#include "backend/cpu/cpu_backend.hpp"

namespace lockstep::backend {

void CpuBackend::experts(const MoeWeights& weights, const float* u, std::int64_t rows, float* y) {
  const std::int64_t n = config_.experts;
  const std::int64_t ranks = config_.experts_per_token;
  const std::int64_t hidden = config_.hidden_size;
  const auto floats = [&](std::size_t slot, std::int64_t per_row) {
    return scratch_.at(slot).floats(static_cast<std::size_t>(rows * per_row));
  };
  float* logits = floats(0, n);
  float* rank_weights = floats(1, ranks);
  float* shared_logit = floats(2, 1);
  float* gate = floats(3, config_.shared_expert_dim);
  float* up = floats(4, config_.shared_expert_dim);
  float* shared = floats(5, hidden);
  float* outputs = floats(6, ranks * hidden);
  float* inner = floats(7, ranks * config_.expert_dim);
  Activations input = activations(u, rows, hidden);
  matmul(*weights.router, input, logits);
  matmul(*weights.shared_expert_gate, input, shared_logit);
  matmul(*weights.shared_gate, input, gate);
  matmul(*weights.shared_up, input, up);
  chosen_.resize(std::max(chosen_.size(), static_cast<std::size_t>(rows * ranks)));
  order_.resize(std::max(order_.size(), static_cast<std::size_t>(n)));
  for (std::int64_t t = 0; t < rows; ++t) {
    kernels_.route(logits + t * n, n, ranks, chosen_.data() + t * ranks, rank_weights + t * ranks, order_.data());
  }
  routed_experts(weights, input, chosen_.data(), inner, outputs);
  kernels_.silu_product(gate, up, rows * config_.shared_expert_dim, gate);
  Activations shared_inner = activations(gate, rows, config_.shared_expert_dim);
  matmul(*weights.shared_down, shared_inner, shared);
  parallel(rows, grain(ranks * hidden), [&](std::int64_t begin, std::int64_t end) {
    std::array<const float*, 64> parts{};
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t r = 0; r < ranks; ++r)
        parts.at(static_cast<std::size_t>(r)) = outputs + (t * ranks + r) * hidden;
      kernels_.combine(parts.data(), rank_weights + t * ranks, ranks, shared + t * hidden, shared_logit[t], hidden,
                       y + t * hidden);
    }
  });
}

namespace {

/// Which (row, rank) pairs chose each expert, in ascending order; experts without any are left out.
struct Assignment {
  std::int64_t expert = 0, first = 0, count = 0;
};

}  // namespace

/// outputs [rows * ranks, hidden]: down(silu(gate u) * up u) of every chosen expert; inner [rows * ranks, expert_dim].
void CpuBackend::routed_experts(const MoeWeights& weights, Activations& input, const std::int32_t* chosen, float* inner,
                                float* outputs) {
  const std::int64_t ranks = config_.experts_per_token;
  const std::int64_t pairs = input.rows() * ranks;
  const std::int64_t width = config_.expert_dim;
  const std::int64_t hidden = config_.hidden_size;
  const auto& gate = static_cast<const CpuMatrix&>(*weights.gate);
  const auto& up = static_cast<const CpuMatrix&>(*weights.up);
  const auto& down = static_cast<const CpuMatrix&>(*weights.down);

  std::vector<std::int64_t> order(static_cast<std::size_t>(pairs));
  for (std::int64_t i = 0; i < pairs; ++i) order[static_cast<std::size_t>(i)] = i;
  std::sort(order.begin(), order.end(),
            [&](std::int64_t a, std::int64_t b) { return chosen[a] != chosen[b] ? chosen[a] < chosen[b] : a < b; });
  std::vector<Assignment> groups;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int64_t expert = chosen[order[static_cast<std::size_t>(i)]];
    if (groups.empty() || groups.back().expert != expert) groups.push_back({expert, i, 0});
    ++groups.back().count;
  }

  // Rows gathered per expert, so that a group's rows are consecutive.
  float* x = scratch_[8].floats(static_cast<std::size_t>(pairs * hidden));
  float* gated = scratch_[9].floats(static_cast<std::size_t>(pairs * width));
  float* result = scratch_[10].floats(static_cast<std::size_t>(pairs * hidden));
  for (std::int64_t i = 0; i < pairs; ++i) {
    std::copy_n(input.x() + order[static_cast<std::size_t>(i)] / ranks * hidden, hidden, x + i * hidden);
  }
  const auto each = [&](const CpuMatrix& matrix, const float* in, std::array<QuantisedStorage, 3>& storage, float* to) {
    // One parallel loop over the output rows of all groups.
    Activations all(kernels_, pool_, storage, in, pairs, matrix.cols());
    const bool integer = matrix.quantised() && !unquantised_;
    if (integer) all.quantised(matrix.group());
    parallel(static_cast<std::int64_t>(groups.size()) * matrix.rows(), std::max(kRowGrain, grain(matrix.cols())),
             [&](std::int64_t begin, std::int64_t end) {
               while (begin < end) {
                 const Assignment& group = groups[static_cast<std::size_t>(begin / matrix.rows())];
                 const std::int64_t row = begin % matrix.rows();
                 const std::int64_t stop = std::min(matrix.rows(), row + end - begin);
                 float* out = to + group.first * matrix.rows();
                 if (integer) {
                   kernels::QuantisedRows part = all.quantised(matrix.group());
                   const std::int64_t per_row = part.cols / part.group;
                   part.values += group.first * part.cols;
                   part.steps += group.first * per_row;
                   part.sums += group.first * per_row;
                   part.rows = group.count;
                   kernels_.affine_rows(matrix.affine(group.expert), part, row, stop, out, matrix.rows());
                 } else {
                   Activations part(kernels_, pool_, storage, in + group.first * matrix.cols(), group.count,
                                    matrix.cols());
                   matmul_rows(matrix, group.expert, part, row, stop, out, matrix.rows());
                 }
                 begin += stop - row;
               }
             });
  };
  each(gate, x, expert_storage_, gated);
  each(up, x, expert_storage_, inner);
  parallel(pairs, grain(8 * width), [&](std::int64_t begin, std::int64_t end) {
    kernels_.silu_product(gated + begin * width, inner + begin * width, (end - begin) * width, gated + begin * width);
  });
  each(down, gated, expert_storage_, result);
  for (std::int64_t i = 0; i < pairs; ++i) {
    std::copy_n(result + i * hidden, hidden, outputs + order[static_cast<std::size_t>(i)] * hidden);
  }
}

}  // namespace lockstep::backend
