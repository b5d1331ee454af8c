// Splits a streamed answer into reasoning and content.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::text {

struct ReasoningOptions {
  /// Whether the prompt ended inside an open <think> block, as the generation prompt of a thinking chat does.
  bool open = true;
  /// Whether a tool call that begins inside the block ends it; set it when the request offers tools.
  bool tool_calls = false;
};

/// The answer has at most one reasoning block, at its beginning; after the first character of content, <think> and
/// </think> are ordinary text. Where the prompt left no block open, an answer that starts with <think> opens one; where
/// it did, a repeated <think> at the start is dropped. The block ends
///   - at </think>;
///   - with `tool_calls`, before `<tool_call>` white space `<function=`, which then begins the content: such a call is
///     meant, while a bare mention of the tag is not;
///   - with the answer: an end token inside the block ends the turn, and all text was reasoning.
/// Line ends next to the tags belong to the tags and are dropped: those before and after <think>, </think> and before a
/// call that ends the block. All pieces together depend on the concatenated text alone, not on how it was cut.
class ReasoningSplitter {
 public:
  explicit ReasoningSplitter(const ReasoningOptions& options)
      : options_(options), state_(options.open ? State::ReasoningStart : State::AnswerStart) {}

  struct Delta {
    std::string reasoning, content;  ///< reasoning comes first
  };
  /// Takes more text and returns what is decided. At most a tag's length and line ends are held back.
  Delta push(std::string_view text) { return advance(text, false); }
  /// Ends the answer and returns the rest.
  Delta finish() { return advance({}, true); }

  /// Whether the next text would be reasoning. After finish(): whether the answer ended inside the block.
  [[nodiscard]] bool in_reasoning() const { return state_ == State::ReasoningStart || state_ == State::Reasoning; }

 private:
  enum class State : std::uint8_t {
    AnswerStart,     ///< nothing but line ends so far, and no open block
    ReasoningStart,  ///< nothing but line ends in the block so far
    Reasoning,
    ContentStart,  ///< nothing but line ends since the block ended
    Content,
  };
  Delta advance(std::string_view text, bool final);
  /// Consumes something from the front of `rest`; false when more text must decide.
  bool step(std::string_view& rest, bool final, Delta& delta);
  bool step_start(std::string_view& rest, bool final, Delta& delta);
  bool step_reasoning(std::string_view& rest, bool final, Delta& delta);

  ReasoningOptions options_;
  State state_;
  bool opened_ = false;    ///< the answer itself has written <think>
  std::string pending_;    ///< the front of a tag
  std::string line_ends_;  ///< before something that decides whether they belong to a tag
};

}  // namespace lockstep::text
