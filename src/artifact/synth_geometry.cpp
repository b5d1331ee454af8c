#include "artifact/synth_geometry.hpp"

#include <filesystem>

#include "base/file.hpp"

namespace lockstep::artifact {
namespace {

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{16} << 20;
constexpr int kInterval = 4;  // every fourth layer is an attention layer

OrderedJson layer_types(int layers) {
  OrderedJson types = OrderedJson::array();
  for (int i = 1; i <= layers; ++i) types.push_back(i % kInterval == 0 ? "full_attention" : "linear_attention");
  return types;
}

OrderedJson root(OrderedJson text) {
  return {{"architectures", {"Qwen4ExpForConditionalGeneration"}},
          {"model_type", "qwen4_exp"},
          {"language_model_only", false},
          {"tie_word_embeddings", false},
          {"text_config", std::move(text)}};
}

/// Fields with the same value in every geometry.
void add_common(OrderedJson& text, int layers, double rotary_share) {
  text["num_hidden_layers"] = layers;
  text["layer_types"] = layer_types(layers);
  text["full_attention_interval"] = kInterval;
  text["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 10'000'000.0}, {"partial_rotary_factor", rotary_share}};
  text["linear_conv_kernel_dim"] = 4;
  text["hc_count"] = 4;
  text["indexer_n_heads"] = 4;
  text["indexer_kv_heads"] = 1;
  text["indexer_compress_ratio"] = 4;
  text["ple_layer_ids"] = {2};
  text["ple_conv_kernel_size"] = 4;
  text["ngram_size"] = 3;
  text["heads_per_ngram"] = 8;
  text["make_ngram_vocab_size_divisible_by"] = 128;
  text["split_ngram_parts"] = 128;
  text["rms_norm_eps"] = 1e-6;
  text["tie_word_embeddings"] = false;
  text["hidden_act"] = "silu";
  text["output_gate_type"] = "sigmoid";
  text["norm_topk_prob"] = true;
  text["attention_bias"] = false;
  text["mamba_ssm_dtype"] = "float32";
  text["model_type"] = "qwen4_exp_text";
  text["mtp_num_hidden_layers"] = 1;
  text["mtp_use_dedicated_embeddings"] = false;
}

OrderedJson toy() {
  OrderedJson text{{"vocab_size", 6144},
                   {"hidden_size", 128},
                   {"num_attention_heads", 4},
                   {"num_key_value_heads", 2},
                   {"head_dim", 64},
                   {"linear_num_key_heads", 2},
                   {"linear_num_value_heads", 4},
                   {"linear_key_head_dim", 32},
                   {"linear_value_head_dim", 32},
                   {"hc_lowrank", 32},
                   {"num_experts", 16},
                   {"num_experts_per_tok", 4},
                   {"moe_intermediate_size", 64},
                   {"shared_expert_intermediate_size", 64},
                   {"indexer_head_dim", 32},
                   {"indexer_budget", 256},
                   {"ple_embed_dim", 512},
                   {"ngram_vocab_size_base", 2003},
                   {"eos_token_id", 6100},
                   {"bos_token_id", 6100},
                   {"max_position_embeddings", 32768}};
  add_common(text, 4, 0.25);
  return root(std::move(text));
}

OrderedJson published(int layers, int experts, std::int64_t ngram_base) {
  OrderedJson text{{"vocab_size", 248'320},
                   {"hidden_size", 2560},
                   {"num_attention_heads", 24},
                   {"num_key_value_heads", 2},
                   {"head_dim", 256},
                   {"linear_num_key_heads", 16},
                   {"linear_num_value_heads", 48},
                   {"linear_key_head_dim", 128},
                   {"linear_value_head_dim", 128},
                   {"hc_lowrank", 320},
                   {"num_experts", experts},
                   {"num_experts_per_tok", 10},
                   {"moe_intermediate_size", 640},
                   {"shared_expert_intermediate_size", 640},
                   {"indexer_head_dim", 128},
                   {"indexer_budget", 2048},
                   {"ple_embed_dim", 2560},
                   {"ngram_vocab_size_base", ngram_base},
                   {"eos_token_id", 248'044},
                   {"bos_token_id", 248'044},
                   {"max_position_embeddings", 262'144}};
  add_common(text, layers, 0.25);
  return root(std::move(text));
}

}  // namespace

const std::vector<std::string>& synth_geometry_names() {
  static const std::vector<std::string> names{"toy", "mid", "flash-next"};
  return names;
}

Result<OrderedJson> synth_geometry(const std::string& name) {
  if (name == "toy") return toy();
  if (name == "mid") return published(12, 64, 200'000);
  if (name == "flash-next") return published(48, 512, 20'000'000);
  LOCKSTEP_TRY(file_present(name));  // no link that leads nowhere
  std::error_code error;
  if (!std::filesystem::is_regular_file(name, error)) {
    return fail(ErrorKind::Usage, "'{}' is neither toy, mid or flash-next nor a config.json file", name);
  }
  const std::string text = LOCKSTEP_TRY(read_file(name, kMaxConfigBytes));
  JsonLimits limits;
  limits.max_bytes = kMaxConfigBytes;
  limits.max_depth = 32;
  limits.unique_keys = true;
  OrderedJson config = LOCKSTEP_TRY(parse_ordered_json(text, name, limits));
  if (!config.is_object()) return fail(ErrorKind::Invalid, "{}: not a JSON object", name);
  return config;
}

}  // namespace lockstep::artifact
