#include "artifact/recipe.hpp"

#include <algorithm>

namespace lockstep::artifact {
namespace {

constexpr Precision kEightBit{8, 64};
// Rows of the table are short (160 in the published model), so its groups are small in every recipe.
constexpr Precision kTable{4, 32};

const std::vector<std::string>& kept_dense() {
  static const std::vector<std::string> suffixes{"input_mix_weight_down", "input_mix_weight_up", "block_inject_weight",
                                                 "ple.key_proj", "ple.value_proj"};
  return suffixes;
}

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> list{
      {"bare",
       {4, 64},
       {4, 32},
       {"mlp.gate", "indexer.index_qk_proj", "mtp.fc_embedding", "mtp.fc_hidden"},
       kept_dense(),
       kTable},
      {"optimized",
       {4, 32},
       {4, 32},
       {"embed_tokens", "lm_head", "linear_attn.out_proj", "mlp.gate", "mlp.shared_expert_gate",
        "shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj", "indexer.index_qk_proj",
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mtp.fc_embedding",
        "mtp.fc_hidden"},
       kept_dense(),
       kTable},
      {"quality", kEightBit, kEightBit, {}, kept_dense(), kTable}};
  return list;
}

/// True when `module` is `suffix` or ends in "." + suffix.
bool names(const std::vector<std::string>& suffixes, std::string_view module) {
  return std::any_of(suffixes.begin(), suffixes.end(), [&](const std::string& suffix) {
    if (!module.ends_with(suffix)) return false;
    return module.size() == suffix.size() || module[module.size() - suffix.size() - 1] == '.';
  });
}

OrderedJson precision_json(Precision precision) {
  return {{"bits", precision.bits}, {"group", precision.group}};
}

}  // namespace

const std::vector<std::string>& recipe_names() {
  static const std::vector<std::string> list = [] {
    std::vector<std::string> all;
    for (const Recipe& recipe : recipes()) all.push_back(recipe.name);
    return all;
  }();
  return list;
}

Result<Recipe> find_recipe(std::string_view name) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == name) return recipe;
  }
  return fail(ErrorKind::Usage, "unknown recipe '{}'; there are bare, optimized and quality", name);
}

std::optional<Precision> fit_group(Precision wanted, std::int64_t cols) {
  if (cols % wanted.group == 0) return wanted;
  for (const int group : {128, 64, 32}) {
    if (cols % group == 0) return Precision{wanted.bits, group};
  }
  return std::nullopt;
}

std::optional<Precision> precision_of(const Recipe& recipe, const MatrixPart& part) {
  if (names(recipe.kept_dense, part.module)) return std::nullopt;
  Precision wanted = recipe.base;
  if (part.draft && part.family == Family::Experts) wanted = recipe.draft_experts;
  if (names(recipe.eight_bit, part.module)) wanted = kEightBit;
  return fit_group(wanted, part.matrix->cols);
}

OrderedJson recipe_json(const Recipe& recipe) {
  return {{"name", recipe.name},
          {"base", precision_json(recipe.base)},
          {"eight_bit", recipe.eight_bit},
          {"kept_bf16", recipe.kept_dense},
          {"ngram", precision_json(recipe.ngram)},
          {"mtp", precision_json(recipe.draft_experts)}};
}

}  // namespace lockstep::artifact
