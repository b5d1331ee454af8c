#include "model/weights.hpp"

#include <algorithm>

#include "numerics/canon_math.hpp"

namespace lockstep::model {
namespace {

using backend::Backend;

Result<backend::HyperWeights> upload_site(const artifact::HyperConnectionView& view, Backend& backend) {
  backend::HyperWeights site;
  site.norm = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.norm)));
  site.down = LOCKSTEP_TRY(backend.upload(view.down));
  site.up = LOCKSTEP_TRY(backend.upload(view.up));
  if (view.inject) site.inject = LOCKSTEP_TRY(backend.upload(*view.inject));
  return site;
}

Result<backend::DeltaWeights> upload_linear(const artifact::GatedDeltaNetView& view, Backend& backend) {
  backend::DeltaWeights w;
  w.qkv = LOCKSTEP_TRY(backend.upload(view.qkv));
  w.z = LOCKSTEP_TRY(backend.upload(view.z));
  w.b = LOCKSTEP_TRY(backend.upload(view.b));
  w.a = LOCKSTEP_TRY(backend.upload(view.a));
  w.out = LOCKSTEP_TRY(backend.upload(view.out));
  w.conv = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.conv)));
  std::vector<float> neg_a(view.a_log.size());
  std::transform(view.a_log.begin(), view.a_log.end(), neg_a.begin(), [](float a) { return -numerics::canon_exp(a); });
  w.neg_a = LOCKSTEP_TRY(backend.upload(std::span<const float>(neg_a)));
  w.dt_bias = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.dt_bias)));
  w.norm = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.norm)));
  return w;
}

Result<backend::AttentionWeights> upload_attention(const artifact::AttentionView& view, Backend& backend) {
  backend::AttentionWeights w;
  w.q = LOCKSTEP_TRY(backend.upload(view.q));
  w.k = LOCKSTEP_TRY(backend.upload(view.k));
  w.v = LOCKSTEP_TRY(backend.upload(view.v));
  w.o = LOCKSTEP_TRY(backend.upload(view.o));
  w.index_qk = LOCKSTEP_TRY(backend.upload(view.index_qk));
  w.q_norm = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.q_norm)));
  w.k_norm = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.k_norm)));
  w.index_q_norm = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.index_q_norm)));
  w.index_k_norm = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.index_k_norm)));
  return w;
}

Result<backend::MoeWeights> upload_moe(const artifact::MoeView& view, Backend& backend) {
  backend::MoeWeights w;
  w.router = LOCKSTEP_TRY(backend.upload(view.router));
  w.gate = LOCKSTEP_TRY(backend.upload(view.gate));
  w.up = LOCKSTEP_TRY(backend.upload(view.up));
  w.down = LOCKSTEP_TRY(backend.upload(view.down));
  w.shared_gate = LOCKSTEP_TRY(backend.upload(view.shared_gate));
  w.shared_up = LOCKSTEP_TRY(backend.upload(view.shared_up));
  w.shared_down = LOCKSTEP_TRY(backend.upload(view.shared_down));
  w.shared_expert_gate = LOCKSTEP_TRY(backend.upload(view.shared_expert_gate));
  return w;
}

Result<backend::PleWeights> upload_ple(const artifact::PleView& view, Backend& backend) {
  backend::PleWeights w;
  w.key = LOCKSTEP_TRY(backend.upload(view.key));
  w.value = LOCKSTEP_TRY(backend.upload(view.value));
  w.norm_key = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.norm_key)));
  w.norm_query = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.norm_query)));
  w.norm_conv = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.norm_conv)));
  w.conv = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.conv)));
  LOCKSTEP_TRY(backend.set_ngram_table(view.table));
  return w;
}

Result<LayerWeights> upload_layer(const artifact::LayerView& view, Backend& backend) {
  LayerWeights layer;
  layer.kind = view.kind;
  if (view.ple) layer.ple = LOCKSTEP_TRY(upload_ple(*view.ple, backend));
  layer.attention_site = LOCKSTEP_TRY(upload_site(view.attention_site, backend));
  layer.mlp_site = LOCKSTEP_TRY(upload_site(view.mlp_site, backend));
  if (view.linear) layer.linear = LOCKSTEP_TRY(upload_linear(*view.linear, backend));
  if (view.attention) layer.attention = LOCKSTEP_TRY(upload_attention(*view.attention, backend));
  layer.moe = LOCKSTEP_TRY(upload_moe(view.moe, backend));
  return layer;
}

Result<DraftHead> upload_draft(const artifact::DraftView& view, Backend& backend) {
  DraftHead draft;
  draft.input.norm_embedding = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.norm_embedding)));
  draft.input.norm_hidden = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.norm_hidden)));
  draft.input.norm_hidden_groups = view.norm_hidden_groups;
  draft.input.fc_embedding = LOCKSTEP_TRY(backend.upload(view.fc_embedding));
  draft.input.fc_hidden = LOCKSTEP_TRY(backend.upload(view.fc_hidden));
  draft.layer = LOCKSTEP_TRY(upload_layer(view.layer, backend));
  draft.mixer = LOCKSTEP_TRY(upload_site(view.mixer, backend));
  return draft;
}

}  // namespace

Result<Weights> upload_weights(const artifact::ModelView& view, backend::Backend& backend, bool draft,
                               const std::function<void(std::uint64_t done)>& uploaded) {
  Weights weights;
  std::uint64_t done = 0;
  weights.embedding = LOCKSTEP_TRY(backend.upload_rows(view.embedding));
  weights.head = LOCKSTEP_TRY(backend.upload(view.head));
  uploaded(++done);
  for (const artifact::LayerView& layer : view.layers) {
    if (layer.ple) weights.ngram = layer.ple->hash;
    weights.layers.push_back(LOCKSTEP_TRY(upload_layer(layer, backend)));
    uploaded(++done);
  }
  weights.mixer = LOCKSTEP_TRY(upload_site(view.mixer, backend));
  if (view.draft && draft) weights.draft = LOCKSTEP_TRY(upload_draft(*view.draft, backend));
  uploaded(++done);
  return weights;
}

std::uint64_t upload_pieces(const artifact::ModelView& view) {
  return view.layers.size() + 2;
}

}  // namespace lockstep::model
