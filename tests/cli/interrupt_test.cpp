#include "cli/interrupt.hpp"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include <gtest/gtest.h>

namespace lockstep::cli {
namespace {

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

TEST(Interrupt, AnIgnoredHangUpStaysIgnored) {
  const int status = status_of([] {
    std::signal(SIGHUP, SIG_IGN);
    {
      const InterruptScope scope;
      ::raise(SIGHUP);
      if (scope.requested()) ::_exit(1);
    }
    ::raise(SIGHUP);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
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
