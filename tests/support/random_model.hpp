// Random small models in memory: any valid geometry, any mix of precisions. One seed, one model.
#pragma once

#include <algorithm>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>

#include "artifact/synth.hpp"
#include "artifact/synth_values.hpp"

namespace lockstep::test {

/// What a test wants to decide itself.
struct RandomModelWishes {
  std::optional<bool> draft;
  std::optional<std::int64_t> vocabulary;
  bool thin = false;  ///< the narrowest widths, at most two layers: for tests with very many steps
};

/// A random config.json that parse_config() accepts and the kernels support.
inline Json random_geometry(unsigned seed, const RandomModelWishes& wishes = {}) {
  std::mt19937 random(seed);
  const auto pick = [&](std::initializer_list<std::int64_t> values) {
    return values.begin()[random() % values.size()];
  };
  const auto between = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<unsigned>(high - low + 1));
  };
  const std::int64_t layers = between(1, wishes.thin ? 2 : 4);
  Json types = Json::array();
  std::int64_t linear_layer = 0;  // counted from 1; 0: none
  for (std::int64_t i = 1; i <= layers; ++i) {
    const bool attention = random() % 3 == 0;
    types.push_back(attention ? "full_attention" : "linear_attention");
    if (!attention && (linear_layer == 0 || random() % 2 == 0)) linear_layer = i;
  }
  const std::int64_t kv_heads = between(1, 2), key_heads = between(1, 2), experts = between(1, 8);
  const std::int64_t head_dim = pick({16, 32, 48, 64}), index_dim = pick({16, 32, 64});
  std::int64_t rotary = pick({2, 4, 8, 16});
  rotary = std::min({rotary, head_dim, index_dim});
  const std::int64_t ratio = pick({1, 2, 4, 8, 16}), vocabulary = between(30, 260);
  const std::int64_t ngram_size = between(2, 4), ngram_heads = between(1, 3);
  const std::int64_t width = wishes.thin ? 1 : between(1, 4);
  Json text{{"model_type", "qwen4_exp_text"},
            {"vocab_size", wishes.vocabulary.value_or(vocabulary)},
            {"hidden_size", 32 * width},
            {"num_hidden_layers", layers},
            {"layer_types", types},
            {"num_attention_heads", kv_heads * between(1, 3)},
            {"num_key_value_heads", kv_heads},
            {"head_dim", wishes.thin ? 16 : head_dim},
            {"rope_theta", 1e7},
            {"partial_rotary_factor", 0.0},
            {"linear_num_key_heads", key_heads},
            {"linear_num_value_heads", key_heads * between(1, 3)},
            {"linear_key_head_dim", wishes.thin ? 16 : pick({16, 32, 48})},
            {"linear_value_head_dim", wishes.thin ? 16 : pick({16, 32})},
            {"linear_conv_kernel_dim", between(2, 5)},
            {"hc_count", between(1, 4)},
            {"hc_lowrank", pick({8, 16, 32, 64})},
            {"num_experts", experts},
            {"num_experts_per_tok", between(1, experts)},
            {"moe_intermediate_size", wishes.thin ? 32 : pick({32, 64, 128})},
            {"shared_expert_intermediate_size", wishes.thin ? 32 : pick({32, 64})},
            {"indexer_n_heads", between(1, 4)},
            {"indexer_head_dim", index_dim},
            {"indexer_budget", ratio * between(1, 6)},
            {"indexer_compress_ratio", ratio},
            {"ple_embed_dim", (ngram_size - 1) * ngram_heads * pick({16, 32, 64})},
            {"ple_conv_kernel_size", between(1, 4)},
            {"ngram_size", ngram_size},
            {"heads_per_ngram", ngram_heads},
            {"ngram_vocab_size_base", between(20, 300)},
            {"make_ngram_vocab_size_divisible_by", pick({1, 8, 128})},
            {"split_ngram_parts", 1},
            {"eos_token_id", 2},
            {"mtp_num_hidden_layers", wishes.draft.value_or(random() % 4 != 0) ? 1 : 0},
            {"rms_norm_eps", 1e-6},
            {"max_position_embeddings", 2048}};
  rotary = std::min<std::int64_t>(rotary, text["head_dim"]);
  text["partial_rotary_factor"] = static_cast<double>(rotary) / text["head_dim"].get<double>();
  text["ple_layer_ids"] = linear_layer != 0 && random() % 4 != 0 ? Json{linear_layer} : Json::array();
  return *parse_json(text.dump(), "geometry");  // as a file would give it
}

/// Every module with a precision of its own: dense, or 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128.
inline artifact::PrecisionRule random_precisions(unsigned seed) {
  return [seed](const artifact::MatrixPart& part) -> std::optional<artifact::Precision> {
    constexpr std::array kBits{0, 2, 3, 4, 4, 5, 6, 8};
    constexpr std::array kGroups{32, 64, 128};
    const std::uint64_t word = artifact::synth_key(seed, "precision of " + part.module);
    const int bits = kBits[word % kBits.size()];
    if (bits == 0) return std::nullopt;
    return artifact::fit_group({bits, kGroups[(word >> 32) % kGroups.size()]}, part.matrix->cols);
  };
}

/// The model of a seed.
inline artifact::Artifact random_model(unsigned seed, const RandomModelWishes& wishes = {}) {
  const auto config = artifact::parse_config(random_geometry(seed, wishes));
  if (!config) throw std::runtime_error(config.error().message);
  auto model = artifact::make_synthetic(*config, random_precisions(seed), seed, 1);
  if (!model) throw std::runtime_error(model.error().message);
  return std::move(*model);
}

}  // namespace lockstep::test
