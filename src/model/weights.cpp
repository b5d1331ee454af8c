#include "model/weights.hpp"

#include <algorithm>

#include "artifact/finite.hpp"
#include "numerics/canon_math.hpp"

namespace lockstep::model {
namespace {

using backend::Backend;

/// Weights are looked at once, when they go to the backend.
Result<backend::MatrixPtr> upload(const artifact::MatrixView& view, Backend& backend) {
  LOCKSTEP_TRY(artifact::check_finite(view));
  return backend.upload(view);
}

Result<backend::HyperWeights> upload_site(const artifact::HyperConnectionView& view, Backend& backend) {
  backend::HyperWeights site;
  site.norm = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.norm)));
  site.down = LOCKSTEP_TRY(upload(view.down, backend));
  site.up = LOCKSTEP_TRY(upload(view.up, backend));
  if (view.inject) site.inject = LOCKSTEP_TRY(upload(*view.inject, backend));
  return site;
}

Result<backend::DeltaWeights> upload_linear(const artifact::GatedDeltaNetView& view, Backend& backend) {
  backend::DeltaWeights w;
  w.qkv = LOCKSTEP_TRY(upload(view.qkv, backend));
  w.z = LOCKSTEP_TRY(upload(view.z, backend));
  w.b = LOCKSTEP_TRY(upload(view.b, backend));
  w.a = LOCKSTEP_TRY(upload(view.a, backend));
  w.out = LOCKSTEP_TRY(upload(view.out, backend));
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
  w.q = LOCKSTEP_TRY(upload(view.q, backend));
  w.k = LOCKSTEP_TRY(upload(view.k, backend));
  w.v = LOCKSTEP_TRY(upload(view.v, backend));
  w.o = LOCKSTEP_TRY(upload(view.o, backend));
  w.index_qk = LOCKSTEP_TRY(upload(view.index_qk, backend));
  w.q_norm = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.q_norm)));
  w.k_norm = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.k_norm)));
  w.index_q_norm = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.index_q_norm)));
  w.index_k_norm = LOCKSTEP_TRY(backend.upload(std::span<const float>(view.index_k_norm)));
  return w;
}

Result<backend::MoeWeights> upload_moe(const artifact::MoeView& view, Backend& backend) {
  backend::MoeWeights w;
  w.router = LOCKSTEP_TRY(upload(view.router, backend));
  w.gate = LOCKSTEP_TRY(upload(view.gate, backend));
  w.up = LOCKSTEP_TRY(upload(view.up, backend));
  w.down = LOCKSTEP_TRY(upload(view.down, backend));
  w.shared_gate = LOCKSTEP_TRY(upload(view.shared_gate, backend));
  w.shared_up = LOCKSTEP_TRY(upload(view.shared_up, backend));
  w.shared_down = LOCKSTEP_TRY(upload(view.shared_down, backend));
  w.shared_expert_gate = LOCKSTEP_TRY(upload(view.shared_expert_gate, backend));
  return w;
}

Result<backend::PleWeights> upload_ple(const artifact::PleView& view, Backend& backend) {
  backend::PleWeights w;
  w.key = LOCKSTEP_TRY(upload(view.key, backend));
  w.value = LOCKSTEP_TRY(upload(view.value, backend));
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
  draft.input.fc_embedding = LOCKSTEP_TRY(upload(view.fc_embedding, backend));
  draft.input.fc_hidden = LOCKSTEP_TRY(upload(view.fc_hidden, backend));
  draft.layer = LOCKSTEP_TRY(upload_layer(view.layer, backend));
  draft.mixer = LOCKSTEP_TRY(upload_site(view.mixer, backend));
  return draft;
}

std::uint64_t bytes(const artifact::MatrixView& view) {
  const std::size_t row = view.quantised ? view.code_row_bytes() + 2 * view.scale_row_bytes()
                                         : static_cast<std::size_t>(view.cols) * artifact::dtype_size(view.dtype);
  return static_cast<std::uint64_t>(view.count) * static_cast<std::uint64_t>(view.rows) * row;
}

std::uint64_t bytes(const artifact::HyperConnectionView& view) {
  return bytes(view.down) + bytes(view.up) + (view.inject ? bytes(*view.inject) : 0);
}

std::uint64_t bytes(const artifact::LayerView& view) {
  std::uint64_t total = bytes(view.attention_site) + bytes(view.mlp_site);
  const auto add = [&](std::initializer_list<const artifact::MatrixView*> matrices) {
    for (const artifact::MatrixView* matrix : matrices) total += bytes(*matrix);
  };
  if (view.ple) add({&view.ple->key, &view.ple->value});
  if (view.linear) add({&view.linear->qkv, &view.linear->z, &view.linear->b, &view.linear->a, &view.linear->out});
  if (view.attention) {
    const artifact::AttentionView& a = *view.attention;
    add({&a.q, &a.k, &a.v, &a.o, &a.index_qk});
  }
  const artifact::MoeView& m = view.moe;
  add({&m.router, &m.gate, &m.up, &m.down, &m.shared_gate, &m.shared_up, &m.shared_down, &m.shared_expert_gate});
  return total;
}

std::uint64_t bytes(const artifact::DraftView& view) {
  return bytes(view.fc_embedding) + bytes(view.fc_hidden) + bytes(view.layer) + bytes(view.mixer);
}

}  // namespace

Result<Weights> upload_weights(const artifact::ModelView& view, backend::Backend& backend, bool draft,
                               const std::function<Status(std::uint64_t done)>& uploaded) {
  Weights weights;
  std::uint64_t done = 0;
  LOCKSTEP_TRY(artifact::check_finite(view.embedding));
  weights.embedding = LOCKSTEP_TRY(backend.upload_rows(view.embedding));
  weights.head = LOCKSTEP_TRY(upload(view.head, backend));
  LOCKSTEP_TRY(uploaded(done += bytes(view.embedding) + bytes(view.head)));
  for (const artifact::LayerView& layer : view.layers) {
    if (layer.ple) weights.ngram = layer.ple->hash;
    weights.layers.push_back(LOCKSTEP_TRY(upload_layer(layer, backend)));
    LOCKSTEP_TRY(uploaded(done += bytes(layer)));
  }
  weights.mixer = LOCKSTEP_TRY(upload_site(view.mixer, backend));
  if (view.draft && draft) weights.draft = LOCKSTEP_TRY(upload_draft(*view.draft, backend));
  LOCKSTEP_TRY(uploaded(upload_bytes(view, draft)));
  return weights;
}

std::uint64_t upload_bytes(const artifact::ModelView& view, bool draft) {
  std::uint64_t total = bytes(view.embedding) + bytes(view.head) + bytes(view.mixer);
  for (const artifact::LayerView& layer : view.layers) total += bytes(layer);
  if (view.draft && draft) total += bytes(*view.draft);
  return total;
}

}  // namespace lockstep::model
