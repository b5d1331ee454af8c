// All weights of a model, uploaded to one backend.
#pragma once

#include <optional>
#include <vector>

#include "artifact/model_view.hpp"
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

/// Uploads every piece of the view and counts the layers in `progress`, without `draft` all but the draft layer.
/// Errors: Limit when the device has too little memory; Invalid at a scale or bias that is not finite
/// (artifact/finite.hpp).
Result<Weights> upload_weights(const artifact::ModelView& view, backend::Backend& backend, bool draft,
                               Progress& progress);

}  // namespace lockstep::model
