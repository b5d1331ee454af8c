// Defaults that a model brings along in generation_config.json: sampler parameters and the ids that end generation.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "base/result.hpp"
#include "decode/params.hpp"

namespace lockstep::decode {

struct GenerationDefaults {
  SamplerParams sampler;
  std::vector<TokenId> stop_ids;      ///< ascending, without duplicates
  std::vector<std::string> warnings;  ///< fields that ask for something this program does not do
};

/// Reads the parsed file. do_sample false means greedy whatever the temperature; an absent field means "off"
/// (temperature 1). eos_token_id is a number, a list or null. `fallback_stop_ids` are used when the file names none.
/// `vocab` is the usable vocabulary size, which bounds every id. Errors: Invalid, naming the field.
Result<GenerationDefaults> parse_generation_config(const Json& root, std::int64_t vocab,
                                                   std::span<const TokenId> fallback_stop_ids);

/// The same for `directory`/generation_config.json; a model without that file gets the defaults above.
/// Errors: Io, Limit (above 1 MiB), Invalid.
Result<GenerationDefaults> read_generation_config(const std::filesystem::path& directory, std::int64_t vocab,
                                                  std::span<const TokenId> fallback_stop_ids);

}  // namespace lockstep::decode
