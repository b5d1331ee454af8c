// All weights of a model, uploaded to one backend.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "artifact/model_view.hpp"
#include "backend/backend.hpp"

namespace lockstep::model {

struct LayerWeights {
  artifact::LayerKind kind = artifact::LayerKind::Linear;
  std::optional<backend::PleWeights> ple;
  backend::HyperWeights attention_site, mlp_site;
  std::optional<backend::DeltaWeights> linear;
  std::optional<backend::AttentionWeights> attention;
  backend::MoeWeights moe;
};

struct DraftHead {
  backend::DraftWeights input;
  LayerWeights layer;
  backend::HyperWeights mixer;
};

struct Weights {
  backend::MatrixPtr embedding, head;
  std::vector<LayerWeights> layers;
  backend::HyperWeights mixer;
  std::optional<DraftHead> draft;
  artifact::NgramHash ngram;
};

/// Uploads every piece of the view, the draft layer if `draft`. `uploaded` is called with the pieces done so far, of
/// upload_pieces(). Error: Limit when the device has too little memory.
Result<Weights> upload_weights(const artifact::ModelView& view, backend::Backend& backend, bool draft,
                               const std::function<void(std::uint64_t done)>& uploaded);
[[nodiscard]] std::uint64_t upload_pieces(const artifact::ModelView& view);

}  // namespace lockstep::model
