// The tokenizer files of a synthetic model: those of another model, padded to the vocabulary.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/result.hpp"

namespace lockstep::artifact {

/// Errors: Invalid when the tokenizer.json in `source` has ids from `vocabulary` on, or none at all; those of reading.
Status check_tokenizer(const std::filesystem::path& source, std::int64_t vocabulary);

/// Copies tokenizer, template, generation defaults and licences of `source` to `directory`. Ids that tokenizer.json
/// does not use get the entry "[PADn]", which no text becomes.
Status write_padded_tokenizer(const std::filesystem::path& source, std::int64_t vocabulary,
                              const std::filesystem::path& directory);

}  // namespace lockstep::artifact
