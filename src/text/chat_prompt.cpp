#include "text/chat_prompt.hpp"

#include <algorithm>
#include <utility>

namespace lockstep::text {

bool ends_in_reasoning(const Tokenizer& tokenizer, std::span<const std::int32_t> tokens) {
  const std::optional<std::int32_t> open = tokenizer.added_token("<think>");
  const std::optional<std::int32_t> close = tokenizer.added_token("</think>");
  if (!open) return false;
  const auto last = std::find_if(tokens.rbegin(), tokens.rend(),
                                 [&](std::int32_t id) { return id == *open || (close && id == *close); });
  return last != tokens.rend() && *last == *open;
}

Result<ChatPrompt> make_chat_prompt(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                    const OrderedJson& messages, const ChatOptions& options,
                                    std::function<bool()> stop) {
  Rendered rendered = LOCKSTEP_TRY(chat_template.render(messages, options));
  ChatPrompt prompt;
  EncodeOptions encode;
  encode.stop = std::move(stop);
  if (!options.special_messages) encode.literal = rendered.literal;
  prompt.tokens = LOCKSTEP_TRY(tokenizer.encode(rendered.text, encode));
  if (prompt.tokens.empty()) return fail(ErrorKind::Invalid, "the chat template makes nothing of these messages");
  prompt.reasoning_open = ends_in_reasoning(tokenizer, prompt.tokens);
  prompt.text = std::move(rendered.text);
  return prompt;
}

}  // namespace lockstep::text
