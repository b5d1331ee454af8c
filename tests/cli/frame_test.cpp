// The frame around the commands, seen from outside: exit codes, messages, output that cannot be written.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>
#include <string>

#include "cli/process.hpp"

namespace lockstep::test {
namespace {

bool is_one_line(const std::string& text) {
  return text.ends_with('\n') && std::ranges::count(text, '\n') == 1;
}

Outcome run_into(Output output, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), LOCKSTEP_BINARY);
  return run_process({.arguments = std::move(arguments), .output = output});
}

TEST(Frame, HelpGoesToStdout) {
  for (const char* flag : {"-h", "--help"}) {
    const Outcome result = run_lockstep({flag});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.err, "");
    EXPECT_NE(result.out.find("Examples:"), std::string::npos);
    EXPECT_NE(result.out.find("completion"), std::string::npos);
  }
}

TEST(Frame, HelpOfACommandShowsItsExamples) {
  const Outcome result = run_lockstep({"completion", "--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_NE(result.out.find("lockstep completion"), std::string::npos);
  EXPECT_NE(result.out.find("Examples:"), std::string::npos);
}

TEST(Frame, Version) {
  const Outcome result = run_lockstep({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(std::regex_match(result.out, std::regex(R"(lockstep \d+\.\d+\.\d+ \([A-Za-z0-9._+/-]+\)\n)")))
      << result.out;
}

TEST(Frame, WrongUsageIsOneLineAndExitCode2) {
  const struct {
    std::vector<std::string> arguments;
    std::string message;
  } cases[] = {
      {{}, "a command is required"},
      {{"frobnicate"}, "unknown command 'frobnicate'"},
      {{"--frobnicate"}, "--frobnicate"},
      {{"completion"}, "shell is required"},
      {{"completion", "tcsh"}, "tcsh"},
      {{"completion", "bash", "--frobnicate"}, "--frobnicate"},
      {{"completion", "bash", "more"}, "more"},
      {{""}, "unknown command ''"},
      {{"line\nbreak"}, "line break"},
  };
  for (const auto& wrong : cases) {
    SCOPED_TRACE(wrong.message);
    const Outcome result = run_lockstep(wrong.arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(is_one_line(result.err)) << result.err;
    EXPECT_TRUE(result.err.starts_with("lockstep: ")) << result.err;
    EXPECT_NE(result.err.find(wrong.message), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("--help'"), std::string::npos) << result.err;
  }
}

TEST(Frame, TheHintNamesTheCommand) {
  EXPECT_NE(run_lockstep({"completion", "--bad"}).err.find("(see 'lockstep completion --help')"), std::string::npos);
}

TEST(Frame, AFullDiskIsAFailure) {
  for (const char* flag : {"--version", "--help"}) {
    const Outcome result = run_into(Output::Full, {flag});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.err, "lockstep: standard output: cannot write: No space left on device\n");
  }
  EXPECT_EQ(run_into(Output::Full, {"completion", "zsh"}).exit_code, 1);
}

TEST(Frame, AClosedStdoutIsAFailure) {
  const Outcome result = run_into(Output::Closed, {"completion", "bash"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(is_one_line(result.err)) << result.err;
}

TEST(Frame, AReaderThatLeftEndsTheProgramQuietly) {
  const Outcome result = run_into(Output::BrokenPipe, {"completion", "bash"});
  EXPECT_EQ(result.exit_code, 141);
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.err, "");
}

TEST(Frame, NoColourCodesAwayFromATerminal) {
  for (const char* flag : {"--help", "--version"}) {
    EXPECT_EQ(run_lockstep({flag}).out.find('\x1b'), std::string::npos);
  }
}

TEST(Completion, BashScriptIsValidAndCompletesCommands) {
  const Outcome script = run_lockstep({"completion", "bash"});
  ASSERT_EQ(script.exit_code, 0);
  const std::string probe = script.out +
                            "COMP_WORDS=(lockstep compl); COMP_CWORD=1; _lockstep; echo \"${COMPREPLY[*]}\"\n"
                            "COMP_WORDS=(lockstep completion f); COMP_CWORD=2; _lockstep; echo \"${COMPREPLY[*]}\"\n"
                            "COMP_WORDS=(lockstep completion --h); COMP_CWORD=2; _lockstep; echo \"${COMPREPLY[*]}\"\n";
  const Outcome result = run_process({.arguments = {"/bin/bash", "-u"}, .input = probe});
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out, "completion\nfish\n--help\n");
}

/// The commands that the help lists: the first words of the lines after "Subcommands:".
std::vector<std::string> commands_in_help() {
  const std::string help = run_lockstep({"--help"}).out;
  std::vector<std::string> commands;
  std::size_t line = help.find("Subcommands:\n");
  if (line == std::string::npos) return commands;
  for (line = help.find('\n', line) + 1; help.compare(line, 2, "  ") == 0; line = help.find('\n', line) + 1) {
    if (help[line + 2] != ' ') commands.push_back(help.substr(line + 2, help.find(' ', line + 2) - line - 2));
  }
  return commands;
}

TEST(Completion, EveryShellKnowsEveryCommand) {
  const std::vector<std::string> commands = commands_in_help();
  ASSERT_FALSE(commands.empty());
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Outcome script = run_lockstep({"completion", shell});
    EXPECT_EQ(script.exit_code, 0);
    for (const std::string& command : commands) {
      EXPECT_NE(script.out.find(command), std::string::npos) << shell << " does not know " << command;
    }
  }
}

TEST(Frame, EveryCommandIsDocumentedAndHasExamples) {
  const auto read = [](const std::string& name) {
    std::ifstream file(LOCKSTEP_SOURCE_DIR "/" + name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string guide = read("docs/cli.md");
  const std::string manual = read("docs/man/lockstep.1");
  for (const std::string& command : commands_in_help()) {
    SCOPED_TRACE(command);
    EXPECT_NE(guide.find("| `" + command + "` |"), std::string::npos) << "missing in docs/cli.md";
    EXPECT_NE(manual.find(".It Cm " + command), std::string::npos) << "missing in docs/man/lockstep.1";
    const Outcome help = run_lockstep({command, "--help"});
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_NE(help.out.find("Examples:"), std::string::npos) << "its help has no examples";
  }
}

TEST(Process, ReportsExitCodesSignalsInputAndTimeouts) {
  EXPECT_EQ(run_process({.arguments = {"/bin/sh", "-c", "exit 7"}}).exit_code, 7);
  EXPECT_EQ(run_process({.arguments = {"/bin/sh", "-c", "kill -TERM $$"}}).signal, 15);
  EXPECT_EQ(run_process({.arguments = {"/bin/cat"}, .input = std::string(1 << 20, 'x')}).out.size(), 1U << 20);
  EXPECT_EQ(run_process({.arguments = {"/bin/sh", "-c", "echo $PROBE"}, .environment = {{"PROBE", "set"}}}).out,
            "set\n");
  EXPECT_TRUE(run_process({.arguments = {"/bin/sleep", "60"}, .timeout = std::chrono::seconds(0)}).timed_out);
}

}  // namespace
}  // namespace lockstep::test
