// Splits a template into tokens, with blanks around blocks removed as Jinja2 does it under trim_blocks and
// lstrip_blocks, which is how chat templates are written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace lockstep::text::jinja {

enum class TokenKind : std::uint8_t {
  Data,  ///< text outside of blocks
  VariableBegin,
  VariableEnd,
  BlockBegin,
  BlockEnd,
  Name,
  String,  ///< text without quotes, escapes resolved
  Integer,
  Float,
  Symbol,  ///< text: an operator or a bracket
  End,
};

struct Token {
  TokenKind kind = TokenKind::End;
  std::uint32_t line = 0;
  std::string text;
  std::int64_t integer = 0;
  double real = 0;
};

/// Errors: Invalid with the line (unclosed blocks, comments, strings and brackets; unknown characters), Limit (an
/// integer beyond 64 bits). The last token is End. `source` must be valid UTF-8.
Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace lockstep::text::jinja
