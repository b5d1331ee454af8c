// Every matrix and vector of a model in a fixed order, with the name it has in a pack.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "artifact/model_view.hpp"

namespace lockstep::artifact {

/// What a matrix does. The order is that of reports.
enum class Family : std::uint8_t {
  Embedding,
  Head,
  DeltaNet,
  Attention,
  Indexer,
  HyperConnection,
  Router,
  Experts,
  SharedExpert,
  NgramProjection,
  DraftInput,
};
inline constexpr std::size_t kFamilies = 11;
[[nodiscard]] const char* family_name(Family family);

struct MatrixPart {
  std::string module;  ///< "language_model.model.layers.0.mlp.gate"; in a pack module + ".weight" is the tensor
  Family family = Family::Embedding;
  bool draft = false;  ///< belongs to the draft layer
  const MatrixView* matrix = nullptr;
};

/// How a vector is stored in a pack.
enum class VectorKind : std::uint8_t {
  Norm,       ///< the multiplier 1 + w as it is, rounded to bf16
  InputNorm,  ///< w (mtp.pre_fc_norm_*)
  Plain,      ///< as it is, in bf16 where that loses nothing
  Full,       ///< as it is, in F32 (A_log)
};

struct VectorPart {
  std::string tensor;
  VectorKind kind = VectorKind::Plain;
  bool draft = false;
  std::vector<std::int64_t> shape;
  const Vector* values = nullptr;
};

/// The n-gram table and its hash constants are not listed: they have no counterpart elsewhere.
struct ModelParts {
  std::vector<MatrixPart> matrices;
  std::vector<VectorPart> vectors;
};

/// Layer by layer, as the forward pass uses them; pointers are into `view`.
[[nodiscard]] ModelParts walk_model(const ModelView& view);

/// Prefix of the trunk's tensors in a pack.
inline constexpr const char* kPackPrefix = "language_model.model.";

/// Bytes of all planes of a matrix stack, and of the n-gram table in any form.
[[nodiscard]] std::uint64_t matrix_bytes(const MatrixView& matrix);
[[nodiscard]] std::uint64_t table_bytes(const NgramTableView& table);

}  // namespace lockstep::artifact
