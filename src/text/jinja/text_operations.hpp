// Work on texts that methods and filters share. All of it carries the literal marks along.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "text/jinja/runtime.hpp"
#include "text/jinja/text.hpp"

namespace lockstep::text::jinja {

/// Removes blanks, or the characters of `set` if it is not null, from the ends. Errors: Limit, as for all of these.
Result<TextPtr> strip(Runtime& runtime, const TextPtr& text, const Text* set, bool left, bool right);
/// Replaces the first `count` places of `old`, all if negative. An empty `old` stands between all characters.
Result<TextPtr> replace(Runtime& runtime, const TextPtr& text, const Text& old, const Text& with, std::int64_t count);
/// The parts between separators, at most `limit` cuts if it is not negative. `separator` is not empty.
Result<std::vector<Value>> split(Runtime& runtime, const TextPtr& text, const Text& separator, std::int64_t limit);
Result<std::vector<Value>> split_from_right(Runtime& runtime, const TextPtr& text, const Text& separator,
                                            std::int64_t limit);
/// The words between stretches of blanks.
Result<std::vector<Value>> split_words(Runtime& runtime, const TextPtr& text, std::int64_t limit);
Result<std::vector<Value>> split_words_from_right(Runtime& runtime, const TextPtr& text, std::int64_t limit);
Result<std::vector<Value>> split_lines(Runtime& runtime, const TextPtr& text, bool keep_ends);
/// Items with the separator between them; items that are no strings are converted if `convert`. Errors: Invalid.
Result<TextPtr> join(Runtime& runtime, const Text& separator, const std::vector<Value>& items, bool convert);
/// `count` copies of one character (filling). Errors: Limit before anything is written.
Status append_fill(Runtime& runtime, TextBuilder& out, std::string_view fill, std::int64_t count);

enum class CaseChange : std::uint8_t {
  Upper,
  Lower,
  Capitalize,  ///< the first character upper, the others lower
  Title,       ///< str.title: letters after a letter lower, other letters upper
  TitleWords,  ///< the title filter: upper after blanks, hyphens and opening brackets only
  Swap,
};
Result<TextPtr> change_case(Runtime& runtime, const TextPtr& text, CaseChange change);

/// The last place of `what` that ends at or before byte `end`, or npos. Takes time in proportion to the product of the
/// sizes, which charge_backward_search() accounts for.
[[nodiscard]] std::size_t find_last(std::string_view text, std::string_view what, std::size_t end);
Status charge_backward_search(Runtime& runtime, std::string_view text, std::string_view what);

}  // namespace lockstep::text::jinja
