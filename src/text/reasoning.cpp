#include "text/reasoning.hpp"

#include <algorithm>

#include "text/tool_call_scan.hpp"

namespace lockstep::text {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";
constexpr std::string_view kLineEnds = "\r\n";

/// Moves the characters up to the first of `stops` from `rest` to `out`.
void take_until(std::string_view stops, std::string_view& rest, std::string& out) {
  const std::size_t length = std::min(rest.find_first_of(stops), rest.size());
  out += rest.substr(0, length);
  rest.remove_prefix(length);
}

/// Moves the line ends at the front of `rest` to `out`.
void take_line_ends(std::string_view& rest, std::string& out) {
  const std::size_t length = std::min(rest.find_first_not_of(kLineEnds), rest.size());
  out += rest.substr(0, length);
  rest.remove_prefix(length);
}

}  // namespace

ReasoningSplitter::Delta ReasoningSplitter::advance(std::string_view text, bool final) {
  pending_ += text;
  Delta delta;
  std::string_view rest = pending_;
  while (!rest.empty() && step(rest, final, delta)) {
  }
  pending_ = std::string(rest);
  if (final) {
    // No tag follows these any more. At the start of the block they follow its opening tag.
    if (state_ == State::AnswerStart) delta.content += line_ends_;
    if (state_ == State::Reasoning) delta.reasoning += line_ends_;
    line_ends_.clear();
  }
  return delta;
}

bool ReasoningSplitter::step(std::string_view& rest, bool final, Delta& delta) {
  switch (state_) {
    case State::AnswerStart:
    case State::ReasoningStart:
      return step_start(rest, final, delta);
    case State::Reasoning:
      return step_reasoning(rest, final, delta);
    case State::ContentStart:
      take_line_ends(rest, line_ends_);
      if (rest.empty()) return true;
      line_ends_.clear();
      state_ = State::Content;
      return true;
    case State::Content:
      delta.content += rest;
      rest = {};
      return true;
  }
  return true;
}

bool ReasoningSplitter::step_start(std::string_view& rest, bool final, Delta& delta) {
  take_line_ends(rest, line_ends_);
  if (rest.empty()) return true;
  const Scan open = opened_ ? Scan::No : TagScanner(rest).literal(kOpen).result();
  if (open == Scan::Partial && !final) return false;
  const bool in_block = state_ == State::ReasoningStart;
  if (open == Scan::Full) {
    rest.remove_prefix(kOpen.size());
    opened_ = true;
    state_ = State::ReasoningStart;
  } else {
    if (!in_block) delta.content += line_ends_;
    state_ = in_block ? State::Reasoning : State::Content;
  }
  line_ends_.clear();
  return true;
}

bool ReasoningSplitter::step_reasoning(std::string_view& rest, bool final, Delta& delta) {
  take_line_ends(rest, line_ends_);
  if (rest.empty()) return true;
  const Scan close = TagScanner(rest).literal(kClose).result();
  const Scan call = options_.tool_calls ? scan_call_opener(rest) : Scan::No;
  if (close == Scan::Full || call == Scan::Full) {
    if (close == Scan::Full) rest.remove_prefix(kClose.size());
    line_ends_.clear();
    state_ = close == Scan::Full ? State::ContentStart : State::Content;
    return true;
  }
  if (!final && (close == Scan::Partial || call == Scan::Partial)) return false;
  delta.reasoning += line_ends_;
  line_ends_.clear();
  delta.reasoning += rest.front();
  rest.remove_prefix(1);
  take_until("<\r\n", rest, delta.reasoning);
  return true;
}

}  // namespace lockstep::text
