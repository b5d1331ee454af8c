// How much memory the CPU backend takes for a model, told from shapes alone (docs/engine.md "Memory of a model").
#pragma once

#include <cstdint>

#include "artifact/model_view.hpp"

namespace lockstep::backend {

/// Bytes that a quantised stack of matrices takes once it is laid out for the vector kernels.
[[nodiscard]] std::uint64_t packed_bytes(const artifact::MatrixView& view);

/// Whether a matrix that is not quantised is copied from the mapped file into memory of its own, where large pages
/// serve it: those of a few megabytes, which are read for every token. Stacks of experts stay where they are.
[[nodiscard]] bool copies_dense(const artifact::MatrixView& view);
/// Bytes of memory that a matrix takes beside its file; `packs`: the kernels have a layout of their own.
[[nodiscard]] std::uint64_t own_bytes(const artifact::MatrixView& view, bool packs);

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
