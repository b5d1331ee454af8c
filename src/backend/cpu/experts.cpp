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
  ProfileScope at(profile_, Part::Router);
  Activations input = activations(u, rows, hidden);
  matmul(*weights.router, input, logits);
  chosen_.resize(std::max(chosen_.size(), static_cast<std::size_t>(rows * ranks)));
  order_.resize(std::max(order_.size(), static_cast<std::size_t>(n)));
  for (std::int64_t t = 0; t < rows; ++t) {
    kernels_.route(logits + t * n, n, ranks, chosen_.data() + t * ranks, rank_weights + t * ranks, order_.data());
  }
  group_by_expert(chosen_.data(), rows);
  at.next(Part::SharedExpert);
  matmul(*weights.shared_expert_gate, input, shared_logit);
  matmul(*weights.shared_gate, input, gate);
  matmul(*weights.shared_up, input, up);
  at.next(Part::RoutedGateUp);
  const float* outputs = routed_experts(weights, input, at);
  at.next(Part::SharedExpert);
  kernels_.silu_product(gate, up, rows * config_.shared_expert_dim, gate);
  Activations shared_inner = activations(gate, rows, config_.shared_expert_dim);
  matmul(*weights.shared_down, shared_inner, shared);
  at.next(Part::Combine);
  parallel(rows, grain(ranks * hidden), [&](std::int64_t begin, std::int64_t end) {
    std::array<const float*, 64> parts{};
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int64_t r = 0; r < ranks; ++r) {
        parts.at(static_cast<std::size_t>(r)) = outputs + places_[static_cast<std::size_t>(t * ranks + r)] * hidden;
      }
      kernels_.combine(parts.data(), rank_weights + t * ranks, ranks, shared + t * hidden, shared_logit[t], hidden,
                       y + t * hidden);
    }
  });
}

/// Sorts the (row, rank) pairs by expert; pairs of one expert keep their order.
void CpuBackend::group_by_expert(const std::int32_t* chosen, std::int64_t rows) {
  const std::int64_t ranks = config_.experts_per_token;
  const auto pairs = static_cast<std::size_t>(rows * ranks);
  place_rows_.resize(std::max(place_rows_.size(), pairs));
  places_.resize(std::max(places_.size(), pairs));
  expert_starts_.assign(static_cast<std::size_t>(config_.experts) + 1, 0);
  for (std::size_t i = 0; i < pairs; ++i) ++expert_starts_[static_cast<std::size_t>(chosen[i]) + 1];
  expert_groups_.clear();
  for (std::size_t e = 0; e < static_cast<std::size_t>(config_.experts); ++e) {
    const std::int64_t count = expert_starts_[e + 1];
    expert_starts_[e + 1] += expert_starts_[e];
    if (count > 0) expert_groups_.push_back({static_cast<std::int64_t>(e), expert_starts_[e], count});
  }
  for (std::size_t i = 0; i < pairs; ++i) {
    const std::int64_t place = expert_starts_[static_cast<std::size_t>(chosen[i])]++;
    places_[i] = place;
    place_rows_[static_cast<std::size_t>(place)] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) / ranks);
  }
}

/// Calls body(group, begin, end) so that every block of every chosen expert's matrix is done once. Threads get equal
/// shares of the work, not of the blocks: an expert that many rows chose counts more. `work`: multiply-adds of one
/// block for one row.
template <class Body>
void CpuBackend::each_expert(std::int64_t blocks, std::int64_t work, Body&& body) {
  // A block's weights are read once whatever the rows; that costs about as much as computing a few of them.
  constexpr std::int64_t kReadCost = 3;
  std::int64_t total = 0;
  for (const ExpertGroup& group : expert_groups_) total += (group.count + kReadCost) * blocks;
  parallel(total, grain(work), [&](std::int64_t begin, std::int64_t end) {
    std::int64_t start = 0;
    for (const ExpertGroup& group : expert_groups_) {
      const std::int64_t cost = group.count + kReadCost;
      const auto block_at = [&](std::int64_t unit) {
        return std::clamp<std::int64_t>((unit - start + cost - 1) / cost, 0, blocks);
      };
      const std::int64_t first = begin <= start ? 0 : block_at(begin);
      const std::int64_t last = end <= start ? 0 : block_at(end);
      if (first < last) body(group, first, last);
      start += cost * blocks;
    }
  });
}

/// Blocks of one expert's matrix for its rows. `by_row`: x holds the rows of the call; otherwise it is in order of
/// places. out [places, matrix rows].
void CpuBackend::expert_blocks(const CpuMatrix& matrix, Activations& x, bool by_row, const ExpertGroup& group,
                               std::int64_t begin, std::int64_t end, float* out) {
  float* to = out + group.first * matrix.rows();
  if (!integer(matrix)) {
    Activations part(kernels_, pool_, expert_storage_, x.x() + group.first * matrix.cols(), group.count, matrix.cols());
    matmul_blocks(matrix, group.expert, part, begin, end, to);
    return;
  }
  kernels::QuantisedRows rows = x.quantised(matrix.group());
  rows.rows = group.count;
  if (by_row) {
    rows.source = place_rows_.data() + group.first;
  } else {
    const std::int64_t groups = rows.cols / rows.group;
    rows.values += group.first * rows.cols;
    rows.steps += group.first * groups;
    rows.sums += group.first * groups;
  }
  if (matrix.packed()) {
    kernels_.packed_rows(matrix.packed(group.expert), rows, begin, end, to, matrix.rows());
  } else {
    kernels_.affine_rows(matrix.affine(group.expert), rows, begin * kernels::kBlockRows,
                         std::min(matrix.rows(), end * kernels::kBlockRows), to, matrix.rows());
  }
}

/// down(silu(gate u) * up u) of every chosen expert: [places, hidden].
const float* CpuBackend::routed_experts(const MoeWeights& weights, Activations& input, ProfileScope& at) {
  const std::int64_t places = input.rows() * config_.experts_per_token;
  const std::int64_t width = config_.expert_dim;
  const std::int64_t hidden = config_.hidden_size;
  const auto& gate = static_cast<const CpuMatrix&>(*weights.gate);
  const auto& up = static_cast<const CpuMatrix&>(*weights.up);
  const auto& down = static_cast<const CpuMatrix&>(*weights.down);
  float* gated = scratch_[6].floats(static_cast<std::size_t>(places * width));
  float* inner = scratch_[7].floats(static_cast<std::size_t>(places * width));
  float* result = scratch_[8].floats(static_cast<std::size_t>(places * hidden));

  // Packed matrices take the rows of the call by number, quantised once for all experts; others want them in order of
  // places.
  const bool by_row = gate.packed() && up.packed();
  const float* in = input.x();
  if (!by_row) {
    float* gathered = scratch_[9].floats(static_cast<std::size_t>(places * hidden));
    for (std::int64_t i = 0; i < places; ++i) {
      std::copy_n(in + place_rows_[static_cast<std::size_t>(i)] * hidden, hidden, gathered + i * hidden);
    }
    in = gathered;
  }
  Activations gathered(kernels_, pool_, expert_storage_, in, places, hidden);
  Activations& x = by_row ? input : gathered;
  for (const CpuMatrix* matrix : {&gate, &up}) {
    if (integer(*matrix)) x.quantised(matrix->group());  // before the threads start
  }
  each_expert(gate.blocks(), 2 * hidden * kernels::kBlockRows,
              [&](const ExpertGroup& group, std::int64_t begin, std::int64_t end) {
                expert_blocks(gate, x, by_row, group, begin, end, gated);
                expert_blocks(up, x, by_row, group, begin, end, inner);
                const std::int64_t first = begin * kernels::kBlockRows;
                const std::int64_t count = std::min(width, end * kernels::kBlockRows) - first;
                for (std::int64_t i = group.first; i < group.first + group.count; ++i) {
                  float* to = gated + i * width + first;
                  kernels_.silu_product(to, inner + i * width + first, count, to);
                }
              });
  at.next(Part::RoutedDown);
  Activations products(kernels_, pool_, expert_storage_, gated, places, width);
  if (integer(down)) products.quantised(down.group());
  each_expert(down.blocks(), width * kernels::kBlockRows,
              [&](const ExpertGroup& group, std::int64_t begin, std::int64_t end) {
                expert_blocks(down, products, false, group, begin, end, result);
              });
  return result;
}

}  // namespace lockstep::backend
