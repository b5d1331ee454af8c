#include "cli/app.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "base/printable.hpp"
#include "cli/arguments.hpp"
#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "cli/terminal.hpp"
#include "cli/version.hpp"

namespace lockstep::cli {
namespace {

using AddCommand = void (*)(CLI::App&, CommandContext&);

// To add a command, write cli/NAME.cpp, declare add_NAME in cli/command.hpp and name it here, in the order of the help.
constexpr std::array kCommands = std::to_array<AddCommand>({
    add_inspect,
    add_plan,
    add_pack,
    add_synth,
    add_run,
    add_chat,
    add_serve,
    add_logits,
    add_tokenize,
    add_detokenize,
    add_verify,
    add_frspec,
    add_bench,
    add_ab,
    add_perplexity,
    add_compare,
    add_completion,
});

constexpr const char* kExamples =
    "Examples:\n"
    "  lockstep run -p \"What does bank mean?\"   answer one prompt with the demo model\n"
    "  lockstep COMMAND --help                  options and examples of one command\n"
    "\n"
    "Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted (129, 143), 141 reader of the output gone.";

void configure(CLI::App& app, CommandContext& context) {
  app.name("lockstep");
  app.description("Deterministic inference for Qwen3.8-Flash-Next (qwen4_exp) models.");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.set_version_flag("-V,--version", fmt::format("lockstep {} ({})", version(), commit()));
  app.require_subcommand(0, 1);
  app.get_formatter()->column_width(34);
  app.footer(kExamples);
  for (const AddCommand add : kCommands) add(app, context);
  unmark_values(app);
}

/// Reports wrong usage and where the right usage is written.
int usage_error(const CLI::App& app, std::string_view message) {
  std::string command = "lockstep";
  for (const CLI::App* used : app.get_subcommands()) command += " " + used->get_name();
  complain(fmt::format("{} (see '{} --help')", printable(message), command));
  return kExitUsage;
}

int report(const CLI::App& app, const Status& status) {
  if (status) return kExitSuccess;
  if (stdout_error() == EPIPE) return kExitBrokenPipe;  // nobody is left who wants to read why
  switch (status.error().kind) {
    case ErrorKind::Usage:
      return usage_error(app, status.error().message);
    case ErrorKind::Cancelled:
      complain(status.error().message);
      return 128 + InterruptScope::signal();
    default:
      complain(status.error().message);
      return kExitFailure;
  }
}

bool has_command(const CLI::App& app, std::string_view name) {
  return std::ranges::any_of(app.get_subcommands({}),
                             [&](const CLI::App* command) { return command->get_name() == name; });
}

/// Parses, and runs the callback of the command that was named.
int dispatch(CLI::App& app, const CommandContext& context, int argc, char** argv) {
  if (argc > 1 && argv[1][0] != '-' && !has_command(app, argv[1])) {
    return usage_error(app, fmt::format("unknown command '{}'", argv[1]));
  }
  try {
    std::vector<std::string> arguments = literal_arguments(app, argc, argv);
    std::ranges::reverse(arguments);  // the order that parse() wants
    app.parse(std::move(arguments));
  } catch (const CLI::CallForVersion& request) {
    return report(app, write_stdout(std::string(request.what()) + "\n"));
  } catch (const CLI::CallForHelp&) {
    return report(app, write_stdout(app.help()));
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error.what());
  }
  if (app.get_subcommands().empty()) return usage_error(app, "a command is required");
  return report(app, context.status);
}

}  // namespace

int run_app(int argc, char** argv) {
  reserve_standard_streams();
  // A reader that goes away is an error of write(), not a signal, so that files under way are cleaned up.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // likewise a file that grows beyond the shell's limit
  int code = kExitFailure;
  try {
    CommandContext context;
    CLI::App app;
    configure(app, context);
    code = dispatch(app, context, argc, argv);
  } catch (const std::exception& error) {
    complain(fmt::format("internal error: {}", error.what()));
  }
  // Output that was lost turns success into failure; the command may already have reported it.
  const Status flushed = flush_stdout();
  if (stdout_error() == EPIPE) return kExitBrokenPipe;
  if (flushed || code != kExitSuccess) return code;
  complain(flushed.error().message);
  return flushed.error().kind == ErrorKind::Cancelled ? 128 + InterruptScope::signal() : kExitFailure;
}

}  // namespace lockstep::cli
