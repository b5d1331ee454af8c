// The parsers of streamed answers: whatever the text and wherever it is cut, the pieces add up to what parsing at once
// gives.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"
#include "text/reasoning.hpp"
#include "text/stop_strings.hpp"
#include "text/tool_call.hpp"
#include "text/utf8.hpp"
#include "text/utf8_stream.hpp"

namespace {

using namespace lockstep::text;

void require(bool condition) {
  if (!condition) std::abort();
}

std::vector<std::string_view> cut(std::string_view text, std::size_t step) {
  std::vector<std::string_view> pieces;
  for (std::size_t at = 0; at < text.size(); at += step) pieces.push_back(text.substr(at, step));
  return pieces;
}

void check_reasoning(std::string_view text, std::size_t step, bool open, bool tool_calls) {
  ReasoningSplitter whole({open, tool_calls});
  ReasoningSplitter::Delta expected = whole.push(text);
  const ReasoningSplitter::Delta rest = whole.finish();
  expected.reasoning += rest.reasoning;
  expected.content += rest.content;
  ReasoningSplitter splitter({open, tool_calls});
  ReasoningSplitter::Delta sum;
  const auto add = [&](const ReasoningSplitter::Delta& delta) {
    sum.reasoning += delta.reasoning;
    sum.content += delta.content;
  };
  for (const std::string_view piece : cut(text, step)) add(splitter.push(piece));
  add(splitter.finish());
  require(sum.reasoning == expected.reasoning && sum.content == expected.content);
}

void check_tool_calls(std::string_view text, std::size_t step) {
  static const ToolSchemas kSchemas = ToolSchemas::from_json(lockstep::OrderedJson::parse(
      R"([{"name": "f", "parameters": {"properties": {"s": {"type": "string"}, "i": {"type": "integer"}}}}])"));
  const ToolCallAnswer expected = parse_tool_calls(text, kSchemas);
  ToolCallParser parser(kSchemas);
  ToolCallAnswer sum;
  for (const std::string_view piece : cut(text, step)) append_events(parser.push(piece), sum);
  append_events(parser.finish(), sum);
  require(sum.content == expected.content && sum.calls == expected.calls);
  for (const ToolCall& call : sum.calls) {
    if (call.complete) require(lockstep::parse_json(call.arguments, "arguments", {.unique_keys = true}).has_value());
  }
}

/// The stop strings are parts of the text's own beginning, so that they occur.
void check_stops(std::string_view text, std::size_t step) {
  if (text.size() < 8) return;
  const std::vector<std::string> stops{std::string(text.substr(0, 3)), std::string(text.substr(2, 5))};
  const std::string_view body = text.substr(1);
  StopMatcher whole = *StopMatcher::create(stops);
  std::string expected = whole.push(body);
  expected += whole.finish();
  StopMatcher matcher = *StopMatcher::create(stops);
  std::string sum;
  for (const std::string_view piece : cut(body, step)) sum += matcher.push(piece);
  sum += matcher.finish();
  require(sum == expected && matcher.matched() == whole.matched());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::size_t step = 1 + data[0] % 16;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  Utf8Stream stream;
  std::string text;
  for (const std::string_view piece : cut(bytes, step)) text += stream.push(piece);
  text += stream.finish();
  require(text == replace_invalid_utf8(bytes));
  check_reasoning(text, step, (data[0] & 16) != 0, (data[0] & 32) != 0);
  check_tool_calls(text, step);
  check_stops(text, step);
  return 0;
}
