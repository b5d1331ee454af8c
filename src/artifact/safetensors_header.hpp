// The JSON header of a safetensors file, read as a stream of events so that a hostile one cannot cost more memory than
// its tensors would.
#pragma once

#include <string_view>

#include "artifact/safetensors.hpp"

namespace lockstep::artifact {

/// Reads the header text. `offset` and `bytes` of the tensors are still relative to the data section and unchecked
/// against the file, but bytes == shape x dtype and offset + bytes does not overflow.
Result<SafetensorsHeader> parse_header_text(std::string_view text, std::string_view what);

/// 1 to kMaxNameBytes bytes without control characters.
[[nodiscard]] bool usable_name(std::string_view name);

}  // namespace lockstep::artifact
