// Reads tokenizer.json and tokenizer_config.json into the parts that a tokenizer needs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "text/tokenizer_added.hpp"
#include "text/tokenizer_bpe.hpp"

namespace lockstep::text {

struct TokenizerSpec {
  std::vector<std::string> tokens;  ///< the bytes of every base token by id; empty where an id is unused
  std::array<std::int32_t, 256> byte_ids{};
  std::vector<MergeRule> merges;  ///< in order of rank
  std::vector<AddedToken> added;
  std::string split_pattern;
  bool nfc = false;
  std::optional<std::int32_t> eos;  ///< the "eos_token" of tokenizer_config.json
};

/// Reads both texts; `config_json` may be empty. What is accepted is the byte-level BPE of this model family and
/// nothing else: model BPE without unknown token, byte fallback, dropout or affixes; normaliser NFC or none;
/// pre-tokeniser [Split(Regex, Isolated), ByteLevel without its own regex or prefix space]; decoder ByteLevel; no
/// truncation, padding or template post-processor; added tokens matched literally. Everything else is Unsupported, with
/// its name.
///
/// "pretokenize_regex" of tokenizer_config.json must be the pattern of tokenizer.json, with one exception: checkpoints
/// of this family were published whose tokenizer.json still holds the older pattern (without \p{M}) that the reference
/// tokenizer class overrides; there the newer pattern of the configuration is used. Added tokens that only
/// "added_tokens_decoder" lists are added; one that contradicts tokenizer.json is Invalid.
Result<TokenizerSpec> parse_tokenizer(std::string_view tokenizer_json, std::string_view config_json);

}  // namespace lockstep::text
