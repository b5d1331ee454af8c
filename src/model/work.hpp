// The work that a forward pass cannot avoid: bytes of weights and state that it reads, multiply-adds that it does.
#pragma once

#include <cstdint>

#include "artifact/model_view.hpp"
#include "backend/backend.hpp"

namespace lockstep::model {

struct Work {
  double bytes = 0;         ///< read (and, for GDN states, written)
  double integer_macs = 0;  ///< multiply-adds in quantised matrices
  double float_macs = 0;    ///< multiply-adds in matrices that are not quantised
};

/// One token after `context` tokens, logits included. Of the experts only the chosen ones count.
[[nodiscard]] Work decode_work(const artifact::ModelView& view, backend::StateType state, std::int64_t context);
/// One row of a prompt without logits: only multiply-adds.
[[nodiscard]] Work prompt_work(const artifact::ModelView& view);
/// Bytes of a stack of matrices as stored: codes, scales and biases, or elements.
[[nodiscard]] double matrix_bytes(const artifact::MatrixView& matrix);

}  // namespace lockstep::model
