// The pre-tokeniser's split pattern, run by PCRE2.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace lockstep::text {

/// A compiled split pattern ("Split" with behaviour "Isolated"): every match is a piece, and so is every stretch
/// between two matches.
///
/// tokenizer.json files are written for Oniguruma. The patterns of this model family mean the same in PCRE2 with two
/// adjustments made here: Unicode properties and Unicode case folding are on, and `\s` is the Unicode property
/// White_Space (PCRE2's own `\s` would add U+180E). Character classes follow the Unicode version of the PCRE2 library;
/// characters that are newer than it count as neither letter nor digit.
class SplitPattern {
 public:
  /// Errors: Invalid (not a pattern, or longer than 4096 bytes), Unsupported (it can match the empty text).
  static Result<SplitPattern> compile(std::string_view pattern);

  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;
  SplitPattern(const SplitPattern&) = delete;
  SplitPattern& operator=(const SplitPattern&) = delete;
  ~SplitPattern();

  /// Calls `visit` with the pieces of a well-formed UTF-8 text, in order; together they are the text. Thread-safe.
  /// Errors: the first of `visit`, which ends the call; Limit when the pattern backtracks more than about a hundred
  /// steps per byte or nests too deep.
  Status split(std::string_view text, const std::function<Status(std::string_view)>& visit) const;

 private:
  struct Code;
  explicit SplitPattern(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace lockstep::text
