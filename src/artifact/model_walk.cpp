#include "artifact/model_walk.hpp"

#include <array>

namespace lockstep::artifact {
namespace {

class Walker {
 public:
  explicit Walker(const ModelView& view) : view_(view), c_(view.config) {}

  ModelParts walk() {
    const std::string prefix = kPackPrefix;
    add(prefix + "embed_tokens", Family::Embedding, view_.embedding);
    for (std::size_t i = 0; i < view_.layers.size(); ++i) layer(fmt_layer(prefix, i), view_.layers[i]);
    hyper_connection(prefix + "hyper_connection_mixer.", view_.mixer);
    add("language_model.lm_head", Family::Head, view_.head);
    if (view_.draft) draft(*view_.draft);
    return std::move(parts_);
  }

 private:
  static std::string fmt_layer(const std::string& prefix, std::size_t index) {
    return prefix + "layers." + std::to_string(index) + ".";
  }

  void add(std::string module, Family family, const MatrixView& matrix) {
    parts_.matrices.push_back({std::move(module), family, draft_, &matrix});
  }
  void add(std::string tensor, VectorKind kind, std::vector<std::int64_t> shape, const Vector& values) {
    parts_.vectors.push_back({std::move(tensor), kind, draft_, std::move(shape), &values});
  }
  void norm(std::string tensor, const Vector& values) {
    add(std::move(tensor), VectorKind::Norm, {static_cast<std::int64_t>(values.size())}, values);
  }
  void plain(std::string tensor, const Vector& values) {
    add(std::move(tensor), VectorKind::Plain, {static_cast<std::int64_t>(values.size())}, values);
  }

  void layer(const std::string& prefix, const LayerView& layer);
  void hyper_connection(const std::string& prefix, const HyperConnectionView& site);
  void gated_delta_net(const std::string& prefix, const GatedDeltaNetView& mixer);
  void attention(const std::string& prefix, const AttentionView& mixer);
  void moe(const std::string& prefix, const MoeView& moe);
  void ple(const std::string& prefix, const PleView& ple);
  void draft(const DraftView& draft);

  const ModelView& view_;
  const ModelConfig& c_;
  ModelParts parts_;
  bool draft_ = false;
};

void Walker::layer(const std::string& prefix, const LayerView& layer) {
  if (layer.ple) ple(prefix + "ple.", *layer.ple);
  hyper_connection(prefix + "attn_hyper_connection.", layer.attention_site);
  if (layer.linear) gated_delta_net(prefix + "linear_attn.", *layer.linear);
  if (layer.attention) attention(prefix + "self_attn.", *layer.attention);
  hyper_connection(prefix + "mlp_hyper_connection.", layer.mlp_site);
  moe(prefix + "mlp.", layer.moe);
}

void Walker::hyper_connection(const std::string& prefix, const HyperConnectionView& site) {
  norm(prefix + "hc_norm.weight", site.norm);
  add(prefix + "input_mix_weight_down", Family::HyperConnection, site.down);
  add(prefix + "input_mix_weight_up", Family::HyperConnection, site.up);
  if (site.inject) add(prefix + "block_inject_weight", Family::HyperConnection, *site.inject);
}

void Walker::gated_delta_net(const std::string& prefix, const GatedDeltaNetView& mixer) {
  add(prefix + "in_proj_qkv", Family::DeltaNet, mixer.qkv);
  add(prefix + "in_proj_z", Family::DeltaNet, mixer.z);
  add(prefix + "in_proj_b", Family::DeltaNet, mixer.b);
  add(prefix + "in_proj_a", Family::DeltaNet, mixer.a);
  add(prefix + "out_proj", Family::DeltaNet, mixer.out);
  add(prefix + "conv1d.weight", VectorKind::Plain, {c_.conv_channels(), c_.conv_kernel, 1}, mixer.conv);
  add(prefix + "A_log", VectorKind::Full, {c_.linear_value_heads}, mixer.a_log);
  plain(prefix + "dt_bias", mixer.dt_bias);
  plain(prefix + "norm.weight", mixer.norm);
}

void Walker::attention(const std::string& prefix, const AttentionView& mixer) {
  add(prefix + "q_proj", Family::Attention, mixer.q);
  add(prefix + "k_proj", Family::Attention, mixer.k);
  add(prefix + "v_proj", Family::Attention, mixer.v);
  add(prefix + "o_proj", Family::Attention, mixer.o);
  norm(prefix + "q_norm.weight", mixer.q_norm);
  norm(prefix + "k_norm.weight", mixer.k_norm);
  add(prefix + "indexer.index_qk_proj", Family::Indexer, mixer.index_qk);
  norm(prefix + "indexer.q_layernorm.weight", mixer.index_q_norm);
  norm(prefix + "indexer.k_layernorm.weight", mixer.index_k_norm);
}

void Walker::moe(const std::string& prefix, const MoeView& moe) {
  add(prefix + "gate", Family::Router, moe.router);
  add(prefix + "switch_mlp.gate_proj", Family::Experts, moe.gate);
  add(prefix + "switch_mlp.up_proj", Family::Experts, moe.up);
  add(prefix + "switch_mlp.down_proj", Family::Experts, moe.down);
  add(prefix + "shared_expert.gate_proj", Family::SharedExpert, moe.shared_gate);
  add(prefix + "shared_expert.up_proj", Family::SharedExpert, moe.shared_up);
  add(prefix + "shared_expert.down_proj", Family::SharedExpert, moe.shared_down);
  add(prefix + "shared_expert_gate", Family::SharedExpert, moe.shared_expert_gate);
}

void Walker::ple(const std::string& prefix, const PleView& ple) {
  add(prefix + "key_proj", Family::NgramProjection, ple.key);
  add(prefix + "value_proj", Family::NgramProjection, ple.value);
  norm(prefix + "norm_key.weight", ple.norm_key);
  norm(prefix + "norm_query.weight", ple.norm_query);
  norm(prefix + "norm_conv.weight", ple.norm_conv);
  add(prefix + "conv_weight", VectorKind::Plain, {c_.wide_size(), c_.ple_conv_kernel, 1}, ple.conv);
}

void Walker::draft(const DraftView& draft) {
  draft_ = true;
  add("mtp.pre_fc_norm_embedding.weight", VectorKind::InputNorm, {c_.hidden_size}, draft.norm_embedding);
  add("mtp.pre_fc_norm_hidden.weight", VectorKind::InputNorm, {c_.wide_size()}, draft.norm_hidden);
  add("mtp.fc_embedding", Family::DraftInput, draft.fc_embedding);
  add("mtp.fc_hidden", Family::DraftInput, draft.fc_hidden);
  layer(fmt_layer("mtp.", 0), draft.layer);
  hyper_connection("mtp.hyper_connection_mixer.", draft.mixer);
}

}  // namespace

const char* family_name(Family family) {
  constexpr std::array<const char*, kFamilies> kNames{
      "embedding", "head",    "gated delta net", "attention",          "indexer",     "hyper-connections",
      "router",    "experts", "shared expert",   "n-gram projections", "draft inputs"};
  return kNames.at(static_cast<std::size_t>(family));
}

ModelParts walk_model(const ModelView& view) {
  return Walker(view).walk();
}

std::uint64_t matrix_bytes(const MatrixView& matrix) {
  const auto rows = static_cast<std::uint64_t>(matrix.count) * static_cast<std::uint64_t>(matrix.rows);
  if (matrix.quantised) return rows * (matrix.code_row_bytes() + 2 * matrix.scale_row_bytes());
  return rows * static_cast<std::uint64_t>(matrix.cols) * dtype_size(matrix.dtype);
}

std::uint64_t table_bytes(const NgramTableView& table) {
  std::uint64_t bytes = table.table ? matrix_bytes(*table.table) : 0;
  for (const MatrixView& shard : table.shards) bytes += matrix_bytes(shard);
  return bytes;
}

}  // namespace lockstep::artifact
