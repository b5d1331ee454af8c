// Standard input as text.
#pragma once

#include <cstddef>
#include <string>

#include "base/result.hpp"

namespace lockstep::cli {

/// Reads standard input to its end. Errors: Io, Limit when there are more than `max_bytes`.
Result<std::string> read_stdin(std::size_t max_bytes);

}  // namespace lockstep::cli
