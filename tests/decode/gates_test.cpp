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
  EXPECT_EQ(report->gates.size(), 12U);
  for (const GateResult& gate : report->gates) {
    EXPECT_TRUE(gate.passed) << gate.name << ": " << gate.difference;
    EXPECT_EQ(gate.cases, gate.planned) << gate.name;
    EXPECT_GT(gate.cases, 0) << gate.name;
  }
  EXPECT_EQ(report->digest.size(), 64U);
  ASSERT_EQ(report->lanes.size(), kLanes);
  for (const LaneReport& lane : report->lanes) {
    const bool missing = lane.lane->id == LaneId::Frspec;  // the toy pack has no list
    EXPECT_EQ(lane.run.engaged > 0, !missing) << lane.lane->name << ": " << lane.run.detail;
    EXPECT_EQ(verdict_text(lane.verdict).starts_with("declined"), missing || lane.lane->id == LaneId::ArPipeline);
  }
}

TEST(Gates, ALaneThatIsOffHasNoGateAndDoesNotRun) {
  const auto artifact = artifact::Artifact::open(std::string(LOCKSTEP_TEST_DATA) + "/toy-pack");
  ASSERT_TRUE(artifact);
  GateOptions options;
  options.tokens = 3;
  options.seconds = 600;
  options.vocab = 512;
  options.prompt_lengths = {50};
  options.threads = 1;
  options.draft_tokens = {1, 5, 9, 100, 101, 300};
  for (const LaneId id : {LaneId::GdnCapture, LaneId::PleCachedAux, LaneId::QsaPooledRowsel}) {
    const LaneInfo& off = known_lanes()[static_cast<std::size_t>(id)];
    options.lanes = Lanes::from_user(std::vector{std::string(off.name)}).value();
    const auto report = run_gates(*artifact, options, {});
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->passed());
    const LaneReport& lane = report->lanes.at(static_cast<std::size_t>(off.id));
    EXPECT_EQ(verdict_text(lane.verdict), "off (--disable-optimization)") << off.name;
    EXPECT_EQ(lane.run.engaged, 0U) << off.name;
    for (const GateResult& gate : report->gates) {
      EXPECT_FALSE(gate.name.starts_with(fmt::format("lane {}", off.name))) << gate.name;
    }
  }
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
