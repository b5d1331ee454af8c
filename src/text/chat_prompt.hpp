// A conversation as the tokens of a prompt: the chat template, then the tokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/json.hpp"
#include "base/result.hpp"
#include "text/chat_template.hpp"
#include "text/tokenizer.hpp"

namespace lockstep::text {

struct ChatPrompt {
  std::string text;
  std::vector<std::int32_t> tokens;
  bool reasoning_open = false;  ///< the prompt ends inside a <think> block, so the answer begins with reasoning
};

/// Renders and encodes. What the messages say is plain text: it makes no special tokens, and a <think> in it opens
/// nothing, unless `options.special_messages`. `stop` is EncodeOptions::stop. Errors: those of ChatTemplate::render()
/// and Tokenizer::encode().
Result<ChatPrompt> make_chat_prompt(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                    const OrderedJson& messages, const ChatOptions& options,
                                    std::function<bool()> stop = {});

/// Whether the last of the tokens <think> and </think> is the former.
[[nodiscard]] bool ends_in_reasoning(const Tokenizer& tokenizer, std::span<const std::int32_t> tokens);

}  // namespace lockstep::text
