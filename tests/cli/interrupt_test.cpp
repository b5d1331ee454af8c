#include "cli/interrupt.hpp"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include <gtest/gtest.h>

#include "base/file.hpp"
#include "support/scratch.hpp"

namespace lockstep::cli {
namespace {

/// A test runner in the background may have been started with some of them ignored.
const bool kNoneIgnored = [] {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);
  return true;
}();

/// Runs `body` in a child and returns its wait status.
template <class F>
int status_of(F body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST(Interrupt, TheFirstSignalRaisesTheFlag) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const InterruptScope scope;
    EXPECT_FALSE(scope.requested());
    ::raise(signal);
    EXPECT_TRUE(scope.requested());
    EXPECT_TRUE(scope.flag().load());
    EXPECT_EQ(InterruptScope::signal(), signal);
    EXPECT_EQ(scope.ending(), signal != SIGINT);
    pollfd wait{scope.descriptor(), POLLIN, 0};
    EXPECT_EQ(::poll(&wait, 1, 0), 1);
  }
}

TEST(Interrupt, ResetForgetsCtrlCAndNothingElse) {
  InterruptScope scope;
  ::raise(SIGINT);
  scope.reset();
  EXPECT_FALSE(scope.requested());
  pollfd wait{scope.descriptor(), POLLIN, 0};
  EXPECT_EQ(::poll(&wait, 1, 0), 0);
  ::raise(SIGINT);
  EXPECT_TRUE(scope.requested());
  ::raise(SIGTERM);
  scope.reset();
  EXPECT_TRUE(scope.requested());
  EXPECT_TRUE(scope.ending());
  EXPECT_EQ(InterruptScope::signal(), SIGTERM);
}

TEST(Interrupt, IgnoredSignalsStayIgnored) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const int status = status_of([&] {
      std::signal(signal, SIG_IGN);
      {
        const InterruptScope scope;
        ::raise(signal);
        if (scope.requested()) ::_exit(1);
      }
      ::raise(signal);
    });
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << signal;
  }
}

TEST(Interrupt, TheSecondSignalEndsTheProcess) {
  const int status = status_of([] {
    const InterruptScope scope;
    ::raise(SIGINT);
    ::raise(SIGINT);
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGINT);
}

TEST(Interrupt, TheSecondSignalLeavesNoTemporaryFile) {
  const test::ScratchDirectory scratch;
  const int status = status_of([&] {
    const InterruptScope scope;
    const AtomicFile file = AtomicFile::create(scratch / "file").value();
    ::raise(SIGTERM);
    ::raise(SIGTERM);
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(Interrupt, OneOfEachKindIsNoSecondOne) {
  const int status = status_of([] {
    const InterruptScope scope;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::raise(signal);
    if (!scope.ending()) ::_exit(1);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(Interrupt, IsRememberedAfterItsScope) {
  {
    const InterruptScope scope;
    EXPECT_FALSE(InterruptScope::asked());
    ::raise(SIGINT);
    EXPECT_TRUE(InterruptScope::asked());
  }
  EXPECT_TRUE(InterruptScope::asked());
  EXPECT_FALSE(InterruptScope::flag().load());
  EXPECT_EQ(InterruptScope::descriptor(), -1);
  const InterruptScope next;
  EXPECT_FALSE(InterruptScope::asked());
}

TEST(Interrupt, WithoutAScopeSignalsActAsUsual) {
  const int status = status_of([] {
    { const InterruptScope scope; }
    ::raise(SIGTERM);
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGTERM);
}

}  // namespace
}  // namespace lockstep::cli
