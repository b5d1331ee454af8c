#include "artifact/config.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "artifact/config_fields.hpp"

namespace lockstep::artifact {
namespace {

// Caps far above any real model that keep every product of a few dimensions inside 63 bits.
constexpr std::int64_t kMaxVocab = std::int64_t{1} << 24, kMaxWidth = std::int64_t{1} << 20, kMaxLayers = 1024,
                       kMaxHeads = 4096, kMaxHeadDim = 8192, kMaxExperts = 65536, kMaxKernel = 64,
                       kMaxPositions = std::int64_t{1} << 30, kMaxTableBase = std::int64_t{1} << 32;

// Every published model has an epsilon of 1e-6 or 1e-5 and a theta of 1e4 to 1e7. An epsilon that vanishes in f32
// divides a row of zeros by zero, and one of the size of the values themselves flattens them; a theta below 1 has no
// slow rotation.
constexpr double kMinEps = 1e-12, kMaxEps = 0.1, kMinTheta = 1, kMaxTheta = 1e12;

constexpr std::array<std::string_view, 4> kModelTypes{"qwen4_exp", "qwen4_exp_text", "qwen3_8_flash_next",
                                                      "qwen3_8_flash_next_text"};
constexpr std::array<std::string_view, 4> kArchitectures{"Qwen4ExpForConditionalGeneration", "Qwen4ExpForCausalLM",
                                                         "Qwen3_8FlashNextForConditionalGeneration",
                                                         "Qwen3_8FlashNextForCausalLM"};
constexpr std::array<std::string_view, 4> kAttentionNames{"full_attention", "qwen_sparse_attention",
                                                          "deepseek_sparse_attention", "hybrid_indexed"};

/// Fields of text_config that training, generation defaults or the exporting library use, and inference does not.
constexpr std::array<std::string_view, 36> kMeaningless{"attention_dropout",
                                                        "initializer_range",
                                                        "router_aux_loss_coef",
                                                        "output_router_logits",
                                                        "use_cache",
                                                        "transformers_version",
                                                        "dtype",
                                                        "torch_dtype",
                                                        "_name_or_path",
                                                        "_attn_implementation",
                                                        "intermediate_size",
                                                        "ngram_sidecar",
                                                        "return_dict",
                                                        "output_hidden_states",
                                                        "output_attentions",
                                                        "torchscript",
                                                        "use_bfloat16",
                                                        "chunk_size_feed_forward",
                                                        "is_encoder_decoder",
                                                        "id2label",
                                                        "label2id",
                                                        "problem_type",
                                                        "pruned_heads",
                                                        "is_decoder",
                                                        "add_cross_attention",
                                                        "cross_attention_hidden_size",
                                                        "tie_encoder_decoder",
                                                        "finetuning_task",
                                                        "task_specific_params",
                                                        "tokenizer_class",
                                                        "prefix",
                                                        "sep_token_id",
                                                        "decoder_start_token_id",
                                                        "hidden_dropout",
                                                        "vision_start_token_id",
                                                        "vision_end_token_id"};

/// Fields of the root object that other parts read, or that describe the vision tower and the origin of the files.
constexpr std::array<std::string_view, 12> kRootOnly{
    "architectures",        "image_token_id",    "video_token_id", "language_model_only",
    "text_config",          "vision_config",     "quantization",   "quantization_config",
    "mlx_lm_extra_tensors", "mtplx_source_repo", "mtplx_recipe",   "audio_token_id"};

Status read_layers(Fields& text, ModelConfig& config) {
  const std::int64_t count = LOCKSTEP_TRY(text.dimension("num_hidden_layers", kMaxLayers));
  const std::int64_t interval = LOCKSTEP_TRY(text.integer_or("full_attention_interval", 1, kMaxLayers, 0));
  const Json* types = text.find("layer_types");
  if (types == nullptr) {
    if (interval == 0) return fail(ErrorKind::NotFound, "{}: field 'layer_types' is missing", text.what());
    for (std::int64_t i = 0; i < count; ++i) {
      config.layers.push_back((i + 1) % interval == 0 ? LayerKind::Attention : LayerKind::Linear);
    }
    return {};
  }
  if (!types->is_array() || types->size() != static_cast<std::size_t>(count)) {
    return fail(ErrorKind::Invalid, "{}: layer_types does not list the {} layers of num_hidden_layers", text.what(),
                count);
  }
  for (const Json& type : *types) {
    const std::string name = type.is_string() ? type.get<std::string>() : brief(type);
    const bool attention = std::find(kAttentionNames.begin(), kAttentionNames.end(), name) != kAttentionNames.end();
    if (!attention && name != "linear_attention") {
      return fail(ErrorKind::Unsupported, "{}: layer type '{}' is not supported", text.what(), name);
    }
    const auto layer = static_cast<std::int64_t>(config.layers.size());
    if (interval != 0 && attention != ((layer + 1) % interval == 0)) {
      return fail(ErrorKind::Invalid, "{}: layer_types[{}] is {}, which contradicts full_attention_interval {}",
                  text.what(), layer, name, interval);
    }
    config.layers.push_back(attention ? LayerKind::Attention : LayerKind::Linear);
  }
  return {};
}

/// The rope object itself: only the plain rotary embedding is known; every other field or type is refused.
Status read_rope_object(Fields& rope, std::optional<double>& theta, std::optional<double>& factor,
                        std::vector<std::int64_t>& sections) {
  for (const std::string_view key : {"rope_type", "type"}) {
    const Json* type = rope.find(key);
    if (type == nullptr || *type == "default") continue;
    return fail(ErrorKind::Unsupported,
                "{}: rope type {} is not supported yet (only \"default\"); YaRN and other "
                "scalings would change every position",
                rope.what(), brief(*type));
  }
  theta = LOCKSTEP_TRY(rope.number("rope_theta", kMinTheta, kMaxTheta));
  factor = LOCKSTEP_TRY(rope.number("partial_rotary_factor", 0, 1));
  LOCKSTEP_TRY(rope.expect("mrope_interleaved", true));
  if (const Json* list = rope.find("mrope_section")) {
    if (!list->is_array() || list->size() != 3) {
      return fail(ErrorKind::Invalid, "{}: mrope_section is not a list of 3 numbers", rope.what());
    }
    for (const Json& entry : *list) {
      if (!entry.is_number_unsigned() || entry.get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxHeadDim)) {
        return fail(ErrorKind::Invalid, "{}: mrope_section {} is unusable", rope.what(), brief(*list));
      }
      sections.push_back(entry.get<std::int64_t>());
    }
  }
  return rope.refuse_unknown();
}

/// One value from two places where it may stand; when it stands in both they must agree.
Result<double> agreed(std::optional<double> a, std::optional<double> b, std::string_view key, const Fields& text) {
  if (a && b && *a != *b) return fail(ErrorKind::Invalid, "{}: {} is both {} and {}", text.what(), key, *a, *b);
  if (!a && !b) return fail(ErrorKind::NotFound, "{}: field '{}' is missing", text.what(), key);
  return a ? *a : *b;
}

Status read_rope(Fields& text, ModelConfig& config) {
  std::optional<double> theta, factor;
  std::vector<std::int64_t> sections;
  bool found = false;
  for (const std::string_view key : {"rope_parameters", "rope_scaling"}) {
    const Json* object = text.find(key);
    if (object == nullptr) continue;
    if (found) return fail(ErrorKind::Invalid, "{}: has both rope_parameters and rope_scaling", text.what());
    found = true;
    Fields rope = LOCKSTEP_TRY(Fields::of(*object, fmt::format("{}.{}", text.what(), key)));
    LOCKSTEP_TRY(read_rope_object(rope, theta, factor, sections));
  }
  const auto text_theta = LOCKSTEP_TRY(text.number("rope_theta", kMinTheta, kMaxTheta));
  const auto text_factor = LOCKSTEP_TRY(text.number("partial_rotary_factor", 0, 1));
  config.rope_theta = LOCKSTEP_TRY(agreed(theta, text_theta, "rope_theta", text));
  const double share = LOCKSTEP_TRY(agreed(factor, text_factor, "partial_rotary_factor", text));
  const double rotary = share * static_cast<double>(config.head_dim);
  config.rotary_dim = std::llround(rotary);
  if (config.rotary_dim <= 0 || config.rotary_dim % 2 != 0 || static_cast<double>(config.rotary_dim) != rotary) {
    return fail(ErrorKind::Invalid, "{}: partial_rotary_factor {} of head_dim {} is not an even number of dimensions",
                text.what(), share, config.head_dim);
  }
  if (config.rotary_dim > config.indexer_dim) {
    return fail(ErrorKind::Invalid, "{}: {} rotary dimensions do not fit indexer_head_dim {}", text.what(),
                config.rotary_dim, config.indexer_dim);
  }
  if (!sections.empty() && sections[0] + sections[1] + sections[2] != config.rotary_dim / 2) {
    return fail(ErrorKind::Invalid, "{}: mrope_section does not sum to {} pairs", text.what(), config.rotary_dim / 2);
  }
  return {};
}

Status divides(const Fields& text, std::string_view divisor_name, std::int64_t divisor, std::string_view name,
               std::int64_t value) {
  if (value % divisor == 0) return {};
  return fail(ErrorKind::Invalid, "{}: {} {} is not a multiple of {} {}", text.what(), name, value, divisor_name,
              divisor);
}

Status read_attention(Fields& text, ModelConfig& config) {
  config.attention_heads = LOCKSTEP_TRY(text.dimension("num_attention_heads", kMaxHeads));
  config.kv_heads = LOCKSTEP_TRY(text.dimension("num_key_value_heads", kMaxHeads));
  config.head_dim = LOCKSTEP_TRY(text.dimension("head_dim", kMaxHeadDim));
  config.indexer_heads = LOCKSTEP_TRY(text.dimension("indexer_n_heads", kMaxHeads));
  config.indexer_dim = LOCKSTEP_TRY(text.dimension("indexer_head_dim", kMaxHeadDim));
  config.indexer_budget = LOCKSTEP_TRY(text.dimension("indexer_budget", kMaxPositions));
  config.indexer_ratio = LOCKSTEP_TRY(text.dimension("indexer_compress_ratio", kMaxPositions));
  LOCKSTEP_TRY(text.expect("indexer_kv_heads", 1));
  LOCKSTEP_TRY(text.expect("attention_bias", false));
  LOCKSTEP_TRY(text.expect("attn_output_gate", true));
  LOCKSTEP_TRY(text.expect("use_sliding_window", false));
  LOCKSTEP_TRY(divides(text, "num_key_value_heads", config.kv_heads, "num_attention_heads", config.attention_heads));
  LOCKSTEP_TRY(divides(text, "indexer_compress_ratio", config.indexer_ratio, "indexer_budget", config.indexer_budget));
  return read_rope(text, config);
}

Status read_linear(Fields& text, ModelConfig& config) {
  config.linear_key_heads = LOCKSTEP_TRY(text.dimension("linear_num_key_heads", kMaxHeads));
  config.linear_value_heads = LOCKSTEP_TRY(text.dimension("linear_num_value_heads", kMaxHeads));
  config.linear_key_dim = LOCKSTEP_TRY(text.dimension("linear_key_head_dim", kMaxHeadDim));
  config.linear_value_dim = LOCKSTEP_TRY(text.dimension("linear_value_head_dim", kMaxHeadDim));
  config.conv_kernel = LOCKSTEP_TRY(text.dimension("linear_conv_kernel_dim", kMaxKernel));
  LOCKSTEP_TRY(text.expect("output_gate_type", "sigmoid"));
  LOCKSTEP_TRY(text.expect("mamba_ssm_dtype", "float32"));
  return divides(text, "linear_num_key_heads", config.linear_key_heads, "linear_num_value_heads",
                 config.linear_value_heads);
}

Status read_moe(Fields& text, ModelConfig& config) {
  config.experts = LOCKSTEP_TRY(text.dimension("num_experts", kMaxExperts));
  config.experts_per_token = LOCKSTEP_TRY(text.dimension("num_experts_per_tok", config.experts));
  config.expert_dim = LOCKSTEP_TRY(text.dimension("moe_intermediate_size", kMaxWidth));
  config.shared_expert_dim = LOCKSTEP_TRY(text.dimension("shared_expert_intermediate_size", kMaxWidth));
  LOCKSTEP_TRY(text.expect("hidden_act", "silu"));
  LOCKSTEP_TRY(text.expect("norm_topk_prob", true));
  LOCKSTEP_TRY(text.expect("decoder_sparse_step", 1));
  return text.expect("mlp_only_layers", Json::array());
}

/// The first entry when it is a list; -1 when absent or null.
Result<std::int64_t> token_id(Fields& text, std::string_view key, std::int64_t vocab) {
  const Json* value = text.find(key);
  if (value != nullptr && value->is_array()) value = value->empty() ? nullptr : &value->front();
  if (value == nullptr) return -1;
  if (!value->is_number_unsigned() || value->get<std::uint64_t>() >= static_cast<std::uint64_t>(vocab)) {
    return fail(ErrorKind::Invalid, "{}: {} {} is not a token of the vocabulary", text.what(), key, brief(*value));
  }
  return value->get<std::int64_t>();
}

Result<std::vector<std::int64_t>> read_ple_layers(Fields& text, const ModelConfig& config) {
  std::vector<std::int64_t> layers;
  const Json* list = text.find("ple_layer_ids");
  if (list == nullptr) return layers;
  if (!list->is_array()) return fail(ErrorKind::Invalid, "{}: ple_layer_ids is not a list", text.what());
  if (list->size() > 1) {
    return fail(ErrorKind::Unsupported, "{}: {} n-gram layers; at most one is supported", text.what(), list->size());
  }
  for (const Json& entry : *list) {
    if (!entry.is_number_unsigned() || entry.get<std::uint64_t>() - 1 >= config.layers.size()) {
      return fail(ErrorKind::Invalid, "{}: ple_layer_ids names layer {} of {}", text.what(), brief(entry),
                  config.layers.size());
    }
    layers.push_back(entry.get<std::int64_t>() - 1);
    if (config.layers[static_cast<std::size_t>(layers.back())] != LayerKind::Linear) {
      return fail(ErrorKind::Unsupported, "{}: the n-gram layer {} is not a linear_attention layer", text.what(),
                  brief(entry));
    }
  }
  return layers;
}

Status read_ple(Fields& text, ModelConfig& config) {
  config.ngram_eos = LOCKSTEP_TRY(token_id(text, "eos_token_id", config.vocab_size));
  config.bos_token = LOCKSTEP_TRY(token_id(text, "bos_token_id", config.vocab_size));
  config.pad_token = LOCKSTEP_TRY(token_id(text, "pad_token_id", config.vocab_size));
  config.ple_layers = LOCKSTEP_TRY(read_ple_layers(text, config));
  constexpr std::array<std::string_view, 3> kDense{"bfloat16", "float16", "float32"};
  LOCKSTEP_TRY(text.expect_one_of("ple_embedding_dtype", kDense));
  constexpr std::array<std::string_view, 9> kFields{"ple_embed_dim",
                                                    "ple_conv_kernel_size",
                                                    "ngram_size",
                                                    "heads_per_ngram",
                                                    "ngram_vocab_size_base",
                                                    "make_ngram_vocab_size_divisible_by",
                                                    "split_ngram_parts",
                                                    "seed",
                                                    "ple_layer_ids"};
  if (config.ple_layers.empty()) {
    text.ignore(kFields);
    return {};
  }
  if (config.ngram_eos < 0) return fail(ErrorKind::NotFound, "{}: field 'eos_token_id' is missing", text.what());
  config.ple_dim = LOCKSTEP_TRY(text.dimension("ple_embed_dim", kMaxWidth));
  config.ple_conv_kernel = LOCKSTEP_TRY(text.dimension("ple_conv_kernel_size", kMaxKernel));
  config.ngram_size = LOCKSTEP_TRY(text.integer("ngram_size", 2, 8));
  config.heads_per_ngram = LOCKSTEP_TRY(text.dimension("heads_per_ngram", 64));
  config.ngram_vocab_base = LOCKSTEP_TRY(text.integer("ngram_vocab_size_base", 2, kMaxTableBase));
  config.ngram_vocab_multiple = LOCKSTEP_TRY(text.dimension("make_ngram_vocab_size_divisible_by", kMaxTableBase));
  config.ngram_shards = LOCKSTEP_TRY(text.dimension("split_ngram_parts", 65536));
  config.ngram_seed = LOCKSTEP_TRY(text.integer_or("seed", 0, INT64_MAX, config.ngram_seed));
  return divides(text, "number of n-gram heads", config.ngram_heads(), "ple_embed_dim", config.ple_dim);
}

Status read_mtp(Fields& text, ModelConfig& config) {
  const Json* object = text.find("mtp");
  const Json empty = Json::object();
  Fields mtp = LOCKSTEP_TRY(Fields::of(object == nullptr ? empty : *object, text.what() + ".mtp"));
  const std::int64_t inner = LOCKSTEP_TRY(mtp.integer_or("num_hidden_layers", 0, kMaxLayers, 0));
  config.draft_layers = LOCKSTEP_TRY(text.integer_or("mtp_num_hidden_layers", 0, kMaxLayers, inner));
  if (config.draft_layers > 1) {
    return fail(ErrorKind::Unsupported, "{}: {} draft layers; at most one is supported", text.what(),
                config.draft_layers);
  }
  LOCKSTEP_TRY(text.expect("mtp_use_dedicated_embeddings", false));
  LOCKSTEP_TRY(mtp.expect("num_hidden_layers", config.draft_layers));
  LOCKSTEP_TRY(mtp.expect("hybrid", true));
  LOCKSTEP_TRY(mtp.expect("rope_theta", config.rope_theta));
  const Json* from_layer = mtp.find("mtp_use_hidden_state_from_layer");
  if (from_layer != nullptr) {
    return fail(ErrorKind::Unsupported,
                "{}: mtp_use_hidden_state_from_layer is {}; only null (the last layer) is supported", mtp.what(),
                brief(*from_layer));
  }
  if (const Json* types = mtp.find("layer_types")) {
    const bool fits = types->is_array() && types->size() == static_cast<std::size_t>(config.draft_layers) &&
                      std::all_of(types->begin(), types->end(), [](const Json& type) {
                        return type.is_string() && std::find(kAttentionNames.begin(), kAttentionNames.end(),
                                                             type.get<std::string>()) != kAttentionNames.end();
                      });
    if (!fits) {
      return fail(ErrorKind::Unsupported, "{}: layer_types {} is not one attention layer", mtp.what(), brief(*types));
    }
  }
  return mtp.refuse_unknown();
}

Result<ModelConfig> read_text(Fields& text) {
  ModelConfig config;
  config.vocab_size = LOCKSTEP_TRY(text.dimension("vocab_size", kMaxVocab));
  config.hidden_size = LOCKSTEP_TRY(text.dimension("hidden_size", kMaxWidth));
  config.streams = LOCKSTEP_TRY(text.dimension("hc_count", 64));
  config.hc_lowrank = LOCKSTEP_TRY(text.dimension("hc_lowrank", kMaxWidth));
  config.max_positions = LOCKSTEP_TRY(text.dimension("max_position_embeddings", kMaxPositions));
  config.rms_norm_eps = LOCKSTEP_TRY(text.number("rms_norm_eps", kMinEps, kMaxEps)).value_or(config.rms_norm_eps);
  LOCKSTEP_TRY(text.expect_one_of("model_type", kModelTypes));
  LOCKSTEP_TRY(text.expect("tie_word_embeddings", false));
  LOCKSTEP_TRY(read_layers(text, config));
  LOCKSTEP_TRY(read_attention(text, config));
  LOCKSTEP_TRY(read_linear(text, config));
  LOCKSTEP_TRY(read_moe(text, config));
  LOCKSTEP_TRY(read_ple(text, config));
  LOCKSTEP_TRY(read_mtp(text, config));
  return config;
}

/// Fields that inference does not use but whose kind is known: another kind means a damaged file.
Status check_unused_kinds(Fields& fields) {
  for (const std::string_view key : {"dtype", "torch_dtype"}) {
    const Json* found = fields.find(key);
    if (found == nullptr || found->is_string()) continue;
    return fail(ErrorKind::Invalid, "{}: {} is {}, not the name of a type", fields.what(), key, brief(*found));
  }
  const Json* only = fields.find("language_model_only");
  if (only == nullptr || only->is_boolean()) return {};
  return fail(ErrorKind::Invalid, "{}: language_model_only is {}, neither true nor false", fields.what(), brief(*only));
}

/// A field of the text model that stands at the root as well must say the same there.
Status check_repeated(const Fields& text, const Fields& root) {
  constexpr std::array<std::string_view, 4> kOwnMeaning{"model_type", "eos_token_id", "bos_token_id", "pad_token_id"};
  for (const std::string& key : root.unknown()) {
    const Json& value = root.object().at(key);
    const auto own = std::find(kOwnMeaning.begin(), kOwnMeaning.end(), key);
    if (own != kOwnMeaning.end() || value.is_null() || !text.knows(key)) continue;
    const auto inner = text.object().find(key);
    if (inner == text.object().end() || *inner != value) {
      return fail(ErrorKind::Invalid, "{}: {} is {} here and {} in text_config", root.what(), key, brief(value),
                  inner == text.object().end() ? "absent" : brief(*inner));
    }
  }
  return {};
}

}  // namespace

Result<ModelConfig> parse_config(const Json& json, const std::string& file) {
  Fields root = LOCKSTEP_TRY(Fields::of(json, file));
  if (root.find("model_type") == nullptr) return fail(ErrorKind::NotFound, "{}: field 'model_type' is missing", file);
  LOCKSTEP_TRY(root.expect_one_of("model_type", kModelTypes));
  LOCKSTEP_TRY(root.expect("tie_word_embeddings", false));
  if (const Json* names = root.find("architectures")) {
    const bool known = names->is_array() && names->size() == 1 && names->front().is_string() &&
                       std::find(kArchitectures.begin(), kArchitectures.end(), names->front().get<std::string>()) !=
                           kArchitectures.end();
    if (!known) return fail(ErrorKind::Unsupported, "{}: architecture {} is not supported", file, brief(*names));
  }
  const Json* inner = root.find("text_config");
  if (inner == nullptr) {
    Fields text = root;
    ModelConfig config = LOCKSTEP_TRY(read_text(text));
    config.file = file;
    LOCKSTEP_TRY(check_unused_kinds(text));
    text.ignore(kRootOnly);
    text.ignore(kMeaningless);
    LOCKSTEP_TRY(text.refuse_unknown());
    return config;
  }
  Fields text = LOCKSTEP_TRY(Fields::of(*inner, file + ": text_config"));
  ModelConfig config = LOCKSTEP_TRY(read_text(text));
  config.file = file;
  LOCKSTEP_TRY(check_repeated(text, root));
  text.ignore(kMeaningless);
  Fields shared = text;  // language_model_only is no field of text_config
  LOCKSTEP_TRY(check_unused_kinds(shared));
  LOCKSTEP_TRY(check_unused_kinds(root));
  LOCKSTEP_TRY(text.refuse_unknown());
  root.ignore(kRootOnly);
  root.ignore(kMeaningless);
  for (std::string& key : root.unknown()) {
    if (!text.knows(key)) config.ignored_fields.push_back(std::move(key));
  }
  return config;
}

}  // namespace lockstep::artifact
