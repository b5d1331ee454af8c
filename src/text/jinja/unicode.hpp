// Characters as Python sees them: positions count code points, and blanks, letters and cases follow Unicode. Texts are
// valid UTF-8 here; that is checked where they enter. Case mappings are the simple ones, plus the sharp s.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "text/utf8.hpp"

namespace lockstep::text::jinja {

/// Bytes of the character that starts with this byte.
[[nodiscard]] inline std::size_t character_length(char lead) {
  const auto byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

[[nodiscard]] inline bool is_continuation(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

/// The character that starts at byte `at`.
[[nodiscard]] char32_t character_at(std::string_view text, std::size_t at);
/// The byte at which the character before byte `at` (> 0) starts.
[[nodiscard]] std::size_t previous_character(std::string_view text, std::size_t at);
[[nodiscard]] std::size_t count_characters(std::string_view text);

/// str.isspace of one character; the same set as \s of regular expressions.
[[nodiscard]] bool is_space(char32_t c);
/// A line end of str.splitlines ("\r\n" is one, which the caller sees to).
[[nodiscard]] bool is_line_break(char32_t c);
[[nodiscard]] bool is_alpha(char32_t c);
[[nodiscard]] bool is_decimal(char32_t c);
/// \w of regular expressions: letters, numbers and the underscore.
[[nodiscard]] bool is_word(char32_t c);
[[nodiscard]] bool is_upper(char32_t c);
[[nodiscard]] bool is_lower(char32_t c);
[[nodiscard]] bool is_title(char32_t c);
[[nodiscard]] bool is_printable(char32_t c);

void append_upper(char32_t c, std::string& out);
void append_lower(char32_t c, std::string& out);
void append_title(char32_t c, std::string& out);

/// Lower case of a whole text, for comparisons that ignore case.
[[nodiscard]] std::string lower_case(std::string_view text);

/// The first place of `what` at or after byte `from`, or npos; in time linear in the sizes, unlike std::string::find.
[[nodiscard]] std::size_t find_text(std::string_view text, std::string_view what, std::size_t from = 0);

/// The text without blanks at its ends, as byte positions.
[[nodiscard]] std::size_t skip_space(std::string_view text, std::size_t from);
[[nodiscard]] std::size_t trim_space_end(std::string_view text, std::size_t end);

}  // namespace lockstep::text::jinja
