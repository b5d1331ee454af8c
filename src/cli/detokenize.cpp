// `lockstep detokenize [IDS...]`: the text of token ids.
#include <charconv>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/App.hpp>

#include "base/json.hpp"
#include "base/printable.hpp"
#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "cli/options.hpp"
#include "cli/standard_input.hpp"
#include "cli/terminal.hpp"
#include "text/tokenizer.hpp"

namespace lockstep::cli {
namespace {

constexpr std::string_view kSeparators = " \t\r\n,";
constexpr std::size_t kMaxWord = 40;  // of a wrong one, in the message
constexpr std::size_t kMaxInputBytes = std::size_t{64} << 20;

struct DetokenizeOptions {
  std::string model;
  std::vector<std::string> ids;
  bool json = false, skip_special = false;
};

using Ids = std::vector<std::int32_t>;

/// What cannot be a token id of any model is wrong usage, wherever it stands; an id beyond this model's vocabulary is
/// not.
template <class... Args>
tl::unexpected<Error> no_ids(fmt::format_string<Args...> format, Args&&... args) {
  return fail(ErrorKind::Usage, "token ids: {}", fmt::format(format, std::forward<Args>(args)...));
}

/// A JSON list of ids, or an object with that list as "ids" as `tokenize --json` prints it.
Result<Ids> ids_of_json(std::string_view text) {
  const Result<Json> parsed = parse_json(text, "token ids");
  if (!parsed) return tl::unexpected(Error{ErrorKind::Usage, parsed.error().message});
  const Json& root = *parsed;
  const Json& list = root.is_object() && root.contains("ids") ? root["ids"] : root;
  if (!list.is_array()) return no_ids("expected a JSON list, or an object with \"ids\"");
  Ids ids;
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
      return no_ids("element {} is {}, not an id", ids.size(),
                    printable(id.dump(-1, ' ', false, Json::error_handler_t::replace), kMaxWord));
    }
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

/// JSON, or numbers between white space and commas.
Result<Ids> parse_ids(std::string_view text) {
  std::size_t begin = std::min(text.find_first_not_of(kSeparators), text.size());
  if (begin < text.size() && (text[begin] == '[' || text[begin] == '{')) return ids_of_json(text);
  Ids ids;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find_first_of(kSeparators, begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    std::int32_t id = -1;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || rest != word.data() + word.size() || id < 0) {
      return no_ids("word {} is '{}', not an id", ids.size() + 1, printable(word, kMaxWord));
    }
    ids.push_back(id);
    begin = std::min(text.find_first_not_of(kSeparators, end), text.size());
  }
  return ids;
}

Status detokenize(const DetokenizeOptions& options) {
  const InterruptScope interrupts;
  const auto directory = LOCKSTEP_TRY(find_model(options.model));
  const text::Tokenizer tokenizer = LOCKSTEP_TRY(text::Tokenizer::open(directory));
  std::string input;
  for (const std::string& word : options.ids) input += word + " ";
  if (options.ids.empty()) input = LOCKSTEP_TRY(read_stdin(kMaxInputBytes, interrupts));
  const Ids ids = LOCKSTEP_TRY(parse_ids(input));
  const std::string text = LOCKSTEP_TRY(tokenizer.decode_checked(ids, options.skip_special));
  if (options.json) return write_stdout(OrderedJson{{"text", text}}.dump() + "\n");
  // The text and nothing else, so that it can be piped; a terminal gets its line end.
  LOCKSTEP_TRY(write_stdout(text));
  return is_terminal(Stream::Out) ? write_stdout("\n") : Status();
}

}  // namespace

void add_detokenize(CLI::App& app, CommandContext& context) {
  const auto options = std::make_shared<DetokenizeOptions>();
  CLI::App* command = app.add_subcommand("detokenize", "Print the text of token ids");
  add_model_option(*command, options->model);
  command->add_option("ids", options->ids, "Token ids, or a JSON list of them (default: standard input)");
  command->add_flag("--json", options->json, "Print a JSON object with the text");
  command->add_flag("--skip-special", options->skip_special, "Leave out special tokens such as <|im_end|>");
  command->footer(
      "Examples:\n"
      "  lockstep detokenize 6101 262 6102\n"
      "  echo '[6101, 262, 6102]' | lockstep detokenize --skip-special\n"
      "  lockstep tokenize --json < prompt.txt | lockstep detokenize");
  command->callback([&context, options] { context.status = detokenize(*options); });
}

}  // namespace lockstep::cli
