// `lockstep chat`: conversations at a terminal and from a script, and how signals end them.
#include <gtest/gtest.h>

#include <csignal>

#include "cli/process.hpp"
#include "cli/session.hpp"

namespace lockstep::test {
namespace {

/// An answer that goes on until it is stopped: at this temperature the end token is one of thousands.
const std::vector<std::string> kEndless{"chat",    "--no-think", "--temperature", "1000", "--top-p", "1",
                                        "--top-k", "0",          "--seed",        "1",    "--depth", "0"};

TEST(Chat, AScriptGetsTheAnswersOnStandardOutput) {
  const std::vector<std::string> arguments{"chat", "--no-think", "--temperature", "0", "--max-tokens", "6"};
  const Outcome first = run_lockstep(arguments, "What is a bank?\n");
  EXPECT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(first.err, "");
  EXPECT_GT(first.out.size(), 3U);
  // The same question after a reset has the same answer; a last line without its end counts.
  const Outcome twice = run_lockstep(arguments, "What is a bank?\n/reset\n\nWhat is a bank?");
  EXPECT_EQ(twice.exit_code, 0) << twice.err;
  EXPECT_EQ(twice.out, first.out + first.out);
}

TEST(Chat, AScriptGoesOnAfterABadLine) {
  const Outcome good = run_lockstep({"chat", "--no-think", "--temperature", "0", "--max-tokens", "6"}, "bank\n");
  const Outcome mixed = run_lockstep({"chat", "--no-think", "--temperature", "0", "--max-tokens", "6"},
                                     "ab\xff"
                                     "c\nbank\n");
  EXPECT_EQ(mixed.exit_code, 1);
  EXPECT_EQ(mixed.out, good.out);
  EXPECT_EQ(mixed.err, "lockstep: line 1: not valid UTF-8 at byte 2\nlockstep: 1 of 2 lines failed\n");
}

TEST(Chat, CommandsAndStatistics) {
  const Outcome result = run_lockstep({"chat", "--no-think", "--temperature", "0", "--max-tokens", "6"},
                                      "/help\n/frob\x1b[2J\n/stats\nhello\n/exit\nnever answered\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"/reset", "unknown command '/frob\\x1b[2J'", "prompt tokens", "forward passes"}) {
    EXPECT_NE(result.err.find(part), std::string::npos) << part << "\n" << result.err;
  }
  EXPECT_EQ(result.err.find("lockstep:"), std::string::npos) << result.err;
}

TEST(Chat, IdleCtrlCEndsAScript) {
  Session session(Talk::Pipes, {"chat", "--no-think", "--temperature", "0", "--max-tokens", "2"});
  session.send("hello\n/help\n");
  ASSERT_TRUE(session.expect("/exit or /quit ends")) << session.output();
  ASSERT_TRUE(session.expect("/help     this text")) << session.output();
  session.signal(SIGINT);
  EXPECT_EQ(session.wait(), 130) << session.output();
  EXPECT_NE(session.output().find("lockstep: interrupted"), std::string::npos);
}

TEST(Chat, SignalsEndAnIdleScript) {
  for (const int number : {SIGTERM, SIGHUP}) {
    Session session(Talk::Pipes, {"chat"});
    session.send("/help\n");
    ASSERT_TRUE(session.expect("this text")) << session.output();
    session.signal(number);
    EXPECT_EQ(session.wait(), 128 + number) << session.output();
  }
}

TEST(Chat, SignalsEndTheProgramAtThePromptAndRestoreTheTerminal) {
  for (const int number : {SIGTERM, SIGHUP}) {
    Session session(Talk::Terminal, {"chat"});
    ASSERT_TRUE(session.expect("> ")) << session.output();
    session.send("half a li");
    ASSERT_TRUE(session.expect("half a li")) << session.output();
    EXPECT_FALSE(session.cooked());
    session.signal(number);
    EXPECT_EQ(session.wait(), 128 + number) << session.output();
    EXPECT_TRUE(session.cooked());
  }
}

TEST(Chat, CtrlCAtThePromptDropsTheLine) {
  Session session(Talk::Terminal, {"chat"});
  ASSERT_TRUE(session.expect("> "));
  session.send("/exi");
  ASSERT_TRUE(session.expect("/exi"));
  session.send("\x03");
  ASSERT_TRUE(session.expect("> ")) << session.output();
  session.send("/stats\r/exit\r");
  EXPECT_EQ(session.wait(), 0) << session.output();
  EXPECT_TRUE(session.cooked());
}

TEST(Chat, CtrlCStopsTheAnswerOnly) {
  for (const Talk talk : {Talk::Terminal, Talk::Pipes}) {
    Session session(talk, kEndless);
    const bool terminal = talk == Talk::Terminal;
    for (int round = 0; round < 2; ++round) {
      ASSERT_TRUE(!terminal || session.expect("> ")) << session.output();
      session.send(terminal ? "Go on.\r" : "Go on.\n");
      ASSERT_TRUE(!terminal || session.expect("\n")) << session.output();  // the echo of the line
      ASSERT_TRUE(session.expect(" ")) << session.output();                // the answer has begun
      session.signal(SIGINT);
      ASSERT_TRUE(session.expect("(stopped)")) << session.output();
    }
    session.send(terminal ? "\r/exit\r" : "/exit\n");
    EXPECT_EQ(session.wait(), 0) << session.output();
  }
}

TEST(Chat, SigtermEndsTheProgramDuringAnAnswer) {
  Session session(Talk::Pipes, kEndless);
  session.send("Go on.\n");
  ASSERT_TRUE(session.expect(" ")) << session.output();
  session.signal(SIGTERM);
  EXPECT_EQ(session.wait(), 143) << session.output();
}

TEST(Chat, AFailedTurnEndsAScript) {
  const Outcome result = run_lockstep({"chat"}, std::string(400000, 'x') + " y\nhello\n");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("context"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace lockstep::test
