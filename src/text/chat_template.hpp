// Turns a conversation into the text of a prompt by running the model's own chat template, a Jinja program
// (docs/chat-template.md).
#pragma once

#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.hpp"
#include "base/result.hpp"
#include "text/byte_range.hpp"
#include "text/jinja/limits.hpp"

namespace lockstep::text {

/// A prompt. `literal` are the bytes that came from the conversation and not from the template; special tokens that
/// touch them must be tokenized as plain text. Ascending, disjoint, not adjacent.
struct Rendered {
  std::string text;
  std::vector<ByteRange> literal;
};

/// What a template may see besides the messages.
struct ChatOptions {
  OrderedJson tools;  ///< an array, or null
  bool add_generation_prompt = false;
  /// More variables, an object: enable_thinking, reasoning_effort, ... Its strings are literal.
  OrderedJson extra = OrderedJson::object();
  /// The texts of these tokens; empty means those of the model's tokenizer_config.json, if there are any.
  std::string bos_token, eos_token;
  /// Special tokens written out in message texts become those tokens; else they are plain text. For make_chat_prompt().
  bool special_messages = false;
  /// The time that strftime_now prints; by default the local time of the machine.
  std::function<std::tm()> clock;
};

/// Names that ChatOptions::extra cannot have: the conversation's parts, the special tokens and the template language's
/// own functions and words; and what is no name there.
[[nodiscard]] bool is_reserved_variable(std::string_view name);

/// A compiled chat template. Immutable, cheap to copy, usable from several threads at once.
class ChatTemplate {
 public:
  /// Errors: Invalid (syntax, with the line), Unsupported (what chat templates do not need), Limit.
  static Result<ChatTemplate> compile(std::string source, TemplateLimits limits = {});

  /// The template of a model: chat_template.jinja, or chat_template in tokenizer_config.json, which may be a list of
  /// named templates ("default", and "tool_use" for conversations with tools). Errors: NotFound if the model has none,
  /// and those of compile().
  static Result<ChatTemplate> open(const std::filesystem::path& model_dir, TemplateLimits limits = {});

  /// Renders a conversation: `messages` is an array of objects. Errors: Invalid with the template's own words behind
  /// "the chat template refuses the conversation: " if it does so (raise_exception), Invalid with the line of the
  /// template if it fails, Limit if it uses too much.
  [[nodiscard]] Result<Rendered> render(const OrderedJson& messages, const ChatOptions& options) const;

  /// The source of the (default) template, for identities and caches.
  [[nodiscard]] std::string_view source() const;

 private:
  struct Compiled;
  explicit ChatTemplate(std::shared_ptr<const Compiled> compiled) : compiled_(std::move(compiled)) {}
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace lockstep::text
