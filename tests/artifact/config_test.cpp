#include "artifact/config.hpp"

#include <gtest/gtest.h>

#include <random>

#include "base/file.hpp"

namespace lockstep::artifact {
namespace {

/// config.json of the published model, as far as the text part reads it.
Json published() {
  Json text = *parse_json(R"({
    "model_type": "qwen4_exp_text", "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 248044,
    "eos_token_id": 248044, "pad_token_id": null, "dtype": "bfloat16", "full_attention_interval": 4, "hc_count": 4,
    "hc_lowrank": 320, "head_dim": 256, "heads_per_ngram": 8, "hidden_act": "silu", "hidden_size": 2560,
    "indexer_budget": 2048, "indexer_compress_ratio": 4, "indexer_head_dim": 128, "indexer_kv_heads": 1,
    "indexer_n_heads": 4, "initializer_range": 0.02, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_value_head_dim": 128, "num_hidden_layers": 48,
    "num_key_value_heads": 2, "num_attention_heads": 24, "num_experts": 512, "num_experts_per_tok": 10,
    "moe_intermediate_size": 640, "shared_expert_intermediate_size": 640, "router_aux_loss_coef": 0.001,
    "output_router_logits": false, "output_gate_type": "sigmoid", "partial_rotary_factor": 0.25, "ngram_size": 3,
    "ngram_vocab_size_base": 20000000, "make_ngram_vocab_size_divisible_by": 128, "split_ngram_parts": 128,
    "ple_layer_ids": [2], "ple_embed_dim": 2560, "ple_conv_kernel_size": 4, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": false, "use_cache": true, "vocab_size": 248320, "max_position_embeddings": 262144,
    "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": false,
    "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                        "rope_theta": 10000000, "rope_type": "default"},
    "mtp": {"hybrid": true, "layer_types": ["full_attention"], "mtp_use_hidden_state_from_layer": null,
            "num_hidden_layers": 1, "rope_theta": 10000000}})",
                          "text");
  for (int i = 0; i < 48; ++i) text["layer_types"].push_back(i % 4 == 3 ? "full_attention" : "linear_attention");
  return {{"architectures", {"Qwen4ExpForConditionalGeneration"}},
          {"model_type", "qwen4_exp"},
          {"image_token_id", 248056},
          {"video_token_id", 248057},
          {"vision_start_token_id", 248053},
          {"vision_end_token_id", 248054},
          {"language_model_only", false},
          {"tie_word_embeddings", false},
          {"transformers_version", "5.16.0"},
          {"text_config", text},
          {"vision_config", {{"depth", 27}, {"hidden_size", 1152}}}};
}

TEST(Config, PublishedModel) {
  const auto config = parse_config(published());
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->layers.size(), 48U);
  EXPECT_EQ(config->layers[3], LayerKind::Attention);
  EXPECT_EQ(config->layers[4], LayerKind::Linear);
  EXPECT_EQ(config->rotary_dim, 64);
  EXPECT_EQ(config->rope_theta, 1e7);
  EXPECT_EQ(config->ple_layers, std::vector<std::int64_t>{1});
  EXPECT_EQ(config->ngram_eos, 248044);
  EXPECT_EQ(config->pad_token, -1);
  EXPECT_EQ(config->ngram_seed, 1234);
  EXPECT_EQ(config->draft_layers, 1);
  EXPECT_EQ(config->wide_size(), 10240);
  EXPECT_EQ(config->conv_channels(), 10240);
  EXPECT_EQ(config->value_size(), 6144);
  EXPECT_EQ(config->ngram_heads(), 16);
  EXPECT_EQ(config->ngram_row_dim(), 160);
  EXPECT_TRUE(config->ignored_fields.empty());
}

TEST(Config, GoldenModels) {
  for (const char* name : {"toy-hf", "toy-pack"}) {
    const auto text = read_file(std::string(LOCKSTEP_TEST_DATA "/") + name + "/config.json", 1 << 20);
    const auto config = parse_config(*parse_json(*text, name));
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->rotary_dim, 16);
    EXPECT_EQ(config->ngram_eos, 2);
  }
}

struct Change {
  const char* patch;    // JSON merge patch of the whole file
  const char* message;  // part of the error; nullptr: accepted
};

std::string patched(const Change& change) {
  Json json = published();
  json.merge_patch(*parse_json(change.patch, "patch"));
  const auto config = parse_config(json);
  return config ? "accepted" : config.error().message;
}

TEST(Config, WhatWouldChangeTheComputationIsRefused) {
  const std::vector<Change> changes{
      {R"({"model_type":"qwen3_next"})", "model_type"},
      {R"({"model_type":null})", "model_type"},
      {R"({"architectures":["LlamaForCausalLM"]})", "architecture"},
      {R"({"architectures":[]})", "architecture"},
      {R"({"tie_word_embeddings":true})", "tie_word_embeddings"},
      {R"({"text_config":[]})", "not a JSON object"},
      {R"({"text_config":{"model_type":"qwen3_5_text"}})", "model_type"},
      {R"({"text_config":{"tie_word_embeddings":true}})", "tie_word_embeddings"},
      {R"({"text_config":{"attention_bias":true}})", "attention_bias"},
      {R"({"text_config":{"hidden_act":"gelu"}})", "hidden_act"},
      {R"({"text_config":{"output_gate_type":"silu"}})", "output_gate_type"},
      {R"({"text_config":{"norm_topk_prob":false}})", "norm_topk_prob"},
      {R"({"text_config":{"mamba_ssm_dtype":"bfloat16"}})", "mamba_ssm_dtype"},
      {R"({"text_config":{"indexer_kv_heads":2}})", "indexer_kv_heads"},
      {R"({"text_config":{"mlp_only_layers":[1]}})", "mlp_only_layers"},
      {R"({"text_config":{"decoder_sparse_step":2}})", "decoder_sparse_step"},
      {R"({"text_config":{"use_sliding_window":true}})", "use_sliding_window"},
      {R"({"text_config":{"ple_embedding_dtype":"float8_e4m3fn"}})", "ple_embedding_dtype"},
      {R"({"text_config":{"mtp_use_dedicated_embeddings":true}})", "mtp_use_dedicated_embeddings"},
      {R"({"text_config":{"mtp_num_hidden_layers":2}})", "at most one"},
      {R"({"text_config":{"mtp":{"num_hidden_layers":0}}})", "num_hidden_layers"},
      {R"({"text_config":{"mtp":{"hybrid":false}}})", "hybrid"},
      {R"({"text_config":{"mtp":{"rope_theta":10000}}})", "rope_theta"},
      {R"({"text_config":{"mtp":{"layer_types":["linear_attention"]}}})", "layer_types"},
      {R"({"text_config":{"mtp":{"mtp_use_hidden_state_from_layer":3}}})", "mtp_use_hidden_state_from_layer"},
      {R"({"text_config":{"mtp":{"surprise":1}}})", "surprise"},
      {R"({"text_config":{"mtp":3}})", "not a JSON object"},
      {R"({"text_config":{"rope_parameters":{"rope_type":"yarn","factor":4.0}}})", "not supported yet"},
      {R"({"text_config":{"rope_parameters":{"rope_type":"linear"}}})", "not supported yet"},
      {R"({"text_config":{"rope_parameters":{"type":"dynamic"}}})", "not supported yet"},
      {R"({"text_config":{"rope_parameters":{"factor":4.0}}})", "factor"},
      {R"({"text_config":{"rope_parameters":{"mrope_interleaved":false}}})", "mrope_interleaved"},
      {R"({"text_config":{"rope_parameters":{"mrope_section":[11,11,11]}}})", "does not sum to 32"},
      {R"({"text_config":{"rope_parameters":{"mrope_section":[32]}}})", "list of 3"},
      {R"({"text_config":{"rope_parameters":{"mrope_section":[-1,11,22]}}})", "unusable"},
      {R"({"text_config":{"rope_parameters":{"rope_theta":-1}}})", "rope_theta"},
      {R"({"text_config":{"rope_parameters":{"rope_theta":"x"}}})", "rope_theta"},
      {R"({"text_config":{"rope_parameters":{"rope_theta":null}}})", "rope_theta"},
      {R"({"text_config":{"partial_rotary_factor":0.5}})", "partial_rotary_factor"},
      {R"({"text_config":{"rope_theta":5}})", "rope_theta"},
      {R"({"text_config":{"rope_scaling":{"rope_type":"yarn"}}})", "both rope_parameters and rope_scaling"},
      {R"({"rope_scaling":{"rope_type":"yarn"}})", "rope_scaling"},
      {R"({"hidden_size":1})", "hidden_size"},
      {R"({"text_config":{"surprise":1}})", "surprise"},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.patch);
    const std::string message = patched(change);
    EXPECT_NE(message.find(change.message), std::string::npos) << message;
  }
}

TEST(Config, ImpossibleGeometryIsRefused) {
  const std::vector<Change> changes{
      {R"({"text_config":{"vocab_size":0}})", "vocab_size"},
      {R"({"text_config":{"vocab_size":-1}})", "vocab_size"},
      {R"({"text_config":{"vocab_size":1e3}})", "vocab_size"},
      {R"({"text_config":{"vocab_size":99999999999999999999}})", "vocab_size"},
      {R"({"text_config":{"vocab_size":"248320"}})", "vocab_size"},
      {R"({"text_config":{"vocab_size":null}})", "vocab_size"},
      {R"({"text_config":{"hidden_size":9223372036854775807}})", "hidden_size"},
      {R"({"text_config":{"num_hidden_layers":47}})", "layer_types"},
      {R"({"text_config":{"full_attention_interval":3}})", "full_attention_interval"},
      {R"({"text_config":{"layer_types":["linear_attention"]}})", "layer_types"},
      {R"({"text_config":{"layer_types":null,"full_attention_interval":null}})", "layer_types"},
      {R"({"text_config":{"num_key_value_heads":5}})", "not a multiple"},
      {R"({"text_config":{"linear_num_key_heads":7}})", "not a multiple"},
      {R"({"text_config":{"indexer_compress_ratio":3}})", "not a multiple"},
      {R"({"text_config":{"ple_embed_dim":2561}})", "not a multiple"},
      {R"({"text_config":{"num_experts_per_tok":513}})", "num_experts_per_tok"},
      {R"({"text_config":{"head_dim":250}})", "even number"},
      {R"({"text_config":{"indexer_head_dim":32}})", "do not fit"},
      {R"({"text_config":{"rms_norm_eps":0}})", "rms_norm_eps"},
      {R"({"text_config":{"ple_layer_ids":[0]}})", "names layer 0"},
      {R"({"text_config":{"ple_layer_ids":[49]}})", "names layer 49"},
      {R"({"text_config":{"ple_layer_ids":[4]}})", "not a linear_attention layer"},
      {R"({"text_config":{"ple_layer_ids":[2,3]}})", "at most one"},
      {R"({"text_config":{"ple_layer_ids":2}})", "not a list"},
      {R"({"text_config":{"eos_token_id":248320}})", "eos_token_id"},
      {R"({"text_config":{"eos_token_id":null}})", "eos_token_id"},
      {R"({"text_config":{"eos_token_id":[]}})", "eos_token_id"},
      {R"({"text_config":{"ngram_size":1}})", "ngram_size"},
      {R"({"text_config":{"seed":-1}})", "seed"},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.patch);
    const std::string message = patched(change);
    EXPECT_NE(message.find(change.message), std::string::npos) << message;
  }
}

TEST(Config, SpellingsThatMeanTheSame) {
  for (
      const char* patch : {
          R"({"model_type":"qwen3_8_flash_next","architectures":["Qwen3_8FlashNextForConditionalGeneration"],
               "text_config":{"model_type":"qwen3_8_flash_next_text"}})",
          R"({"text_config":{"eos_token_id":[248044,248046]}})",
          R"({"text_config":{"full_attention_interval":null}})",
          R"({"text_config":{"layer_types":null}})",
          R"({"text_config":{"norm_topk_prob":true,"attn_output_gate":true,"mlp_only_layers":[],"decoder_sparse_step":1}})",
          R"({"text_config":{"partial_rotary_factor":null}})",
          R"({"text_config":{"rope_theta":10000000}})",
          R"({"text_config":{"mtp":null}})",
          R"({"text_config":{"rope_scaling":null,"torch_dtype":"bfloat16","transformers_version":"5.17"}})",
          R"({"hidden_size":2560,"eos_token_id":[248046],"rope_scaling":null})",
      }) {
    EXPECT_EQ(patched({patch, nullptr}), "accepted") << patch;
  }
  Json json = published();
  for (const char* alias : {"qwen_sparse_attention", "deepseek_sparse_attention", "hybrid_indexed"}) {
    json["text_config"]["layer_types"][3] = alias;
    json["text_config"]["mtp"]["layer_types"][0] = alias;
    const auto config = parse_config(json);
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->layers[3], LayerKind::Attention);
  }
}

TEST(Config, AbsurdNumbersAreRefused) {
  for (const char* eps : {"0", "-1e-6", "1e-300", "1e300", "0.5"}) {
    const std::string patch = fmt::format(R"({{"text_config":{{"rms_norm_eps":{}}}}})", eps);
    EXPECT_NE(patched({patch.c_str(), nullptr}).find("rms_norm_eps is"), std::string::npos) << eps;
  }
  for (const char* theta : {"0", "-1e4", "0.5", "1e300"}) {
    const std::string patch = fmt::format(
        R"({{"text_config":{{"rope_theta":{0},"rope_parameters":{{"rope_theta":{0}}},"mtp":{{"rope_theta":{0}}}}}}})",
        theta);
    EXPECT_NE(patched({patch.c_str(), nullptr}).find("rope_theta is"), std::string::npos) << theta;
  }
  EXPECT_NE(
      patched({R"({"text_config":{"rope_parameters":{"partial_rotary_factor":1.5}}})", nullptr}).find("not within"),
      std::string::npos);
  EXPECT_EQ(patched({R"({"text_config":{"rms_norm_eps":1e-5}})", nullptr}), "accepted");
}

TEST(Config, ErrorsNameTheFileAsItWasGiven) {
  Json json = published();
  json["text_config"]["vocab_size"] = 0;
  EXPECT_TRUE(
      parse_config(json, "my/model/config.json").error().message.starts_with("my/model/config.json: text_config: "));
}

TEST(Config, UnknownFieldsOfTheRootAreNoted) {
  Json json = published();
  json["surprise"] = 1;
  const auto config = parse_config(json);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_EQ(config->ignored_fields, std::vector<std::string>{"surprise"});
}

TEST(Config, UnusedFieldsHaveTheirKind) {
  for (const Json& wrong : {Json(5), Json::array(), Json::object(), Json(true)}) {
    for (const char* key : {"dtype", "torch_dtype"}) {
      Json json = published();
      json["text_config"][key] = wrong;
      EXPECT_FALSE(parse_config(json)) << key << wrong;
      json = published();
      json[key] = wrong;
      EXPECT_FALSE(parse_config(json)) << key << wrong;
    }
    if (wrong.is_boolean()) continue;
    Json json = published();
    json["language_model_only"] = wrong;
    EXPECT_FALSE(parse_config(json)) << wrong;
  }
  Json json = published();
  json["language_model_only"] = true;
  json["text_config"]["dtype"] = "bfloat16";
  EXPECT_TRUE(parse_config(json));
}

TEST(Config, TheRootMayBeTheTextConfig) {
  Json text = published()["text_config"];
  text["architectures"] = {"Qwen4ExpForCausalLM"};
  EXPECT_TRUE(parse_config(text));
  text["surprise"] = 1;
  EXPECT_FALSE(parse_config(text));
}

TEST(Config, AModelWithoutNgramLayers) {
  Json json = published();
  for (const char* key : {"ple_layer_ids", "ple_embed_dim", "ngram_size", "heads_per_ngram", "eos_token_id"}) {
    json["text_config"].erase(key);
  }
  const auto config = parse_config(json);
  ASSERT_TRUE(config) << config.error().message;
  EXPECT_TRUE(config->ple_layers.empty());
}

/// Any value in any field is either accepted or refused with a message; nothing else may happen.
TEST(Config, RandomValuesInRandomFields) {
  const std::vector<Json> values{nullptr,
                                 true,
                                 false,
                                 -1,
                                 0,
                                 1,
                                 3,
                                 1ULL << 31,
                                 ~0ULL,
                                 1e300,
                                 -0.5,
                                 "x",
                                 "",
                                 Json::array(),
                                 Json::array({1, "a", nullptr}),
                                 Json::object(),
                                 Json{{"a", 1}}};
  const Json base = published();
  std::vector<std::string> paths;
  const Json flat = base.flatten();
  for (const auto& [path, value] : flat.items()) paths.push_back(path);
  for (unsigned seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    Json json = base;
    for (unsigned i = 0; i < 1 + random() % 3; ++i) {
      const Json::json_pointer at(paths[random() % paths.size()]);
      if (json.contains(at)) json[at] = values[random() % values.size()];
    }
    const auto config = parse_config(json);
    if (!config) {
      EXPECT_NE(config.error().message.find("config.json"), std::string::npos) << config.error().message;
    }
  }
}

}  // namespace
}  // namespace lockstep::artifact
