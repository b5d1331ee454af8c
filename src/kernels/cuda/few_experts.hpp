// The mixture of experts for a few rows in two launches behind the router's product: choice, gate and up; down, sum and
// residual. Weights of 4 bits in groups of 64.
#pragma once

#include <cstdint>

#include "kernels/cuda/few.hpp"
#include "kernels/cuda/linear.hpp"
#include "kernels/cuda/queue.hpp"

namespace lockstep::kernels::cuda {

/// Activation rows of one call.
inline constexpr std::int64_t kFewExpertRows = 4;

struct FewExperts {
  const AffineWeights *gate = nullptr, *up = nullptr, *down = nullptr;  ///< stacks
  const AffineWeights *shared_gate = nullptr, *shared_up = nullptr, *shared_down = nullptr;
  std::int64_t rows = 0, ranks = 0;
};

/// Whether the kernels take these weights: all 4 bits in groups of 64 with bf16 pairs, hidden size of at most 2,560,
/// inner size (the same for the shared expert) a multiple of 64 of at most 640, at most 512 experts and 16 ranks.
[[nodiscard]] bool few_experts_take(const FewExperts& experts);

/// Rows of `inner` below: those of all pairs (row, rank), then those of the shared expert.
[[nodiscard]] constexpr std::int64_t few_inner_rows(std::int64_t rows, std::int64_t ranks) {
  return rows * (ranks + 1);
}
/// 32-bit values of the choice that passes from the first kernel to the second; zeros at first.
[[nodiscard]] constexpr std::int64_t few_choice_words(std::int64_t rows, std::int64_t ranks) {
  return 4 * rows * ranks + 4;
}

/// Chooses experts from router logits [rows, experts] and computes silu(gate) * up of the chosen ones and the shared
/// one: `inner` and `choice` receive what few_experts_down() needs. `x` are the quantised input rows.
void few_experts_inner(Queue& queue, const FewExperts& experts, const float* logits, const ActivationRows& x,
                       const ActivationRows& inner, std::int32_t* choice);
/// The weighted sum of the experts' outputs, to the tail.
void few_experts_down(Queue& queue, const FewExperts& experts, const ActivationRows& inner, std::int32_t* choice,
                      const float* shared_logit, const Tail& tail);

}  // namespace lockstep::kernels::cuda
