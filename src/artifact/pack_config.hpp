// The texts of a pack: config.json, the index, mtplx_runtime.json, and the files copied from the source.
#pragma once

#include <string>
#include <vector>

#include "artifact/pack_plan.hpp"

namespace lockstep::artifact {

/// `config` (config.json of the official layout) with quantization, side files and the recipe added.
[[nodiscard]] std::string pack_config_text(OrderedJson config, const Recipe& recipe, const PackPlan& plan);
/// The source's config.json with quantization, side files and the recipe added. Errors: those of reading it.
Result<std::string> pack_config_text(const Artifact& source, const Recipe& recipe, const PackPlan& plan);

/// model.safetensors.index.json: the trunk's tensors; side files are not in it.
[[nodiscard]] std::string pack_index_text(const PackPlan& plan);

/// mtplx_runtime.json: norm layouts, sampler defaults, and where the pack came from. It holds no date, so that the same
/// source gives the same bytes.
[[nodiscard]] std::string pack_runtime_text(const Artifact& source, const Recipe& recipe);

/// Names of files in `directory` that a pack takes over unchanged: tokenizer, template, generation defaults, licences.
Result<std::vector<std::string>> copied_files(const std::filesystem::path& directory);

}  // namespace lockstep::artifact
