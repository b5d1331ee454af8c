// The request parsers of all wire formats: no body may crash them, what they refuse has a status and words, and what
// they accept is in the form that chat templates expect.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/wire/generation_request.hpp"

namespace {

using namespace lockstep;          // NOLINT(google-build-using-namespace)
using namespace lockstep::server;  // NOLINT(google-build-using-namespace)

void require(bool holds) {
  if (!holds) std::abort();
}

void check_messages(const OrderedJson& messages) {
  require(messages.is_array());
  for (const OrderedJson& message : messages) {
    require(message.at("role").is_string() && message.at("content").is_string());
    if (!message.contains("tool_calls")) continue;
    for (const OrderedJson& call : message.at("tool_calls")) require(call.at("function").at("arguments").is_object());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  RequestLimits limits{.messages = 16, .parts = 16, .tools = 16, .prompts = 8, .choices = 4};
  limits.body_bytes = 1 << 16;
  limits.json_depth = 32;
  limits.strict = (data[0] & 4) != 0;
  const Parsed<GenerationRequest> request = parse_request(static_cast<Api>(data[0] & 3), body, limits);
  if (!request) {
    require(request.error().status == 400 || request.error().status == 413);
    require(!request.error().message.empty());
    return 0;
  }
  check_messages(request->messages);
  require(request->tools.is_null() || request->tools.is_array());
  require(request->n >= 1 && request->n <= limits.choices);
  require(request->api != Api::Completions || !request->prompts.empty());
  return 0;
}
