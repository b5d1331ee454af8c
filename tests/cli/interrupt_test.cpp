#include "cli/interrupt.hpp"

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
  for (const int signal : {SIGINT, SIGTERM}) {
    InterruptScope scope;
    EXPECT_FALSE(scope.requested());
    ::raise(signal);
    EXPECT_TRUE(scope.requested());
    EXPECT_TRUE(scope.flag().load());
    scope.reset();
    EXPECT_FALSE(scope.requested());
    ::raise(signal);
    EXPECT_TRUE(scope.requested());
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
