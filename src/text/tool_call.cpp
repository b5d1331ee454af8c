#include "text/tool_call.hpp"

#include <algorithm>
#include <initializer_list>
#include <utility>

namespace lockstep::text {
namespace {

using Kind = ToolCallEvent::Kind;

constexpr std::string_view kCallOpen = "<tool_call>";
constexpr std::string_view kCallClose = "</tool_call>";
constexpr std::string_view kFunctionOpen = "<function=";
constexpr std::string_view kFunctionClose = "</function>";
constexpr std::string_view kParameterOpen = "<parameter=";
constexpr std::string_view kParameterClose = "</parameter>";

bool is_line_end(char c) {
  return c == '\n' || c == '\r';
}
bool is_space(char c) {
  return is_line_end(c) || c == ' ' || c == '\t';
}

/// The best of several alternatives.
Scan best(std::initializer_list<Scan> scans) {
  return std::max(scans);
}

}  // namespace

std::vector<ToolCallEvent> ToolCallParser::advance(std::string_view text, bool final) {
  pending_ += text;
  rest_ = pending_;
  final_ = final;
  while (!rest_.empty() && step()) {
  }
  pending_ = std::string(rest_);
  rest_ = {};
  if (final) {
    if (state_ == State::Text) {
      emit(Kind::Text, std::exchange(line_ends_, {}));
    } else {
      end_call(state_ == State::AfterFunction);
    }
  }
  return std::exchange(events_, {});
}

bool ToolCallParser::step() {
  switch (state_) {
    case State::Text:
      return step_text();
    case State::Body:
      return step_body();
    case State::ValueStart:
      return step_value_start();
    case State::Value:
      return step_value();
    case State::AfterFunction:
      return step_after_function();
  }
  return false;
}

bool ToolCallParser::step_text() {
  const char first = rest_.front();
  if (is_line_end(first)) {
    if (!after_call_) line_ends_ += first;
    rest_.remove_prefix(1);
    return true;
  }
  if (first == '<') {
    const TagScanner opener = TagScanner(rest_).literal(kCallOpen).gap().literal(kFunctionOpen).name();
    if (opener.result() == Scan::Partial && !final_) return false;
    if (opener.result() == Scan::Full) {
      line_ends_.clear();
      rest_.remove_prefix(opener.length());
      begin_call(opener.last_name());
      return true;
    }
  }
  after_call_ = false;
  emit(Kind::Text, std::exchange(line_ends_, {}));
  const std::size_t length = std::min(rest_.find_first_of("<\r\n", 1), rest_.size());
  emit(Kind::Text, rest_.substr(0, length));
  rest_.remove_prefix(length);
  return true;
}

bool ToolCallParser::step_body() {
  if (rest_.front() != '<') {
    rest_.remove_prefix(1);
    return true;
  }
  const TagScanner parameter = TagScanner(rest_).literal(kParameterOpen).name();
  const TagScanner function_close = TagScanner(rest_).literal(kFunctionClose);
  const TagScanner call_close = TagScanner(rest_).literal(kCallClose);
  if (parameter.result() == Scan::Full) {
    rest_.remove_prefix(parameter.length());
    begin_value(parameter.last_name());
  } else if (function_close.result() == Scan::Full) {
    rest_.remove_prefix(function_close.length());
    emit(Kind::Arguments, "}");
    state_ = State::AfterFunction;
  } else if (call_close.result() == Scan::Full) {
    rest_.remove_prefix(call_close.length());
    emit(Kind::Arguments, "}");
    end_call(true);
  } else {
    const Scan scan = best({parameter.result(), function_close.result(), call_close.result()});
    if (scan == Scan::Partial && !final_) return false;
    rest_.remove_prefix(1);
  }
  return true;
}

bool ToolCallParser::step_value_start() {
  if (rest_ == "\r" && !final_) return false;
  if (rest_.substr(0, 2) == "\r\n") rest_.remove_prefix(1);
  if (rest_.front() == '\n') rest_.remove_prefix(1);
  state_ = State::Value;
  return true;
}

/// Whether a value ends at the tag that `text` starts with.
Scan ToolCallParser::scan_value_end(std::string_view text) const {
  const TagScanner close = TagScanner(text).literal(kParameterClose).gap();
  const TagScanner function = TagScanner(text).literal(kFunctionClose).gap();
  if (final_ && (close.ends_text() || function.ends_text())) return Scan::Full;
  return best({TagScanner(close).literal(kParameterOpen).result(), TagScanner(close).literal(kFunctionClose).result(),
               TagScanner(close).literal(kCallClose).result(), TagScanner(function).literal(kCallClose).result()});
}

bool ToolCallParser::step_value() {
  const bool line_end = rest_.front() == '\n';
  const std::string_view tag = rest_.substr(line_end ? 1 : 0);
  if (tag.empty() && !final_) return false;
  if (!tag.empty() && tag.front() == '<') {
    const Scan end = scan_value_end(tag);
    if (end == Scan::Full) {
      rest_ = tag;
      if (rest_.starts_with(kParameterClose)) rest_.remove_prefix(kParameterClose.size());
      end_value();
      return true;
    }
    if (end == Scan::Partial && !final_) return false;
  }
  const std::size_t length = std::min(rest_.find_first_of("<\n", 1), rest_.size());
  add_to_value(rest_.substr(0, length));
  rest_.remove_prefix(length);
  return true;
}

bool ToolCallParser::step_after_function() {
  if (is_space(rest_.front())) {
    rest_.remove_prefix(1);
    return true;
  }
  const TagScanner call_close = TagScanner(rest_).literal(kCallClose);
  const TagScanner function = TagScanner(rest_).literal(kFunctionOpen).name();
  const Scan scan = best({call_close.result(), function.result()});
  if (scan == Scan::Partial && !final_) return false;
  end_call(true);
  if (scan == Scan::Partial) rest_ = {};  // a tag cut by the end of the answer is no content
  if (call_close.result() == Scan::Full) rest_.remove_prefix(call_close.length());
  if (function.result() == Scan::Full) {
    rest_.remove_prefix(function.length());
    begin_call(function.last_name());
  }
  return true;
}

/// Adds an event, or joins it to the last one.
void ToolCallParser::emit(Kind kind, std::string_view text) {
  if (text.empty()) return;
  const std::size_t call = kind == Kind::Text ? 0 : calls_ - 1;
  const bool joins = kind == Kind::Text || kind == Kind::Arguments;
  if (joins && !events_.empty() && events_.back().kind == kind) {
    events_.back().text += text;
  } else {
    events_.push_back({kind, call, std::string(text), false});
  }
}

void ToolCallParser::begin_call(std::string_view name) {
  ++calls_;
  function_ = name;
  keys_.clear();
  emit(Kind::Begin, name);
  emit(Kind::Arguments, "{");
  state_ = State::Body;
}

void ToolCallParser::end_call(bool complete) {
  events_.push_back({Kind::End, calls_ - 1, {}, complete});
  state_ = State::Text;
  after_call_ = true;
}

void ToolCallParser::begin_value(std::string_view key) {
  state_ = State::ValueStart;
  value_.clear();
  dropped_ = keys_.contains(key);
  if (dropped_) return;
  std::string text = keys_.empty() ? "\"" : ",\"";
  append_json_escaped(key, text);
  text += "\":";
  keys_.emplace(key);
  types_ = schemas_.types(function_, key);
  if (types_.only_string()) text += '"';
  emit(Kind::Arguments, text);
}

void ToolCallParser::add_to_value(std::string_view text) {
  if (dropped_) return;
  if (!types_.only_string()) {
    value_ += text;
    return;
  }
  std::string escaped;
  append_json_escaped(text, escaped);
  emit(Kind::Arguments, escaped);
}

void ToolCallParser::end_value() {
  state_ = State::Body;
  if (!dropped_) emit(Kind::Arguments, types_.only_string() ? "\"" : argument_json(value_, types_));
}

void append_events(const std::vector<ToolCallEvent>& events, ToolCallAnswer& answer) {
  for (const ToolCallEvent& event : events) {
    switch (event.kind) {
      case Kind::Text:
        answer.content += event.text;
        break;
      case Kind::Begin:
        answer.calls.push_back({event.text, {}, false});
        break;
      case Kind::Arguments:
        answer.calls.at(event.call).arguments += event.text;
        break;
      case Kind::End:
        answer.calls.at(event.call).complete = event.complete;
        break;
    }
  }
}

ToolCallAnswer parse_tool_calls(std::string_view text, const ToolSchemas& schemas) {
  ToolCallParser parser(schemas);
  ToolCallAnswer answer;
  append_events(parser.push(text), answer);
  append_events(parser.finish(), answer);
  return answer;
}

}  // namespace lockstep::text
