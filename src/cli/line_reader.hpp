// The lines of a conversation: with editing and history at a terminal, plainly otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.hpp"
#include "cli/interrupt.hpp"

namespace lockstep::cli {

class LineReader {
 public:
  static constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20;

  explicit LineReader(const InterruptScope& interrupts);

  /// The next line without its end, or nothing at the end of input. Returns nothing as well, with the terminal as it
  /// was before, as soon as the scope has a request. Errors: Io, Limit when a line is longer than kMaxLineBytes.
  Result<std::optional<std::string>> next();

 private:
  enum class Ready : std::uint8_t { Input, End, Interrupted };
  [[nodiscard]] Ready wait() const;
  std::optional<std::string> edited_line();
  Result<std::optional<std::string>> plain_line();

  const InterruptScope& interrupts_;
  bool terminal_, ended_ = false;
  std::string buffer_;  ///< read, not yet given out
};

}  // namespace lockstep::cli
