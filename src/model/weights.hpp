// All weights of a model, uploaded to one backend.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "artifact/artifact.hpp"
#include "backend/backend.hpp"
#include "base/progress.hpp"

namespace lockstep::model {

struct LayerWeights {
  artifact::LayerKind kind = artifact::LayerKind::Linear;
  std::optional<backend::PleWeights> ple;
  backend::HyperWeights attention_site, mlp_site;
  std::optional<backend::DeltaWeights> linear;
  std::optional<backend::AttentionWeights> attention;
  backend::MoeWeights moe;
};

/// Rows of the output projection for some tokens only (the lane frspec).
struct ShortHead {
  std::vector<std::int32_t> tokens;  ///< ascending; row i stands for tokens[i]
  std::vector<std::byte> storage;    ///< what `head` may refer to
  backend::MatrixPtr head;
};

struct DraftHead {
  backend::DraftWeights input;
  LayerWeights layer;
  backend::HyperWeights mixer;
  std::optional<ShortHead> short_head;
};

struct Weights {
  std::deque<std::vector<std::byte>> kept;  ///< what matrices below may refer to
  backend::MatrixPtr embedding, head;
  std::vector<LayerWeights> layers;
  backend::HyperWeights mixer;
  std::optional<DraftHead> draft;
  artifact::NgramHash ngram;
};

struct UploadWatch {
  /// After each layer and each piece of a table that is copied: bytes of upload_bytes() done so far.
  std::function<void(std::uint64_t done)> uploaded;
  const std::atomic<bool>* cancel = nullptr;  ///< looked at before every matrix and piece
};

/// Uploads every piece of the artifact, the draft layer if `draft`; what is made on demand is made for it, one matrix
/// at a time. Errors: Limit when the device has too little memory; Invalid at a scale or bias that is not finite
/// (artifact/finite.hpp); Cancelled.
Result<Weights> upload_weights(const artifact::Artifact& artifact, backend::Backend& backend, bool draft,
                               const UploadWatch& watch);
/// Bytes of the matrices that upload_weights() hands over, and of the n-gram table where the backend copies it.
[[nodiscard]] std::uint64_t upload_bytes(const artifact::ModelView& view, bool draft, const backend::Backend& backend);

/// Copies the rows of `tokens`, in any order and each once, out of the head. Errors: Invalid for a token that the head
/// has no row for or that comes twice; Limit.
Result<ShortHead> upload_short_head(const artifact::MatrixView& head, std::vector<std::int32_t> tokens,
                                    backend::Backend& backend);

}  // namespace lockstep::model
