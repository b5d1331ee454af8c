// Recipes: which precision each module of a pack gets (docs/artifact.md, "Recipes").
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "artifact/model_walk.hpp"
#include "artifact/quantization.hpp"
#include "base/json.hpp"

namespace lockstep::artifact {

struct Recipe {
  std::string name;
  Precision base;                       ///< everything that no list names
  Precision draft_experts;              ///< routed experts of the draft layer
  std::vector<std::string> eight_bit;   ///< module suffixes at 8 bits, group 64
  std::vector<std::string> kept_dense;  ///< module suffixes that stay as they are
  Precision ngram;                      ///< rows of the n-gram table
};

/// "bare", "optimized" or "quality". Errors: Usage.
Result<Recipe> find_recipe(std::string_view name);
[[nodiscard]] const std::vector<std::string>& recipe_names();

/// The precision of a module with rows of `part.matrix->cols`, or nothing when it stays dense.
[[nodiscard]] std::optional<Precision> precision_of(const Recipe& recipe, const MatrixPart& part);

/// The wanted precision when its group divides `cols`, else the same bits in the largest supported group that does,
/// else nothing.
[[nodiscard]] std::optional<Precision> fit_group(Precision wanted, std::int64_t cols);

/// For config.json: {"base": {...}, "eight_bit": [...], "kept_bf16": [...], "ngram": {...}, ...}.
[[nodiscard]] OrderedJson recipe_json(const Recipe& recipe);

}  // namespace lockstep::artifact
