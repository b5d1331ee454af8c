#include "decode/gates.hpp"

#include <gtest/gtest.h>

namespace lockstep::decode {
namespace {

TEST(Gates, AllPassOnTheToyPack) {
  const auto artifact = artifact::Artifact::open(std::string(LOCKSTEP_TEST_DATA) + "/toy-pack");
  ASSERT_TRUE(artifact);
  GateOptions options;
  options.tokens = 8;
  options.seconds = 600;
  options.vocab = 512;
  options.prompt_lengths = {1, 40};
  options.threads = 1;
  const auto report = run_gates(*artifact, options, {});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->passed());
  EXPECT_EQ(report->gates.size(), 8U);
  for (const GateResult& gate : report->gates) {
    EXPECT_TRUE(gate.passed) << gate.name << ": " << gate.difference;
    EXPECT_EQ(gate.cases, gate.planned) << gate.name;
    EXPECT_GT(gate.cases, 0) << gate.name;
  }
  EXPECT_EQ(report->digest.size(), 64U);
}

TEST(Gates, NoCaseStartsAfterTheBudget) {
  const auto artifact = artifact::Artifact::open(std::string(LOCKSTEP_TEST_DATA) + "/toy-pack");
  ASSERT_TRUE(artifact);
  GateOptions options;
  options.seconds = -1;
  options.vocab = 512;
  const auto report = run_gates(*artifact, options, {});
  ASSERT_TRUE(report);
  for (const GateResult& gate : report->gates) EXPECT_EQ(gate.cases, 0) << gate.name;
}

}  // namespace
}  // namespace lockstep::decode
