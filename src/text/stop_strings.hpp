// Stop strings, matched while text streams.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace lockstep::text {

/// Cuts a stream at the first stop string.
///
/// The stream stops at the byte that completes a stop string; of several that end at the same byte the longest counts.
/// The text before it is the answer. What is returned and where it stops depends on the concatenated text alone, not on
/// how it was cut into pieces. Held back is exactly the longest tail that could still become a stop string; if stop
/// strings and pieces are whole UTF-8 characters, so is all that is returned.
class StopMatcher {
 public:
  static constexpr std::size_t kMaxStrings = 64;
  static constexpr std::size_t kMaxBytes = 4096;

  /// Errors: Invalid (an empty stop string), Limit (more than kMaxStrings, or one longer than kMaxBytes).
  static Result<StopMatcher> create(std::vector<std::string> strings);

  /// Takes more text and returns the part that no stop string can claim any more; nothing once stopped.
  std::string push(std::string_view text);
  /// Ends the stream and returns what was held back; nothing once stopped.
  std::string finish();

  [[nodiscard]] bool stopped() const { return matched_.has_value(); }
  /// The stop string that ended the stream; empty before that.
  [[nodiscard]] std::string_view matched() const { return matched_ ? patterns_[*matched_].text : std::string_view(); }

 private:
  /// A stop string with its failure function: border[n] is the longest proper border of its first n bytes.
  struct Pattern {
    std::string text;
    std::vector<std::size_t> border;
    std::size_t matched = 0;  ///< how many of its bytes end the stream so far
  };
  static Pattern make_pattern(std::string text);
  static void advance(Pattern& pattern, char byte);

  std::vector<Pattern> patterns_;
  std::optional<std::size_t> matched_;
  std::string held_;
};

}  // namespace lockstep::text
