#include "server/wire/assembler.hpp"

#include <utility>

namespace lockstep::server {
namespace {

AnswerEvent::Kind kind_of(text::ToolCallEvent::Kind kind) {
  switch (kind) {
    case text::ToolCallEvent::Kind::Begin:
      return AnswerEvent::Kind::CallBegin;
    case text::ToolCallEvent::Kind::Arguments:
      return AnswerEvent::Kind::CallArguments;
    case text::ToolCallEvent::Kind::End:
      return AnswerEvent::Kind::CallEnd;
    default:
      return AnswerEvent::Kind::Content;
  }
}

}  // namespace

void AnswerAssembler::push(std::string_view bytes, std::vector<AnswerEvent>& out) {
  if (ended() || bytes.empty()) return;
  const std::string text = characters_.push(bytes);
  if (options_.split) {
    add_split(splitter_.push(text), out);
  } else {
    add_content(text, out);
  }
}

void AnswerAssembler::finish(std::vector<AnswerEvent>& out) {
  if (!ended()) {
    const std::string rest = characters_.finish();
    if (options_.split) {
      add_split(splitter_.push(rest), out);
      if (!ended()) add_split(splitter_.finish(), out);
    } else {
      add_content(rest, out);
    }
  }
  if (!call_ended_) {
    add_text(stop_.finish(), out);
    if (options_.tool_calls) add_calls(calls_.finish(), out);
  }
}

void AnswerAssembler::add_split(const text::ReasoningSplitter::Delta& delta, std::vector<AnswerEvent>& out) {
  if (!delta.reasoning.empty()) out.push_back({AnswerEvent::Kind::Reasoning, 0, delta.reasoning, false});
  add_content(delta.content, out);
}

void AnswerAssembler::add_content(std::string_view content, std::vector<AnswerEvent>& out) {
  if (!content.empty()) add_text(stop_.push(content), out);
}

void AnswerAssembler::add_text(std::string text, std::vector<AnswerEvent>& out) {
  if (text.empty()) return;
  if (options_.tool_calls) {
    add_calls(calls_.push(text), out);
  } else {
    out.push_back({AnswerEvent::Kind::Content, 0, std::move(text), false});
  }
}

void AnswerAssembler::add_calls(std::vector<text::ToolCallEvent> events, std::vector<AnswerEvent>& out) {
  for (text::ToolCallEvent& event : events) {
    if (call_ended_) return;
    out.push_back({kind_of(event.kind), event.call, std::move(event.text), event.complete});
    call_ended_ = options_.one_call && event.kind == text::ToolCallEvent::Kind::End;
  }
}

}  // namespace lockstep::server
