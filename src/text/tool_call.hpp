// Incremental parser of the tool calls in an answer.
//
//   <tool_call>
//   <function=NAME>
//   <parameter=KEY>
//   value
//   </parameter>
//   </function>
//   </tool_call>
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tool_call_scan.hpp"
#include "text/tool_call_schema.hpp"

namespace lockstep::text {

/// One step of an answer with calls, in the order of the answer.
struct ToolCallEvent {
  enum class Kind : std::uint8_t {
    Text,       ///< `text`: content outside of calls
    Begin,      ///< `text`: the name of the function
    Arguments,  ///< `text`: a piece of the JSON object of arguments
    End,        ///< the call is over
  };
  Kind kind = Kind::Text;
  std::size_t call = 0;  ///< 0, 1, ... in order; not for Text
  std::string text;
  /// For End: whether the function's end was seen. Otherwise the answer was cut; the arguments are then a prefix of a
  /// JSON object, and running the call would be wrong.
  bool complete = false;
  bool operator==(const ToolCallEvent&) const = default;
};

/// A whole call.
struct ToolCall {
  std::string name, arguments;
  bool complete = false;
  bool operator==(const ToolCall&) const = default;
};

/// Rules, where the format leaves them open:
///   - A call begins at `<tool_call>`, white space, `<function=NAME>`. Anything else is text, also a bare
///   `<tool_call>`.
///   - One line end after `<parameter=KEY>` and one before `</parameter>` belong to the tags; the rest of the value
///   counts.
///   - `</parameter>` ends a value only if white space and `<parameter=`, `</function>` or `</tool_call>` follow, or
///   the
///     answer ends there; otherwise it is part of the value. `</function>` ends a value whose `</parameter>` is missing
///     only if white space and `</tool_call>`, or the end of the answer, follow. A value that contains exactly those
///     sequences cannot be told apart.
///   - `</tool_call>` may be missing at the end of the answer or before another `<function=NAME>`, `</function>` before
///     `</tool_call>`.
///   - What else stands between parameters is dropped, and so is a parameter whose name was used before in the call.
///   - Line ends directly before and after a call are not content.
///   - Arguments are written by argument_json() with the types of the tool list. String parameters stream as they come;
///     the others appear when they are complete.
/// Events, with adjacent texts and argument pieces joined, depend on the concatenated text alone. Held back are at most
/// a few hundred bytes of a possible tag, line ends before a possible call, and values that are not strings.
/// If the pieces pushed are valid UTF-8, so are the texts of all events.
class ToolCallParser {
 public:
  explicit ToolCallParser(ToolSchemas schemas = {}) : schemas_(std::move(schemas)) {}

  std::vector<ToolCallEvent> push(std::string_view text) { return advance(text, false); }
  /// Ends the answer; a call that is still open ends incomplete.
  std::vector<ToolCallEvent> finish() { return advance({}, true); }

  /// How many calls have begun.
  [[nodiscard]] std::size_t calls() const { return calls_; }

 private:
  enum class State : std::uint8_t { Text, Body, ValueStart, Value, AfterFunction };

  std::vector<ToolCallEvent> advance(std::string_view text, bool final);
  /// Each consumes something from rest_ or changes the state; false when more text must decide.
  bool step();
  bool step_text();
  bool step_body();
  bool step_value_start();
  bool step_value();
  bool step_after_function();
  [[nodiscard]] Scan scan_value_end(std::string_view text) const;

  void emit(ToolCallEvent::Kind kind, std::string_view text);
  void begin_call(std::string_view name);
  void end_call(bool complete);
  void begin_value(std::string_view key);
  void add_to_value(std::string_view text);
  void end_value();

  ToolSchemas schemas_;
  State state_ = State::Text;
  std::size_t calls_ = 0;
  std::string function_;
  std::set<std::string, std::less<>> keys_;  ///< of the current call
  JsonTypes types_;                          ///< of the current value
  bool dropped_ = false;                     ///< the current value's key was used before
  std::string value_;                        ///< the current value, unless it streams
  std::string line_ends_;                    ///< in the text, before something that may be a call
  bool after_call_ = false;                  ///< line ends here follow a call
  std::string pending_;                      ///< the front of a tag
  // During advance():
  std::string_view rest_;
  bool final_ = false;
  std::vector<ToolCallEvent> events_;
};

/// A whole answer: its text outside of calls, and the calls.
struct ToolCallAnswer {
  std::string content;
  std::vector<ToolCall> calls;
};

/// Joins events; feeding it all events of a stream gives what parsing at once would.
void append_events(const std::vector<ToolCallEvent>& events, ToolCallAnswer& answer);

/// Parses a whole answer.
ToolCallAnswer parse_tool_calls(std::string_view text, const ToolSchemas& schemas = {});

}  // namespace lockstep::text
