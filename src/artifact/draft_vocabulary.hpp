// The list of tokens that a short draft head proposes from: frspec.json (docs/lanes.md "frspec").
//
//   {"format": "lockstep-frspec-1", "vocab_size": 248320, "counted": 1234567, "covered": 1230000, "ids": [198, 11,
//   ...]}
//
// `ids` is ranked, the most frequent token first, so that a prefix is a list too. `counted` and `covered` are optional:
// tokens of the corpus that the list was made from, and how many of them it contains.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace lockstep::artifact {

/// The name of the list in a model directory.
inline constexpr std::string_view kDraftVocabularyFile = "frspec.json";

struct DraftVocabulary {
  std::int64_t vocab_size = 0;    ///< of the model that the list was made for
  std::vector<std::int32_t> ids;  ///< ranked; each once, all in [0, vocab_size)
  std::int64_t counted = 0, covered = 0;
};

/// Reads a list. `what` names it in errors. Errors: Invalid for a wrong format, a field that is missing or of a wrong
/// type or range, no ids, an id outside the vocabulary or twice; Limit.
Result<DraftVocabulary> parse_draft_vocabulary(std::string_view text, std::string_view what);
/// The same from a file. Errors also: NotFound, Io.
Result<DraftVocabulary> read_draft_vocabulary(const std::filesystem::path& path);

/// The text of a list, which parse_draft_vocabulary() reads back.
[[nodiscard]] std::string draft_vocabulary_text(const DraftVocabulary& list);

/// Ranks ids by count (descending) and id (ascending) and keeps the first `size`, `always` in front of all others
/// (end-of-turn tokens, say, whatever the corpus). `counts[id]` covers the vocabulary; ids with a count of 0 are left
/// out unless they are in `always`. Errors: Invalid for an id of `always` outside the vocabulary, or an empty outcome.
Result<DraftVocabulary> rank_draft_vocabulary(std::span<const std::uint64_t> counts,
                                              std::span<const std::int32_t> always, std::size_t size);

}  // namespace lockstep::artifact
