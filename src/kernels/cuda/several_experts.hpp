// The mixture of experts for 9 to 16 rows in four launches behind the router's product: choice; gate, up and their
// quantised product; down; weighted sum and residual. Weights of 4 bits in groups of 64.
#pragma once

#include <cstdint>

#include "kernels/cuda/few.hpp"
#include "kernels/cuda/few_experts.hpp"
#include "kernels/cuda/linear.hpp"
#include "kernels/cuda/queue.hpp"
#include "kernels/cuda/several.hpp"

namespace lockstep::kernels::cuda {

/// Whether the kernels take these weights and rows: the conditions of few_experts_take() but for the rows.
[[nodiscard]] bool several_experts_take(const FewExperts& experts);

/// 32-bit values of the choice of experts.
[[nodiscard]] constexpr std::int64_t several_choice_words(std::int64_t rows, std::int64_t ranks) {
  return 4 * rows * ranks + 4;
}

struct SeveralScratch {
  std::int32_t* choice = nullptr;         ///< several_choice_words()
  std::uint32_t* arrived = nullptr;       ///< one value, zeroed once; 0 in between
  float* outputs = nullptr;               ///< [few_inner_rows(), hidden]
  const ActivationRows* inner = nullptr;  ///< few_inner_rows() rows of the inner size
};

/// Chooses experts from router logits [rows, experts] and adds the weighted sum of their outputs and the shared
/// expert's to the tail. `x` are the quantised input rows.
void several_experts(Queue& queue, const FewExperts& experts, const float* logits, const float* shared_logit,
                     const ActivationRows& x, const SeveralScratch& scratch, const Tail& tail);

}  // namespace lockstep::kernels::cuda
