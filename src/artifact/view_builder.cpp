#include "artifact/view_builder.hpp"

#include "artifact/ngram_view.hpp"

namespace lockstep::artifact {
namespace {

class Builder {
 public:
  Builder(const BuildInput& input, BuildOutput& output)
      : in_(input), out_(output), reader_(input.reader), c_(output.view.config) {}

  Status build() {
    ModelView& view = out_.view;
    view.embedding = LOCKSTEP_TRY(reader_.matrix(in_.prefix + "embed_tokens", c_.vocab_size, c_.hidden_size));
    view.head = LOCKSTEP_TRY(reader_.matrix(in_.head, c_.vocab_size, c_.hidden_size));
    view.layers.resize(c_.layers.size());
    for (std::size_t i = 0; i < c_.layers.size(); ++i) LOCKSTEP_TRY(trunk_layer(i));
    view.mixer = LOCKSTEP_TRY(hyper_connection(in_.prefix + "hyper_connection_mixer.", trunk(), false));
    return draft();
  }

 private:
  [[nodiscard]] Centre trunk() const {
    return in_.runtime.trunk_norms == NormLayout::ZeroCentred ? Centre::OnePlus : Centre::AsStored;
  }
  [[nodiscard]] Centre draft_body() const {
    return in_.runtime.draft_norms == NormLayout::ZeroCentred ? Centre::OnePlus : Centre::AsStored;
  }
  [[nodiscard]] Centre draft_inputs() const {
    return in_.runtime.draft_norms == NormLayout::PlusOne ? Centre::AsStored : Centre::OnePlus;
  }

  Status trunk_layer(std::size_t index);
  Status layer(const std::string& prefix, LayerKind kind, Centre norms, LayerView& out);
  Status draft();
  Result<HyperConnectionView> hyper_connection(const std::string& prefix, Centre norms, bool inject);
  Result<GatedDeltaNetView> gated_delta_net(const std::string& prefix);
  Result<AttentionView> attention(const std::string& prefix, Centre norms);
  Result<PleView> ple(const std::string& prefix);
  Status moe(const std::string& prefix, MoeView& out);
  Status fused_experts(const std::string& prefix, MoeView& out);

  const BuildInput& in_;
  BuildOutput& out_;
  ModuleReader& reader_;
  const ModelConfig& c_;
};

Status Builder::trunk_layer(std::size_t index) {
  const std::string prefix = fmt::format("{}layers.{}.", in_.prefix, index);
  LayerView& out = out_.view.layers[index];
  for (const std::int64_t ple_layer : c_.ple_layers) {
    if (static_cast<std::size_t>(ple_layer) == index) out.ple = LOCKSTEP_TRY(ple(prefix + "ple."));
  }
  return layer(prefix, c_.layers[index], trunk(), out);
}

Status Builder::layer(const std::string& prefix, LayerKind kind, Centre norms, LayerView& out) {
  out.kind = kind;
  out.attention_site = LOCKSTEP_TRY(hyper_connection(prefix + "attn_hyper_connection.", norms, true));
  if (kind == LayerKind::Linear) {
    out.linear = LOCKSTEP_TRY(gated_delta_net(prefix + "linear_attn."));
  } else {
    out.attention = LOCKSTEP_TRY(attention(prefix + "self_attn.", norms));
  }
  out.mlp_site = LOCKSTEP_TRY(hyper_connection(prefix + "mlp_hyper_connection.", norms, true));
  return moe(prefix + "mlp.", out.moe);
}

Result<HyperConnectionView> Builder::hyper_connection(const std::string& prefix, Centre norms, bool inject) {
  const std::int64_t wide = c_.wide_size();
  HyperConnectionView out;
  out.norm = LOCKSTEP_TRY(reader_.vector(prefix + "hc_norm.weight", {{wide}}, norms));
  out.down = LOCKSTEP_TRY(reader_.matrix(prefix + "input_mix_weight_down", c_.hc_lowrank, wide));
  out.up = LOCKSTEP_TRY(reader_.matrix(prefix + "input_mix_weight_up", wide, c_.hc_lowrank));
  if (inject) out.inject = LOCKSTEP_TRY(reader_.matrix(prefix + "block_inject_weight", c_.streams, wide));
  return out;
}

Result<GatedDeltaNetView> Builder::gated_delta_net(const std::string& prefix) {
  const std::int64_t channels = c_.conv_channels(), kernel = c_.conv_kernel, heads = c_.linear_value_heads;
  GatedDeltaNetView out;
  out.qkv = LOCKSTEP_TRY(reader_.matrix(prefix + "in_proj_qkv", channels, c_.hidden_size));
  out.z = LOCKSTEP_TRY(reader_.matrix(prefix + "in_proj_z", c_.value_size(), c_.hidden_size));
  out.b = LOCKSTEP_TRY(reader_.matrix(prefix + "in_proj_b", heads, c_.hidden_size));
  out.a = LOCKSTEP_TRY(reader_.matrix(prefix + "in_proj_a", heads, c_.hidden_size));
  out.out = LOCKSTEP_TRY(reader_.matrix(prefix + "out_proj", c_.hidden_size, c_.value_size()));
  // [C, 1, K] in the official layout and [C, K, 1] in a pack: the same bytes.
  out.conv = LOCKSTEP_TRY(
      reader_.vector(prefix + "conv1d.weight", {{channels, 1, kernel}, {channels, kernel, 1}}, Centre::AsStored));
  out.a_log = LOCKSTEP_TRY(reader_.vector(prefix + "A_log", {{heads}}, Centre::AsStored));
  out.dt_bias = LOCKSTEP_TRY(reader_.vector(prefix + "dt_bias", {{heads}}, Centre::AsStored));
  out.norm = LOCKSTEP_TRY(reader_.vector(prefix + "norm.weight", {{c_.linear_value_dim}}, Centre::AsStored));
  return out;
}

Result<AttentionView> Builder::attention(const std::string& prefix, Centre norms) {
  const std::int64_t hidden = c_.hidden_size, queries = c_.attention_heads * c_.head_dim;
  AttentionView out;
  out.q = LOCKSTEP_TRY(reader_.matrix(prefix + "q_proj", 2 * queries, hidden));
  out.k = LOCKSTEP_TRY(reader_.matrix(prefix + "k_proj", c_.kv_heads * c_.head_dim, hidden));
  out.v = LOCKSTEP_TRY(reader_.matrix(prefix + "v_proj", c_.kv_heads * c_.head_dim, hidden));
  out.o = LOCKSTEP_TRY(reader_.matrix(prefix + "o_proj", hidden, queries));
  out.q_norm = LOCKSTEP_TRY(reader_.vector(prefix + "q_norm.weight", {{c_.head_dim}}, norms));
  out.k_norm = LOCKSTEP_TRY(reader_.vector(prefix + "k_norm.weight", {{c_.head_dim}}, norms));
  const std::string indexer = prefix + "indexer.";
  out.index_qk =
      LOCKSTEP_TRY(reader_.matrix(indexer + "index_qk_proj", (c_.indexer_heads + 1) * c_.indexer_dim, hidden));
  out.index_q_norm = LOCKSTEP_TRY(reader_.vector(indexer + "q_layernorm.weight", {{c_.indexer_dim}}, norms));
  out.index_k_norm = LOCKSTEP_TRY(reader_.vector(indexer + "k_layernorm.weight", {{c_.indexer_dim}}, norms));
  return out;
}

Status Builder::moe(const std::string& prefix, MoeView& out) {
  const std::int64_t hidden = c_.hidden_size, shared = c_.shared_expert_dim;
  out.router = LOCKSTEP_TRY(reader_.matrix(prefix + "gate", c_.experts, hidden));
  out.shared_gate = LOCKSTEP_TRY(reader_.matrix(prefix + "shared_expert.gate_proj", shared, hidden));
  out.shared_up = LOCKSTEP_TRY(reader_.matrix(prefix + "shared_expert.up_proj", shared, hidden));
  out.shared_down = LOCKSTEP_TRY(reader_.matrix(prefix + "shared_expert.down_proj", hidden, shared));
  out.shared_expert_gate = LOCKSTEP_TRY(reader_.matrix(prefix + "shared_expert_gate", 1, hidden));
  const std::string stacks = prefix + "switch_mlp.";
  const bool stacked = reader_.tensors().contains(stacks + "gate_proj.weight");
  if (in_.layout == Layout::Official && !stacked) return fused_experts(prefix + "experts.", out);
  out.gate = LOCKSTEP_TRY(reader_.stack(stacks + "gate_proj", c_.experts, c_.expert_dim, hidden));
  out.up = LOCKSTEP_TRY(reader_.stack(stacks + "up_proj", c_.experts, c_.expert_dim, hidden));
  out.down = LOCKSTEP_TRY(reader_.stack(stacks + "down_proj", c_.experts, hidden, c_.expert_dim));
  return {};
}

/// gate_up_proj [E, 2 * inner, hidden] with down_proj [E, hidden, inner], or both transposed. Where the shapes of one
/// allow both readings the other decides; where both do, the first reading is taken.
Status Builder::fused_experts(const std::string& prefix, MoeView& out) {
  const std::int64_t hidden = c_.hidden_size, inner = c_.expert_dim, experts = c_.experts;
  const auto shape_of = [&](const std::string& name) -> Result<Shape> {
    return LOCKSTEP_TRY(reader_.tensors().take(name)).info->shape;
  };
  const std::string gate_up_name = prefix + "gate_up_proj", down_name = prefix + "down_proj";
  const Shape gate_up_shape = LOCKSTEP_TRY(shape_of(gate_up_name)), down_shape = LOCKSTEP_TRY(shape_of(down_name));
  const Shape gate_up_first{experts, 2 * inner, hidden}, gate_up_second{experts, hidden, 2 * inner};
  const Shape down_first{experts, hidden, inner}, down_second{experts, inner, hidden};
  const bool first = gate_up_shape == gate_up_first && down_shape == down_first;
  const bool transposed = !first && gate_up_shape == gate_up_second && down_shape == down_second;
  const MatrixView gate_up = LOCKSTEP_TRY(reader_.dense(gate_up_name, transposed ? gate_up_second : gate_up_first));
  out.down = LOCKSTEP_TRY(reader_.dense(down_name, transposed ? down_second : down_first));
  out.gate = gate_up;
  out.gate.rows = inner;
  out.gate.cols = hidden;
  out.up = out.gate;
  out.up.data += gate_up.matrix_stride / 2;
  out.gate.name += "[gate]";
  out.up.name += "[up]";
  if (!transposed) return {};
  out.down.rows = hidden;
  out.down.cols = inner;
  out_.transposed.push_back({gate_up.data, gate_up.dtype, experts, hidden, 2 * inner, {&out.gate, &out.up}});
  out_.transposed.push_back({out.down.data, out.down.dtype, experts, inner, hidden, {&out.down}});
  return {};
}

Result<PleView> Builder::ple(const std::string& prefix) {
  const std::int64_t wide = c_.wide_size(), kernel = c_.ple_conv_kernel;
  PleView out;
  out.key = LOCKSTEP_TRY(reader_.matrix(prefix + "key_proj", wide, c_.ple_dim));
  out.value = LOCKSTEP_TRY(reader_.matrix(prefix + "value_proj", c_.hidden_size, c_.ple_dim));
  out.norm_key = LOCKSTEP_TRY(reader_.vector(prefix + "norm_key.weight", {{wide}}, trunk()));
  out.norm_query = LOCKSTEP_TRY(reader_.vector(prefix + "norm_query.weight", {{wide}}, trunk()));
  out.norm_conv = LOCKSTEP_TRY(reader_.vector(prefix + "norm_conv.weight", {{wide}}, trunk()));
  const bool packed = reader_.tensors().contains(prefix + "conv_weight");
  out.conv = LOCKSTEP_TRY(reader_.vector(prefix + (packed ? "conv_weight" : "conv1d.weight"),
                                         {{wide, 1, kernel}, {wide, kernel, 1}}, Centre::AsStored));
  LOCKSTEP_TRY(read_ngram(reader_, c_, in_.side, prefix + "ple_embedding.", out, out_.warnings));
  return out;
}

Status Builder::draft() {
  if (c_.draft_layers == 0) return {};
  if (!reader_.tensors().any_with_prefix("mtp.")) {
    out_.warnings.push_back(
        fmt::format("{}: announces a draft layer but no tensor mtp.* exists: drafting is not available", c_.file));
    out_.view.config.draft_layers = 0;
    return {};
  }
  DraftView& view = out_.view.draft.emplace();
  const std::int64_t hidden = c_.hidden_size;
  view.norm_embedding = LOCKSTEP_TRY(reader_.vector("mtp.pre_fc_norm_embedding.weight", {{hidden}}, draft_inputs()));
  view.norm_hidden = LOCKSTEP_TRY(reader_.vector("mtp.pre_fc_norm_hidden.weight", {{c_.wide_size()}}, draft_inputs()));
  view.norm_hidden_groups = in_.runtime.hidden_norm_per_stream ? c_.streams : 1;
  view.fc_embedding = LOCKSTEP_TRY(reader_.matrix("mtp.fc_embedding", hidden, hidden));
  view.fc_hidden = LOCKSTEP_TRY(reader_.matrix("mtp.fc_hidden", hidden, hidden));
  LOCKSTEP_TRY(layer("mtp.layers.0.", LayerKind::Attention, draft_body(), view.layer));
  view.mixer = LOCKSTEP_TRY(hyper_connection("mtp.hyper_connection_mixer.", draft_body(), false));
  return {};
}

}  // namespace

Status build_view(const BuildInput& input, BuildOutput& output) {
  return Builder(input, output).build();
}

}  // namespace lockstep::artifact
