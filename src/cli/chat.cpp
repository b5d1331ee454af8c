// lockstep chat: a conversation at the terminal.
#include <CLI/App.hpp>
#include <memory>
#include <optional>

#include "base/printable.hpp"
#include "cli/chat_engine.hpp"
#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "cli/line_reader.hpp"
#include "cli/standard_input.hpp"
#include "cli/terminal.hpp"

namespace lockstep::cli {
namespace {

struct Options {
  EngineOptions engine;
  AnswerOptions answer;
};

constexpr const char* kHelp =
    "Type a message and Enter. Ctrl-C stops an answer, Ctrl-D, /exit or /quit ends the conversation.\n"
    "  /reset    forget the conversation\n"
    "  /stats    print token counts and speed after each answer, or stop doing so\n"
    "  /help     this text\n";

Error interrupted() {
  return {ErrorKind::Cancelled, "interrupted"};
}

class Conversation {
 public:
  Conversation(ChatEngine& engine, InterruptScope& interrupts)
      : engine_(engine), interrupts_(interrupts), stats_(engine.options().stats) {
    reset();
  }

  /// What a script gets to know at the end: whether all of its lines were answered.
  [[nodiscard]] Status outcome() const {
    if (failed_ == 0 || stdin_is_terminal()) return {};
    return fail(ErrorKind::Invalid, "{} of {} lines failed", failed_, lines_);
  }

  /// Acts on one line; false ends the conversation.
  Result<bool> line(const std::string& text) {
    ++lines_;
    if (const Status valid = check_utf8(text, fmt::format("line {}", lines_)); !valid) {
      give_up(valid.error());
      return true;
    }
    if (text == "/exit" || text == "/quit") return false;
    if (text == "/help") {
      write_stderr(kHelp);
    } else if (text == "/reset") {
      reset();
    } else if (text == "/stats") {
      stats_ = !stats_;
    } else if (text.starts_with('/')) {
      write_stderr(fmt::format("unknown command '{}'; /help lists them\n", printable(text, 80)));
    } else if (text.find_first_not_of(" \t") != std::string::npos) {
      LOCKSTEP_TRY(turn(text));
    }
    return true;
  }

 private:
  void reset() {
    messages_ = OrderedJson::array();
    const std::string& system = engine_.options().system;
    if (!system.empty()) messages_.push_back({{"role", "system"}, {"content", system}});
  }

  Status turn(const std::string& text) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    const Result<Prompt> prompt = engine_.chat_prompt(messages_);
    if (!prompt) return take_back(prompt.error());
    AnswerPrinter printer;
    Answer partial;
    const Result<Answer> answer = engine_.answer(
        *prompt, true, [&] { return interrupts_.requested(); },
        [&](std::string_view reasoning, std::string_view content) { return printer.print(reasoning, content); },
        partial);
    LOCKSTEP_TRY(printer.finish());
    if (stdout_error() != 0) return answer ? Status{} : tl::unexpected(answer.error());
    if (!answer && answer.error().kind != ErrorKind::Cancelled) return take_back(answer.error());
    if (interrupts_.ending()) return tl::unexpected(answer ? interrupted() : answer.error());
    if (!answer) {
      write_stderr("(stopped)\n");
      interrupts_.reset();
    }
    // A stopped answer stays in the conversation as far as it went.
    messages_.push_back(
        {{"role", "assistant"}, {"reasoning_content", partial.reasoning}, {"content", partial.content}});
    if (stats_) print_stats(engine_.stats(), partial, engine_.describe(), engine_.lanes());
    return {};
  }

  /// A line that failed is reported, and the conversation goes on without it.
  void give_up(const Error& error) {
    complain(error.message);
    ++failed_;
  }
  Status take_back(const Error& error) {
    give_up(error);
    messages_.erase(messages_.size() - 1);
    return {};
  }

  ChatEngine& engine_;
  InterruptScope& interrupts_;
  bool stats_;
  OrderedJson messages_;
  std::size_t lines_ = 0, failed_ = 0;
};

Status chat(const Options& options) {
  InterruptScope interrupts;
  const std::unique_ptr<ChatEngine> engine = LOCKSTEP_TRY(ChatEngine::create(options.engine, options.answer));
  Conversation conversation(*engine, interrupts);
  LineReader reader(interrupts);
  const bool person = stdin_is_terminal();
  if (interrupts.requested()) return tl::unexpected(interrupted());
  if (person) write_stderr(kHelp);
  for (;;) {
    const std::optional<std::string> line = LOCKSTEP_TRY(reader.next());
    if (line) {
      if (!LOCKSTEP_TRY(conversation.line(*line))) return conversation.outcome();
      continue;
    }
    if (!interrupts.requested()) return conversation.outcome();
    // Ctrl-C at the prompt drops the line; a script that waits for its next line has no other way to end.
    if (!person || interrupts.ending()) return tl::unexpected(interrupted());
    interrupts.reset();
  }
}

}  // namespace

void add_chat(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("chat", "Talk with the model");
  add_engine_options(*command, options->engine);
  add_answer_options(*command, options->answer);
  command->footer(
      "Examples:\n"
      "  lockstep chat\n"
      "  lockstep chat -m ~/models/Flash-Next --system \"Answer briefly.\" --effort low");
  command->callback([options, &context] { context.status = chat(*options); });
}

}  // namespace lockstep::cli
