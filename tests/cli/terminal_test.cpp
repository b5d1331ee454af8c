#include "cli/terminal.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include <gtest/gtest.h>

namespace lockstep::cli {
namespace {

/// Runs `check` in a child whose standard output is a pseudo terminal; true when it returned true.
template <class F>
bool holds_on_a_terminal(F check) {
  const int controller = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (controller < 0 || ::grantpt(controller) != 0 || ::unlockpt(controller) != 0) return false;
  const pid_t child = ::fork();
  if (child == 0) {
    const int terminal = ::open(::ptsname(controller), O_RDWR | O_NOCTTY);
    ::dup2(terminal, STDOUT_FILENO);
    ::_exit(check() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(controller);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(Terminal, ColoursOnATerminal) {
  EXPECT_TRUE(holds_on_a_terminal([] {
    ::unsetenv("NO_COLOR");
    ::setenv("TERM", "xterm", 1);
    return is_terminal(Stream::Out) && use_colour(Stream::Out) &&
           styled("x", Style::Red, Stream::Out) == "\x1b[31mx\x1b[0m" && terminal_width() == 80;
  }));
}

TEST(Terminal, NoColorAndDumbTerminalsAreRespected) {
  EXPECT_TRUE(holds_on_a_terminal([] {
    ::setenv("TERM", "xterm", 1);
    ::setenv("NO_COLOR", "", 1);
    const bool empty_counts_as_unset = use_colour(Stream::Out);
    ::setenv("NO_COLOR", "1", 1);
    const bool off = !use_colour(Stream::Out) && styled("x", Style::Bold, Stream::Out) == "x";
    ::unsetenv("NO_COLOR");
    ::setenv("TERM", "dumb", 1);
    const bool dumb = !use_colour(Stream::Out);
    ::unsetenv("TERM");
    return empty_counts_as_unset && off && dumb && !use_colour(Stream::Out);
  }));
}

TEST(Terminal, AFileIsNoTerminal) {
  testing::internal::CaptureStdout();
  const bool terminal = is_terminal(Stream::Out) || use_colour(Stream::Out);
  const std::string text = styled("x", Style::Cyan, Stream::Out);
  EXPECT_TRUE(write_stdout("written"));
  EXPECT_TRUE(flush_stdout());
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "written");
  EXPECT_FALSE(terminal);
  EXPECT_EQ(text, "x");
  EXPECT_EQ(stdout_error(), 0);
}

}  // namespace
}  // namespace lockstep::cli
