// The message of an A/B run, made to fit a number of tokens.
#include <algorithm>
#include <map>

#include "cli/ab_window.hpp"
#include "text/chat_prompt.hpp"

namespace lockstep::cli {
namespace {

class Cutter {
 public:
  Cutter(const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template, const report::Cell& cell)
      : tokenizer_(tokenizer), template_(chat_template) {
    options_.add_generation_prompt = true;
    if (cell.no_think) options_.extra["enable_thinking"] = false;
    if (!cell.effort.empty()) options_.extra["reasoning_effort"] = cell.effort;
  }

  [[nodiscard]] Result<std::int64_t> prompt_tokens(const std::string& message) const {
    const OrderedJson messages = OrderedJson::array({{{"role", "user"}, {"content", message}}});
    const text::ChatPrompt prompt = LOCKSTEP_TRY(text::make_chat_prompt(template_, tokenizer_, messages, options_));
    return static_cast<std::int64_t>(prompt.tokens.size());
  }

  /// The text again and again, as at least `count` plain tokens; exactly that many are kept.
  [[nodiscard]] Result<std::vector<std::int32_t>> fill(const std::string& text, std::size_t count) const {
    std::string all = text;
    while (true) {
      std::vector<std::int32_t> ids = LOCKSTEP_TRY(tokenizer_.encode(all, {.added_tokens = false}));
      if (ids.size() >= count) {
        ids.resize(count);
        return ids;
      }
      const std::size_t copies = count / std::max<std::size_t>(ids.size(), 1) + 1;
      std::string more;
      for (std::size_t i = 0; i < copies; ++i) more += all + "\n";
      all = std::move(more);
    }
  }

  /// The first `count` tokens as text. A cut inside a character drops the character.
  [[nodiscard]] std::string head(std::span<const std::int32_t> ids, std::size_t count) const {
    std::string text = tokenizer_.decode(ids.first(count), false);
    constexpr std::string_view kReplacement = "\xef\xbf\xbd";
    while (text.ends_with(kReplacement)) text.resize(text.size() - kReplacement.size());
    return text;
  }

 private:
  const text::Tokenizer& tokenizer_;
  const text::ChatTemplate& template_;
  text::ChatOptions options_;
};

}  // namespace

Result<AbMessage> make_message(const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template,
                               const std::string& text, std::int64_t tokens, const report::Cell& cell) {
  // Chat templates trim a message, so white space alone is no message.
  if (text.find_first_not_of(" \t\r\n\v\f") == std::string::npos) return fail(ErrorKind::Usage, "the prompt is empty");
  const Cutter cutter(tokenizer, chat_template, cell);
  if (tokens == 0) return AbMessage{text, LOCKSTEP_TRY(cutter.prompt_tokens(text))};
  const std::int64_t frame = LOCKSTEP_TRY(cutter.prompt_tokens("a")) - 1;
  if (tokens <= frame) {
    return fail(ErrorKind::Usage, "--prompt-tokens {}: the chat template alone takes {}", tokens, frame);
  }
  const std::vector<std::int32_t> ids = LOCKSTEP_TRY(cutter.fill(text, static_cast<std::size_t>(tokens)));
  // A cut text may make a token more or less than it was cut to: correct the cut by what is missing, a few times.
  AbMessage best;
  std::int64_t cut = tokens - frame;
  for (int attempt = 0; attempt < 12 && cut >= 1; ++attempt) {
    std::string message = cutter.head(ids, static_cast<std::size_t>(std::min(cut, tokens)));
    const std::int64_t count = LOCKSTEP_TRY(cutter.prompt_tokens(message));
    if (count <= tokens && count > best.prompt_tokens) best = {std::move(message), count};
    if (best.prompt_tokens == tokens) break;
    cut += count < tokens && attempt < 6 ? tokens - count : count > tokens ? tokens - count : -1;
  }
  if (best.prompt_tokens == 0) return fail(ErrorKind::Usage, "the text cannot be cut to {} tokens", tokens);
  return best;
}

}  // namespace lockstep::cli
