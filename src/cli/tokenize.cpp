// `lockstep tokenize [TEXT]`: the token ids of a text.
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <vector>

#include <CLI/App.hpp>

#include "base/json.hpp"
#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "cli/options.hpp"
#include "cli/standard_input.hpp"
#include "cli/terminal.hpp"
#include "text/tokenizer.hpp"
#include "text/utf8.hpp"

namespace lockstep::cli {
namespace {

struct TokenizeOptions {
  std::string model, text;
  bool json = false, no_special = false;
  CLI::Option* text_option = nullptr;
};

/// {"count": N, "ids": [...], "tokens": [the text of each; bytes that are not whole characters appear as U+FFFD]}
std::string as_json(const text::Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const std::int32_t id : ids) tokens.push_back(text::replace_invalid_utf8(tokenizer.token_bytes(id)));
  return OrderedJson{{"count", ids.size()}, {"ids", ids}, {"tokens", tokens}}.dump();
}

Status tokenize(const TokenizeOptions& options) {
  const InterruptScope interrupts;
  const auto directory = LOCKSTEP_TRY(find_model(options.model));
  const text::Tokenizer tokenizer = LOCKSTEP_TRY(text::Tokenizer::open(directory));
  std::string input = options.text;
  if (options.text_option->count() == 0) input = LOCKSTEP_TRY(read_stdin(text::Tokenizer::kMaxTextBytes, interrupts));
  text::EncodeOptions encode;
  encode.added_tokens = !options.no_special;
  encode.stop = [&] { return interrupts.requested(); };
  const auto ids = LOCKSTEP_TRY(tokenizer.encode(input, encode));
  const std::string line = options.json ? as_json(tokenizer, ids) : fmt::format("{}", fmt::join(ids, " "));
  return write_stdout(line + "\n");
}

}  // namespace

void add_tokenize(CLI::App& app, CommandContext& context) {
  const auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Print the token ids of a text");
  add_model_option(*command, options->model);
  options->text_option = command->add_option("text", options->text, "The text (default: standard input)");
  command->add_flag("--json", options->json, "Print count, ids and token texts as one JSON object");
  command->add_flag("--no-special", options->no_special, "Take <|im_start|>, <think> and the like as plain text");
  command->footer(
      "Examples:\n"
      "  lockstep tokenize \"What does bank mean?\"\n"
      "  lockstep tokenize --json < prompt.txt\n"
      "  lockstep tokenize < prompt.txt | lockstep detokenize");
  command->callback([&context, options] { context.status = tokenize(*options); });
}

}  // namespace lockstep::cli
