// Unicode Normalisation Form C in time O(n log n) for every input.
#pragma once

#include <string>
#include <string_view>

#include "base/result.hpp"

namespace lockstep::text {

/// Whether the text holds only characters below U+0300, which are in NFC whatever surrounds them.
bool is_trivially_nfc(std::string_view utf8);

/// Normalises well-formed UTF-8 to NFC. Error: Internal when the Unicode library refuses, which no well-formed text
/// should cause.
Result<std::string> to_nfc(std::string_view utf8);

}  // namespace lockstep::text
