// The pre-tokeniser's split pattern, run by PCRE2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

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
  /// What matching may cost over one whole text, however many calls of split() it takes.
  class Budget {
   public:
    /// `text_bytes` are those of the whole text; `stop` is asked every few ten thousand steps and may be empty.
    explicit Budget(std::size_t text_bytes, std::function<bool()> stop = {})
        : most_(kFreeSteps + kStepsPerByte * text_bytes), stop_(std::move(stop)) {}

   private:
    friend class SplitPattern;
    // The patterns of this family take 1 to 13 steps a byte of ordinary text and below 30 on texts made to be slow.
    static constexpr std::uint64_t kFreeSteps = 1'000'000, kStepsPerByte = 500, kStepsBetweenLooks = 50'000;
    std::uint64_t most_, used_ = 0, next_look_ = kStepsBetweenLooks;
    std::size_t position_ = 0;  ///< where the pattern last looked
    bool stopped_ = false;
    std::function<bool()> stop_;

    /// Counts the way from the last position; false when matching has to end.
    bool count(std::size_t position);
  };

  /// Errors: Invalid (not a pattern, or longer than 4096 bytes), Unsupported (it can match the empty text, refers back
  /// to a group, or asks for more than 32 repetitions, whose cost could not be counted).
  static Result<SplitPattern> compile(std::string_view pattern);

  SplitPattern(SplitPattern&&) noexcept;
  SplitPattern& operator=(SplitPattern&&) noexcept;
  SplitPattern(const SplitPattern&) = delete;
  SplitPattern& operator=(const SplitPattern&) = delete;
  ~SplitPattern();

  /// Calls `visit` with the pieces of a well-formed UTF-8 text, in order; together they are the text. Thread-safe with
  /// a budget for each thread. The time is proportional to the budget: every item of the pattern counts one step and
  /// the bytes that it went over. Errors: the first of `visit`, which ends the call; Limit when the budget is used up
  /// or the pattern nests too deep; Cancelled (the budget's stop). Their messages name tokenizer.json.
  Status split(std::string_view text, Budget& budget, const std::function<Status(std::string_view)>& visit) const;

 private:
  struct Code;
  explicit SplitPattern(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace lockstep::text
