// Added tokens: texts such as <|im_end|> that stand for one token and are found before anything else looks at a prompt.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "text/byte_range.hpp"

namespace lockstep::text {

struct AddedToken {
  std::int32_t id = -1;
  std::string content;
  bool special = false;  ///< dropped from decoded text on request; the others (<think>, <tool_call>) are kept
};

/// Finds added tokens literally, leftmost first and longest first.
class AddedTokens {
 public:
  /// Errors: Invalid (empty or longer than 256 bytes, not UTF-8, the same text or id twice, more than 65,536 tokens).
  static Result<AddedTokens> create(std::vector<AddedToken> tokens);

  struct Match {
    std::size_t position = 0;           ///< where the token starts; the end of the text when there is none
    const AddedToken* token = nullptr;  ///< null: no match
  };
  /// The first match at or after byte `from` that shares no byte with a literal range. `literal` is ascending,
  /// disjoint and without empty ranges. Takes time O(text x longest token) at worst, and O(text) where few bytes can
  /// start a token.
  [[nodiscard]] Match find(std::string_view text, std::size_t from, std::span<const ByteRange> literal) const;

  /// The token with exactly this text, or null.
  [[nodiscard]] const AddedToken* by_text(std::string_view content) const;
  [[nodiscard]] std::span<const AddedToken> all() const { return tokens_; }  ///< in order of their texts

 private:
  /// The longest token that is a prefix of `text`, or null.
  [[nodiscard]] const AddedToken* longest_prefix(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> starts_{};
};

}  // namespace lockstep::text
