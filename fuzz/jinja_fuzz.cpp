// A chat template and its variables as untrusted bytes: the source, a zero byte, and JSON. Small limits keep the runs
// short; whatever happens, literal ranges must be well formed and lie within the text.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/json.hpp"
#include "text/chat_template.hpp"
#include "text/utf8.hpp"

namespace {

void check(const lockstep::text::Rendered& rendered) {
  std::size_t at = 0;
  for (const lockstep::text::ByteRange& range : rendered.literal) {
    if (range.begin >= range.end || range.end > rendered.text.size()) std::abort();
    if (range.begin <= at && at > 0) std::abort();
    at = range.end;
  }
  if (!lockstep::text::is_valid_utf8(rendered.text)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = input.find('\0');
  lockstep::text::TemplateLimits limits;
  limits.max_steps = 20'000;
  limits.max_output_bytes = 1 << 20;
  limits.max_memory_bytes = 4 << 20;
  limits.max_range = 1000;
  const auto compiled = lockstep::text::ChatTemplate::compile(std::string(input.substr(0, zero)), limits);
  if (!compiled) return 0;
  lockstep::text::ChatOptions options;
  options.bos_token = "<s>";
  options.clock = [] { return std::tm{}; };
  lockstep::OrderedJson messages = lockstep::OrderedJson::array();
  if (zero != std::string_view::npos) {
    const auto variables = lockstep::parse_ordered_json(input.substr(zero + 1), "variables");
    if (variables && variables->is_array()) messages = *variables;
    if (variables && variables->is_object()) options.extra = *variables;
  }
  const auto rendered = compiled->render(messages, options);
  if (rendered) check(*rendered);
  return 0;
}
