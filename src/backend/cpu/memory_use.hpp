// How much memory the CPU backend takes for a model, told from shapes alone (docs/engine.md "Memory of a model").
#pragma once

#include <cstdint>

#include "artifact/model_view.hpp"

namespace lockstep::backend {

/// Bytes that a quantised stack of matrices takes once it is laid out for the vector kernels.
[[nodiscard]] std::uint64_t packed_bytes(const artifact::MatrixView& view);

/// What bounds the scratch of the operations.
struct ScratchUse {
  std::int64_t rows = 1;       ///< of a call
  std::int64_t positions = 0;  ///< longest sequence
  std::int64_t threads = 1;
  bool draft = false;   ///< the draft layer runs too
  bool packed = true;   ///< quantised weights are laid out for vector kernels
  bool integer = true;  ///< products take quantised activations
};

/// Scratch, quantised activations, lists and rotation angles of the backend, once every operation has run with so many
/// rows: what operations ask for. Buffers that grow in steps may hold a quarter more.
[[nodiscard]] std::uint64_t scratch_bytes(const artifact::ModelView& view, const ScratchUse& use);

}  // namespace lockstep::backend
