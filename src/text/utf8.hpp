// UTF-8: stepping, validity and the replacement of ill-formed bytes.
//
// The replacement rule is the one of the Unicode standard (chapter 3, "U+FFFD Substitution of Maximal Subparts"), which
// Python's errors="replace", Rust's from_utf8_lossy and browsers follow: the longest prefix of a well-formed sequence,
// or else one byte, becomes one U+FFFD.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

enum class Utf8Kind : std::uint8_t {
  Valid,      ///< a whole character
  Invalid,    ///< a maximal subpart that no further byte can complete
  Truncated,  ///< a prefix of a character that ends with the text
};

/// The first unit of a text: a character or one stretch of bytes to replace.
struct Utf8Unit {
  char32_t code_point = 0;  ///< only for Valid
  std::uint8_t length = 0;  ///< bytes of the unit, 1 to 4
  Utf8Kind kind = Utf8Kind::Invalid;
};

/// Reads the first unit of a non-empty text.
Utf8Unit next_utf8(std::string_view text);

/// Whether the text is well-formed UTF-8: no overlong forms, no surrogates, nothing beyond U+10FFFF.
bool is_valid_utf8(std::string_view text);

/// Where the first ill-formed stretch begins; the text's size when there is none.
std::size_t first_invalid_utf8(std::string_view text);

/// Copies the text with every ill-formed stretch, a truncated tail included, replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

/// Appends the encoding of a scalar value (below 0x110000 and no surrogate).
void append_utf8(char32_t code_point, std::string& out);

}  // namespace lockstep::text
