// Text from outside (file names, flag values, messages of a template) made safe for one line on a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep {

inline constexpr std::size_t kMaxPrintable = 2000;

/// The text on one line: line breaks and tabs become spaces; other control characters, bytes that are not UTF-8 and
/// characters that a terminal would obey instead of showing (C1 controls, changes of the writing direction, line
/// separators) become \xNN or \u{NNNN}. Trailing line breaks are dropped. A result of more than `max_bytes` bytes keeps
/// its beginning and its end, with " ... " for what is left out.
[[nodiscard]] std::string printable(std::string_view text, std::size_t max_bytes = kMaxPrintable);

}  // namespace lockstep
