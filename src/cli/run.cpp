// lockstep run: one prompt, one answer.
#include <CLI/App.hpp>
#include <memory>

#include "cli/chat_engine.hpp"
#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "cli/standard_input.hpp"
#include "cli/terminal.hpp"

namespace lockstep::cli {
namespace {

constexpr std::size_t kMaxPromptBytes = std::size_t{64} << 20;

struct Options {
  EngineOptions engine;
  AnswerOptions answer;
  std::string prompt;
  bool prompt_given = false, raw = false;
};

Result<std::string> read_prompt(const Options& options, const InterruptScope& interrupts) {
  if (options.prompt_given) return options.prompt;
  if (stdin_is_terminal()) {
    return fail(ErrorKind::Usage, "there is no prompt: give --prompt TEXT, or the prompt on standard input");
  }
  return read_stdin(kMaxPromptBytes, interrupts);
}

OrderedJson conversation(const AnswerOptions& options, const std::string& prompt) {
  OrderedJson messages = OrderedJson::array();
  if (!options.system.empty()) messages.push_back({{"role", "system"}, {"content", options.system}});
  messages.push_back({{"role", "user"}, {"content", prompt}});
  return messages;
}

Status run(const Options& options) {
  const InterruptScope interrupts;
  const std::string text = LOCKSTEP_TRY(read_prompt(options, interrupts));
  // Chat templates trim a message, so white space alone is no message; a raw prompt may be anything.
  if (text.empty() || (!options.raw && text.find_first_not_of(" \t\r\n\v\f") == std::string::npos)) {
    return fail(ErrorKind::Usage, "the prompt is empty");
  }
  // A raw prompt may be any bytes; a message goes through the template.
  if (!options.raw) {
    Status valid = check_utf8(text, options.prompt_given ? "--prompt" : "standard input");
    if (!valid && options.prompt_given) valid.error().kind = ErrorKind::Usage;
    LOCKSTEP_TRY(valid);
  }
  const std::unique_ptr<ChatEngine> engine = LOCKSTEP_TRY(ChatEngine::create(options.engine, options.answer));
  Prompt prompt;
  if (options.raw) {
    prompt = LOCKSTEP_TRY(engine->raw_prompt(text));
  } else {
    prompt = LOCKSTEP_TRY(engine->chat_prompt(conversation(options.answer, text)));
  }
  AnswerPrinter printer;
  Answer partial;
  const Result<Answer> answer = engine->answer(
      prompt, !options.raw, [&] { return interrupts.requested(); },
      [&](std::string_view reasoning, std::string_view content) { return printer.print(reasoning, content); }, partial);
  LOCKSTEP_TRY(printer.finish());
  if (!answer) return tl::unexpected(answer.error());
  if (options.answer.stats) print_stats(engine->stats(), *answer, engine->describe(), engine->lanes());
  return {};
}

}  // namespace

void add_run(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("run", "Answer one prompt; only the answer goes to standard output");
  add_engine_options(*command, options->engine);
  add_in_memory_option(*command, options->engine);
  CLI::Option* prompt = command->add_option("-p,--prompt", options->prompt, "The prompt (default: standard input)");
  CLI::Option* raw = command->add_flag("--raw", options->raw, "Complete the text as it is, without the chat template");
  add_answer_options(*command, options->answer);
  for (const char* of_template : {"--system", "--no-think", "--special", "--effort"})
    raw->excludes(command->get_option(of_template));
  command->footer(
      "Examples:\n"
      "  lockstep run -p \"What does bank mean?\"\n"
      "  lockstep run --no-think --temperature 0 --stats < question.txt\n"
      "  lockstep run -m ~/models/Flash-Next --seed 7 -p \"Name three rivers.\"\n"
      "  lockstep run --in-memory toy --max-tokens 20 --stats -p hello    random weights, for measuring");
  command->callback([options, prompt, &context] {
    options->prompt_given = prompt->count() > 0;
    context.status = run(*options);
  });
}

}  // namespace lockstep::cli
