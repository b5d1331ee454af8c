// JSON under limits: no input may crash, and what parses must survive being written and parsed again.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const lockstep::JsonLimits limits{.max_bytes = 1 << 16, .max_depth = 32, .unique_keys = true};
  const auto parsed = lockstep::parse_json(text, "input", limits);
  const auto ordered = lockstep::parse_ordered_json(text, "input", limits);
  if (parsed.has_value() != ordered.has_value()) std::abort();
  if (!parsed) return 0;
  if (*lockstep::parse_json(parsed->dump(), "dump") != *parsed) std::abort();
  return 0;
}
