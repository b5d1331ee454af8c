// Builds the ModelView from checked tensors, for both layouts.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "artifact/artifact.hpp"
#include "artifact/module_reader.hpp"
#include "artifact/runtime_config.hpp"

namespace lockstep::artifact {

/// Expert weights in the layout of a batched matrix product, [experts, in, out], that must be transposed into memory.
/// They are noted while tensors are checked and built once everything is known to be right.
struct TransposedExperts {
  const std::byte* source = nullptr;  ///< [count, in, out]
  DType dtype = DType::BF16;
  std::int64_t count = 0, in = 0, out = 0;
  std::vector<MatrixView*> views;  ///< equal slices of `out`, in order
};

struct BuildInput {
  ModuleReader& reader;
  Layout layout;
  std::string prefix;  ///< before "embed_tokens.weight"
  std::string head;    ///< module of the vocabulary head
  RuntimeConfig runtime;
  SideFiles side;
};

struct BuildOutput {
  ModelView view;
  std::vector<TransposedExperts> transposed;  ///< points into `view`
  std::vector<std::string> warnings;
};

/// Takes every tensor the model needs. `output.view.config` is set. Errors: NotFound, Invalid with file, tensor,
/// reason.
Status build_view(const BuildInput& input, BuildOutput& output);

/// The transposed copy of slice `part`; `view`, a copy of that part's view, takes its stride.
[[nodiscard]] std::vector<std::byte> transpose_part(const TransposedExperts& job, std::size_t part, MatrixView& view);

/// Allocates and fills the transposed copies; the views then point into `memory`.
void transpose_experts(const std::vector<TransposedExperts>& list, std::deque<std::vector<std::byte>>& memory);

}  // namespace lockstep::artifact
