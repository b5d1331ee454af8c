#include "artifact/synth_view.hpp"

#include <cmath>

#include "artifact/model_walk.hpp"
#include "artifact/ngram_hash.hpp"
#include "artifact/synth_values.hpp"
#include "numerics/bits.hpp"

namespace lockstep::artifact {
namespace {

class Builder {
 public:
  Builder(const ModelConfig& config, std::uint64_t seed, const MatrixMaker& maker)
      : c_(config), seed_(seed), maker_(maker) {}

  Result<ModelView> build() {
    const std::string prefix = kPackPrefix;
    ModelView view;
    view.config = c_;
    view.embedding = LOCKSTEP_TRY(matrix(prefix + "embed_tokens", c_.vocab_size, c_.hidden_size));
    view.layers.resize(c_.layers.size());
    for (std::size_t i = 0; i < c_.layers.size(); ++i) {
      const std::string layer_prefix = fmt::format("{}layers.{}.", prefix, i);
      for (const std::int64_t ple_layer : c_.ple_layers) {
        if (static_cast<std::size_t>(ple_layer) == i) view.layers[i].ple = LOCKSTEP_TRY(ple(layer_prefix + "ple."));
      }
      LOCKSTEP_TRY(layer(layer_prefix, c_.layers[i], view.layers[i]));
    }
    view.mixer = LOCKSTEP_TRY(hyper_connection(prefix + "hyper_connection_mixer.", false));
    view.head = LOCKSTEP_TRY(matrix("language_model.lm_head", c_.vocab_size, c_.hidden_size));
    if (c_.draft_layers > 0) view.draft = LOCKSTEP_TRY(draft());
    return view;
  }

 private:
  Result<MatrixView> matrix(const std::string& module, std::int64_t rows, std::int64_t cols) {
    return maker_(module, 1, rows, cols);
  }

  /// Multipliers 1 + k/128: exact in bf16, and exact as w = k/128.
  Vector norm(const std::string& tensor, std::int64_t size) {
    Vector values = uniform(tensor, size, -12.49F, 12.49F);
    for (float& value : values) value = 1.0F + std::nearbyint(value) / 128.0F;
    return values;
  }

  /// Uniform in [low, high), then rounded to bf16 as a pack stores it.
  Vector uniform(const std::string& tensor, std::int64_t size, float low, float high) {
    std::vector<std::uint16_t> words(static_cast<std::size_t>(size));
    synth_bytes(synth_key(seed_, tensor), 0, std::as_writable_bytes(std::span(words)));
    Vector values;
    for (const std::uint16_t word : words) {
      const float value = low + (high - low) * ((static_cast<float>(word) + 0.5F) / 65536.0F);
      values.push_back(numerics::bf16_to_float(numerics::float_to_bf16(value)));
    }
    return values;
  }

  /// Filters of unit gain for inputs that do not depend on each other.
  Vector filter(const std::string& tensor, std::int64_t channels, std::int64_t kernel) {
    const float edge = std::sqrt(3.0F / static_cast<float>(kernel));
    return uniform(tensor, channels * kernel, -edge, edge);
  }

  Status layer(const std::string& prefix, LayerKind kind, LayerView& out);
  Result<HyperConnectionView> hyper_connection(const std::string& prefix, bool inject);
  Result<GatedDeltaNetView> gated_delta_net(const std::string& prefix);
  Result<AttentionView> attention(const std::string& prefix);
  Result<MoeView> moe(const std::string& prefix);
  Result<PleView> ple(const std::string& prefix);
  Result<DraftView> draft();

  const ModelConfig& c_;
  std::uint64_t seed_;
  const MatrixMaker& maker_;
};

Status Builder::layer(const std::string& prefix, LayerKind kind, LayerView& out) {
  out.kind = kind;
  out.attention_site = LOCKSTEP_TRY(hyper_connection(prefix + "attn_hyper_connection.", true));
  if (kind == LayerKind::Linear) {
    out.linear = LOCKSTEP_TRY(gated_delta_net(prefix + "linear_attn."));
  } else {
    out.attention = LOCKSTEP_TRY(attention(prefix + "self_attn."));
  }
  out.mlp_site = LOCKSTEP_TRY(hyper_connection(prefix + "mlp_hyper_connection.", true));
  out.moe = LOCKSTEP_TRY(moe(prefix + "mlp."));
  return {};
}

Result<HyperConnectionView> Builder::hyper_connection(const std::string& prefix, bool inject) {
  const std::int64_t wide = c_.wide_size();
  HyperConnectionView out;
  out.norm = norm(prefix + "hc_norm.weight", wide);
  out.down = LOCKSTEP_TRY(matrix(prefix + "input_mix_weight_down", c_.hc_lowrank, wide));
  out.up = LOCKSTEP_TRY(matrix(prefix + "input_mix_weight_up", wide, c_.hc_lowrank));
  if (inject) out.inject = LOCKSTEP_TRY(matrix(prefix + "block_inject_weight", c_.streams, wide));
  return out;
}

Result<GatedDeltaNetView> Builder::gated_delta_net(const std::string& prefix) {
  const std::int64_t hidden = c_.hidden_size, heads = c_.linear_value_heads;
  GatedDeltaNetView out;
  out.qkv = LOCKSTEP_TRY(matrix(prefix + "in_proj_qkv", c_.conv_channels(), hidden));
  out.z = LOCKSTEP_TRY(matrix(prefix + "in_proj_z", c_.value_size(), hidden));
  out.b = LOCKSTEP_TRY(matrix(prefix + "in_proj_b", heads, hidden));
  out.a = LOCKSTEP_TRY(matrix(prefix + "in_proj_a", heads, hidden));
  out.out = LOCKSTEP_TRY(matrix(prefix + "out_proj", hidden, c_.value_size()));
  out.conv = filter(prefix + "conv1d.weight", c_.conv_channels(), c_.conv_kernel);
  // Decay rates exp(A_log) of 1/2 to 8 and steps exp(dt_bias) of 1/1000 to 1/10.
  out.a_log = uniform(prefix + "A_log", heads, -0.7F, 2.1F);
  out.dt_bias = uniform(prefix + "dt_bias", heads, -6.9F, -2.3F);
  out.norm = norm(prefix + "norm.weight", c_.linear_value_dim);
  return out;
}

Result<AttentionView> Builder::attention(const std::string& prefix) {
  const std::int64_t hidden = c_.hidden_size, queries = c_.attention_heads * c_.head_dim;
  const std::string indexer = prefix + "indexer.";
  AttentionView out;
  out.q = LOCKSTEP_TRY(matrix(prefix + "q_proj", 2 * queries, hidden));
  out.k = LOCKSTEP_TRY(matrix(prefix + "k_proj", c_.kv_heads * c_.head_dim, hidden));
  out.v = LOCKSTEP_TRY(matrix(prefix + "v_proj", c_.kv_heads * c_.head_dim, hidden));
  out.o = LOCKSTEP_TRY(matrix(prefix + "o_proj", hidden, queries));
  out.index_qk = LOCKSTEP_TRY(matrix(indexer + "index_qk_proj", (c_.indexer_heads + 1) * c_.indexer_dim, hidden));
  out.q_norm = norm(prefix + "q_norm.weight", c_.head_dim);
  out.k_norm = norm(prefix + "k_norm.weight", c_.head_dim);
  out.index_q_norm = norm(indexer + "q_layernorm.weight", c_.indexer_dim);
  out.index_k_norm = norm(indexer + "k_layernorm.weight", c_.indexer_dim);
  return out;
}

Result<MoeView> Builder::moe(const std::string& prefix) {
  const std::int64_t hidden = c_.hidden_size, shared = c_.shared_expert_dim;
  const std::string stacks = prefix + "switch_mlp.";
  MoeView out;
  out.router = LOCKSTEP_TRY(matrix(prefix + "gate", c_.experts, hidden));
  out.gate = LOCKSTEP_TRY(maker_(stacks + "gate_proj", c_.experts, c_.expert_dim, hidden));
  out.up = LOCKSTEP_TRY(maker_(stacks + "up_proj", c_.experts, c_.expert_dim, hidden));
  out.down = LOCKSTEP_TRY(maker_(stacks + "down_proj", c_.experts, hidden, c_.expert_dim));
  out.shared_gate = LOCKSTEP_TRY(matrix(prefix + "shared_expert.gate_proj", shared, hidden));
  out.shared_up = LOCKSTEP_TRY(matrix(prefix + "shared_expert.up_proj", shared, hidden));
  out.shared_down = LOCKSTEP_TRY(matrix(prefix + "shared_expert.down_proj", hidden, shared));
  out.shared_expert_gate = LOCKSTEP_TRY(matrix(prefix + "shared_expert_gate", 1, hidden));
  return out;
}

Result<PleView> Builder::ple(const std::string& prefix) {
  const std::int64_t wide = c_.wide_size();
  PleView out;
  out.key = LOCKSTEP_TRY(matrix(prefix + "key_proj", wide, c_.ple_dim));
  out.value = LOCKSTEP_TRY(matrix(prefix + "value_proj", c_.hidden_size, c_.ple_dim));
  out.norm_key = norm(prefix + "norm_key.weight", wide);
  out.norm_query = norm(prefix + "norm_query.weight", wide);
  out.norm_conv = norm(prefix + "norm_conv.weight", wide);
  out.conv = filter(prefix + "conv_weight", wide, c_.ple_conv_kernel);
  out.hash = LOCKSTEP_TRY(make_ngram_hash(c_));
  out.table.rows =
      static_cast<std::int64_t>(ngram_padded_rows(out.hash, static_cast<std::uint64_t>(c_.ngram_vocab_multiple)));
  out.table.dim = c_.ngram_row_dim();
  out.table.table = LOCKSTEP_TRY(matrix("ngram", out.table.rows, out.table.dim));
  return out;
}

Result<DraftView> Builder::draft() {
  const std::int64_t hidden = c_.hidden_size;
  DraftView out;
  out.norm_embedding = norm("mtp.pre_fc_norm_embedding.weight", hidden);
  out.norm_hidden = norm("mtp.pre_fc_norm_hidden.weight", c_.wide_size());
  out.fc_embedding = LOCKSTEP_TRY(matrix("mtp.fc_embedding", hidden, hidden));
  out.fc_hidden = LOCKSTEP_TRY(matrix("mtp.fc_hidden", hidden, hidden));
  LOCKSTEP_TRY(layer("mtp.layers.0.", LayerKind::Attention, out.layer));
  out.mixer = LOCKSTEP_TRY(hyper_connection("mtp.hyper_connection_mixer.", false));
  return out;
}

}  // namespace

Result<MatrixView> matrix_shape(const std::string& module, std::int64_t count, std::int64_t rows, std::int64_t cols) {
  MatrixView view;
  view.name = module;
  view.count = count;
  view.rows = rows;
  view.cols = cols;
  view.matrix_stride = static_cast<std::size_t>(rows * cols) * dtype_size(view.dtype);
  return view;
}

Result<ModelView> synth_view(const ModelConfig& config, std::uint64_t seed, const MatrixMaker& maker) {
  return Builder(config, seed, maker).build();
}

}  // namespace lockstep::artifact
