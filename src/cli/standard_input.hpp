// Standard input as text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/result.hpp"
#include "cli/interrupt.hpp"

namespace lockstep::cli {

/// Reads standard input to its end. Errors: Io, Limit when there are more than `max_bytes`, Cancelled.
Result<std::string> read_stdin(std::size_t max_bytes, const InterruptScope& interrupts);

/// Errors: Invalid with the offset of the first byte that is not UTF-8; `what` names the text ("--prompt").
Status check_utf8(std::string_view text, std::string_view what);

}  // namespace lockstep::cli
