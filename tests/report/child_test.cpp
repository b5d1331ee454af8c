// Children that die, that never get ready, and that outlive nothing.
#include "report/child.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

namespace lockstep::report {
namespace {

/// Time that passes only when someone waits for a child that says nothing.
class JumpingWaiter : public Waiter {
 public:
  double now() override { return time_; }
  bool wait(std::span<pollfd> /*descriptors*/, double seconds) override {
    time_ += seconds;
    return !interrupted;
  }
  bool interrupted = false;

 private:
  double time_ = 0;
};

ChildCommand shell(const std::string& script) {
  return {.arguments = {"/bin/sh", "-c", script}, .environment = {{"GREETING", "hello"}}, .without = {"HOME"}};
}

bool alive(pid_t id) {
  return ::kill(id, 0) == 0;
}

TEST(Child, SaysItsLine) {
  SystemWaiter waiter(-1);
  auto child = Child::start(shell("echo one >&2; echo \"ready: $GREETING ${HOME-none}\" >&2; exec sleep 100"));
  ASSERT_TRUE(child);
  const auto line = child->expect_line("ready: ", 30, waiter);
  ASSERT_TRUE(line) << line.error().message;
  EXPECT_EQ(*line, "ready: hello none");
  const pid_t id = child->id();
  EXPECT_TRUE(alive(id));
  child->stop(30, waiter);
  EXPECT_FALSE(alive(id));
}

TEST(Child, OneThatDiesIsReportedWithItsLastLine) {
  SystemWaiter waiter(-1);
  auto child = Child::start(shell("echo 'no such model' >&2; exit 3"));
  auto line = child->expect_line("ready", 30, waiter);
  ASSERT_FALSE(line);
  EXPECT_EQ(line.error().kind, ErrorKind::Internal);
  EXPECT_EQ(line.error().message, "the server ended with code 3: no such model");
  auto second = Child::start(shell("exit 2"));
  EXPECT_EQ(second->expect_line("ready", 30, waiter).error().kind, ErrorKind::Usage);
  auto third = Child::start({.arguments = {"/nowhere"}, .environment = {}, .without = {}});
  EXPECT_NE(third->expect_line("ready", 30, waiter).error().message.find("cannot be executed"), std::string::npos);
}

TEST(Child, OneThatNeverGetsReadyTimesOut) {
  JumpingWaiter waiter;
  auto child = Child::start(shell("exec sleep 100"));
  const pid_t id = child->id();
  const auto line = child->expect_line("ready", 600, waiter);
  ASSERT_FALSE(line);
  EXPECT_EQ(line.error().kind, ErrorKind::Limit);
  waiter.interrupted = true;
  EXPECT_EQ(child->expect_line("ready", 600, waiter).error().kind, ErrorKind::Cancelled);
  // It ignores nothing, but nobody waits for it either: the second signal is SIGKILL.
  child->stop(20, waiter);
  EXPECT_FALSE(alive(id));
}

TEST(Child, NoneOutlivesItsObject) {
  pid_t id = -1;
  {
    const auto child = Child::start(shell("trap '' TERM; exec sleep 100"));
    id = child->id();
    EXPECT_TRUE(alive(id));
  }
  EXPECT_FALSE(alive(id));
}

TEST(Child, NoneOutlivesItsParent) {
  // A parent of its own is killed; the pipe's other end closes when the grandchild is gone too.
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    ::fcntl(ends[1], F_SETFD, 0);  // the grandchild inherits it
    const auto child = Child::start(shell("echo x >&" + std::to_string(ends[1]) + "; exec sleep 100"));
    ::pause();
    ::_exit(0);
  }
  ::close(ends[1]);
  char byte = 0;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);  // it runs
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  while (::read(ends[0], &byte, 1) > 0) {
  }
  ::close(ends[0]);
}

TEST(Child, RequestsToNobodyFail) {
  SystemWaiter waiter(-1);
  auto child = Child::start(shell("exec sleep 100"));
  const auto body = child->request(1, "GET", "/", "", "", 5, waiter);
  ASSERT_FALSE(body);
  EXPECT_EQ(body.error().kind, ErrorKind::Io);
}

}  // namespace
}  // namespace lockstep::report
