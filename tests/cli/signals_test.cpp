// Signals to commands that wait at standard input or write a file: one line, the documented exit code, nothing left.
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "cli/process.hpp"
#include "cli/session.hpp"
#include "support/scratch.hpp"

namespace lockstep::test {
namespace {

const std::string kDemo = LOCKSTEP_SOURCE_DIR "/models/demo";

/// More than a pipe holds: when it is sent, the command has begun to read.
const std::string kMoreThanAPipeHolds(1 << 18, 'a');

TEST(Signals, EndACommandThatWaitsAtStandardInput) {
  const ScratchDirectory scratch;
  const std::string out = (scratch / "out.json").string();
  const std::vector<std::vector<std::string>> commands = {{"run"},
                                                          {"run", "--raw"},
                                                          {"tokenize"},
                                                          {"detokenize"},
                                                          {"frspec", "--text", "-", "--out", out},
                                                          {"frspec", "--ids", "-", "--out", out},
                                                          {"perplexity", kDemo, "--text", "-", "--out", out},
                                                          {"compare", kDemo, kDemo, "--text", "-", "--out", out}};
  int which = 0;
  for (const std::vector<std::string>& command : commands) {
    const int number = std::vector{SIGINT, SIGTERM, SIGHUP}[static_cast<std::size_t>(which++) % 3];
    SCOPED_TRACE(command[0] + " and signal " + std::to_string(number));
    Session session(Talk::Pipes, command);
    session.send(kMoreThanAPipeHolds);
    session.signal(number);
    EXPECT_EQ(session.wait(), 128 + number) << session.output();
    EXPECT_EQ(session.output(), "lockstep: interrupted\n");
    EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
  }
}

TEST(Signals, EndACommandWhoseOutputNobodyTakes) {
  // The reasoning is over when the first of the answer comes, and waits for room that never comes.
  Session run(Talk::NoOutput, {"run", "-p", "What does bank mean?", "--seed", "1", "--temperature", "0"});
  ASSERT_TRUE(run.expect("\n\n")) << run.output();
  run.signal(SIGINT);
  EXPECT_EQ(run.wait(), 128 + SIGINT);
  EXPECT_TRUE(run.output().ends_with("lockstep: interrupted\n")) << run.output();
}

TEST(Signals, EndACommandWhoseMessagesNobodyTakes) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    Session session(Talk::NoErrors, {"tokenize"});
    session.send(kMoreThanAPipeHolds);
    session.signal(number);
    EXPECT_EQ(session.wait(), 128 + number);
    EXPECT_EQ(session.output(), "");
  }
}

TEST(Signals, ASweepThatIsInterruptedLeavesNoDirectory) {
  const ScratchDirectory scratch;
  Session session(Talk::Pipes, {"ab", "-m", kDemo, "--contexts", "64", "--gate-timeout", "1000", "--max-load", "0",
                                "--max-busy", "0", "--out", (scratch / "a" / "b").string()});
  ASSERT_TRUE(session.expect("waiting for a quiet machine")) << session.output();
  session.signal(SIGINT);
  EXPECT_EQ(session.wait(), 128 + SIGINT) << session.output();
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(Signals, EndTheMakingOfAModelInMemory) {
  Session session(Talk::Pipes, {"run", "--in-memory", "mid", "-p", "x", "--max-tokens", "1"});
  ASSERT_TRUE(session.expect("synthetic model mid")) << session.output();
  session.signal(SIGTERM);
  EXPECT_EQ(session.wait(), 128 + SIGTERM) << session.output();
  EXPECT_NE(session.output().find("\nlockstep: interrupted\n"), std::string::npos) << session.output();
}

}  // namespace
}  // namespace lockstep::test
