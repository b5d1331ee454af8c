// From the bytes of tokens to reasoning, content and tool calls.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/wire/answer.hpp"
#include "text/reasoning.hpp"
#include "text/stop_strings.hpp"
#include "text/tool_call.hpp"
#include "text/utf8_stream.hpp"

namespace lockstep::server {

struct AssemblerOptions {
  bool split = true;            ///< separate reasoning from content; off for plain completions
  bool reasoning_open = false;  ///< the prompt ended inside a reasoning block
  bool tool_calls = false;      ///< the request offers tools
  bool one_call = false;        ///< the answer ends after its first call
  text::ToolSchemas schemas;
};

/// One choice's text. The stages, each incremental: whole UTF-8 characters, reasoning or content, stop strings, tool
/// calls. Stop strings are looked for in the content only, calls included, not in the reasoning. All events together
/// depend on the concatenated bytes alone, not on how tokens cut them.
class AnswerAssembler {
 public:
  AnswerAssembler(const AssemblerOptions& options, text::StopMatcher stop)
      : options_(options),
        splitter_({options.reasoning_open, options.tool_calls}),
        stop_(std::move(stop)),
        calls_(options.schemas) {}

  /// Takes the bytes of one more token and appends what is decided to `out`; nothing once ended().
  void push(std::string_view bytes, std::vector<AnswerEvent>& out);
  /// Ends the answer. Must be called once, also after ended().
  void finish(std::vector<AnswerEvent>& out);

  /// Whether a stop string, or the end of the only call, has ended the answer.
  [[nodiscard]] bool ended() const { return stop_.stopped() || call_ended_; }
  [[nodiscard]] std::string_view stop_string() const { return stop_.matched(); }
  /// Whether the next token would be reasoning.
  [[nodiscard]] bool in_reasoning() const { return options_.split && splitter_.in_reasoning(); }

 private:
  void add_split(const text::ReasoningSplitter::Delta& delta, std::vector<AnswerEvent>& out);
  void add_content(std::string_view content, std::vector<AnswerEvent>& out);
  void add_text(std::string text, std::vector<AnswerEvent>& out);
  void add_calls(std::vector<text::ToolCallEvent> events, std::vector<AnswerEvent>& out);

  AssemblerOptions options_;
  text::Utf8Stream characters_;
  text::ReasoningSplitter splitter_;
  text::StopMatcher stop_;
  text::ToolCallParser calls_;
  bool call_ended_ = false;
};

}  // namespace lockstep::server
