// How much memory the CUDA backend takes for a model, told from shapes alone (docs/engine.md "Memory of a model").
#pragma once

#include <cstdint>

#include "artifact/model_view.hpp"

namespace lockstep::backend {

/// Rows whose scores, choices and partial results of attention exist at a time on a CUDA device.
inline constexpr std::int64_t kAttentionPieceRows = 256;

/// Bytes that a stack of matrices takes on the device, in the layout of its kernels.
[[nodiscard]] std::uint64_t device_matrix_bytes(const artifact::MatrixView& view);

/// Upper bound of the operations' scratch, quantised activations and rotation angles, for calls of `rows` rows and
/// sequences of `positions` tokens.
[[nodiscard]] std::uint64_t device_scratch_bytes(const artifact::ModelView& view, std::int64_t rows,
                                                 std::int64_t positions);

}  // namespace lockstep::backend
