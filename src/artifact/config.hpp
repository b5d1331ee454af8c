// Geometry of a qwen4_exp model, read from config.json. Every dimension the program uses comes from here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "base/result.hpp"

namespace lockstep::artifact {

enum class LayerKind : std::uint8_t { Linear, Attention };

struct ModelConfig {
  std::string file = "config.json";  ///< the path it was read from, for messages
  std::int64_t vocab_size = 0, hidden_size = 0;
  std::vector<LayerKind> layers;  ///< one entry per layer

  // Attention (QSA) layers and their indexer.
  std::int64_t attention_heads = 0, kv_heads = 0, head_dim = 0;
  std::int64_t rotary_dim = 0;  ///< head_dim * partial_rotary_factor, even
  double rope_theta = 0;
  std::int64_t indexer_heads = 0, indexer_dim = 0;
  std::int64_t indexer_budget = 0;  ///< tokens; budget / ratio groups are selected
  std::int64_t indexer_ratio = 0;   ///< tokens per group

  // Gated DeltaNet layers.
  std::int64_t linear_key_heads = 0, linear_value_heads = 0, linear_key_dim = 0, linear_value_dim = 0;
  std::int64_t conv_kernel = 0;

  // Hyper-connections.
  std::int64_t streams = 0, hc_lowrank = 0;

  // Mixture of experts.
  std::int64_t experts = 0, experts_per_token = 0, expert_dim = 0, shared_expert_dim = 0;

  // N-gram per-layer embedding.
  std::vector<std::int64_t> ple_layers;  ///< 0-based layer indices (config.json counts from 1)
  std::int64_t ple_dim = 0, ple_conv_kernel = 0, ngram_size = 0, heads_per_ngram = 0;
  std::int64_t ngram_vocab_base = 0, ngram_vocab_multiple = 0, ngram_shards = 0, ngram_seed = 1234;
  std::int64_t ngram_eos = 0;  ///< the hash boundary: text_config.eos_token_id (first entry of a list)

  std::int64_t draft_layers = 0;  ///< mtp_num_hidden_layers: 0 or 1
  double rms_norm_eps = 1e-6;
  std::int64_t max_positions = 0;
  std::int64_t bos_token = -1, pad_token = -1;  ///< -1 when null
  std::vector<std::string> ignored_fields;      ///< unknown fields of the root object; they change nothing here

  [[nodiscard]] std::int64_t wide_size() const { return streams * hidden_size; }
  [[nodiscard]] std::int64_t ngram_heads() const { return (ngram_size - 1) * heads_per_ngram; }
  [[nodiscard]] std::int64_t ngram_row_dim() const { return ple_dim / ngram_heads(); }
  [[nodiscard]] std::int64_t conv_channels() const {
    return 2 * linear_key_heads * linear_key_dim + linear_value_heads * linear_value_dim;
  }
  [[nodiscard]] std::int64_t value_size() const { return linear_value_heads * linear_value_dim; }
};

/// Reads and checks the whole config.json (root object, which may itself be the text config). Every known field is used
/// or checked; an unknown field of text_config, an unsupported rope type (YaRN), activation or gate is an error, never
/// ignored. docs/artifact.md lists the fields. Errors: Invalid, NotFound (a missing field), Unsupported.
/// `file` is the path that errors name.
Result<ModelConfig> parse_config(const Json& root, const std::string& file = "config.json");

}  // namespace lockstep::artifact
