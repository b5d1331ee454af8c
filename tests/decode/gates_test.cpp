#include "decode/gates.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "decode/gate_run.hpp"
#include "support/forwarding_backend.hpp"
#include "support/scratch.hpp"

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
  EXPECT_TRUE(report->complete());
  EXPECT_EQ(report->gates.size(), 15U);
  for (const GateResult& gate : report->gates) {
    EXPECT_TRUE(gate.passed) << gate.name << ": " << gate.difference;
    EXPECT_EQ(gate.cases, gate.planned) << gate.name;
    EXPECT_GT(gate.cases, 0) << gate.name;
  }
  EXPECT_EQ(report->digest.size(), 64U);
  EXPECT_EQ(report->answers.size(), 7U);  // two prompts at three temperatures, and a long one
  EXPECT_GT(report->answers.back().request.prompt.size(), 40U);
  EXPECT_EQ(report->instruction_sets.size(), kernels::available_kernels().size());
  EXPECT_EQ(report->thread_counts, (std::vector<std::size_t>{1, 3}));
  EXPECT_EQ(verdict_text(report->lanes.at(static_cast<std::size_t>(LaneId::ArPipeline)).verdict),
            "armed (tried with mtp off)");
  ASSERT_EQ(report->lanes.size(), kLanes);
  for (const LaneReport& lane : report->lanes) {
    const bool missing = lane.lane->id == LaneId::Frspec;  // the toy pack has no list
    EXPECT_EQ(lane.run.engaged > 0, !missing) << lane.lane->name << ": " << lane.run.detail;
    EXPECT_EQ(verdict_text(lane.verdict).starts_with("declined"), missing);
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
  for (const GateResult& gate : report->gates) {
    if (gate.name == "identity" || gate.name == "tensor inventory") continue;  // cheap, and always done
    EXPECT_EQ(gate.cases, 0) << gate.name;
  }
  EXPECT_FALSE(report->complete());
}

TEST(Gates, ALaneThatFoundNothingToDoIsNotProved) {
  const auto artifact = artifact::Artifact::open(std::string(LOCKSTEP_TEST_DATA) + "/toy-pack");
  ASSERT_TRUE(artifact);
  GateOptions options;
  options.tokens = 1;  // no draft, and no second token
  options.seconds = 600;
  options.vocab = 512;
  options.prompt_lengths = {2};
  options.threads = 1;
  const auto report = run_gates(*artifact, options, {});
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_TRUE(report->passed());
  EXPECT_FALSE(report->complete());
  for (const GateResult& gate : report->gates) {
    if (gate.name == "lane mtp" || gate.name == "lane gdn_capture") {
      EXPECT_TRUE(gate.idle()) << gate.name;
    } else if (!gate.lane || gate.name == "lane qsa_pooled_rowsel") {  // which has the long prompt
      EXPECT_FALSE(gate.idle()) << gate.name;
    }
  }
}

/// Errs in one place, where the lane qsa_pooled_rowsel is installed: a bit of a key, or the logits.
class FaultyBackend final : public test::ForwardingBackend {
 public:
  FaultyBackend(std::unique_ptr<backend::Backend> inner, std::int64_t position, bool in_logits)
      : ForwardingBackend(std::move(inner)), position_(position), in_logits_(in_logits) {}

  void attention(const backend::AttentionWeights& weights, const float* u,
                 std::span<const backend::AttentionSlot> slots, std::int64_t rows, float* y) override {
    inner_->attention(weights, u, slots, rows, y);
    const backend::AttentionSlot& slot = slots[0];
    last_ = slot.position + slot.run.rows - 1;
    if (in_logits_ || !lanes().pooled_rowsel || slot.position > position_ || last_ < position_) return;
    slot.pages[position_ / 64][slot.layer_offset + static_cast<std::size_t>(position_ % 64)] ^= std::byte{1};
  }
  void project(const backend::Matrix& matrix, const float* u, std::int64_t rows, float* out) override {
    inner_->project(matrix, u, rows, out);
    if (in_logits_ && lanes().pooled_rowsel && last_ == position_) out[(rows - 1) * matrix.rows() + 7] += 1000;
  }

 private:
  std::int64_t position_, last_ = -1;
  bool in_logits_;
};

/// The report of a run with faults at a position behind the only prompt, and which gates name what.
Result<GateReport> with_fault(const artifact::Artifact& artifact, std::int64_t position, bool in_logits) {
  GateOptions options;
  options.tokens = 6;
  options.seconds = 600;
  options.vocab = 512;
  options.prompt_lengths = {10};
  options.threads = 1;
  options.wrap = [=](std::unique_ptr<backend::Backend> inner) {
    return std::make_unique<FaultyBackend>(std::move(inner), position, in_logits);
  };
  return run_gates(artifact, options, {});
}

bool has_rowsel(const GateResult& gate) {
  return gate.name == "lane qsa_pooled_rowsel" || gate.name == "all armed lanes";
}

TEST(Gates, AFaultInAKeyIsFoundWithItsStepAndStatePart) {
  const auto artifact = artifact::Artifact::open(std::string(LOCKSTEP_TEST_DATA) + "/toy-pack");
  ASSERT_TRUE(artifact);
  const auto report = with_fault(*artifact, 12, false);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_FALSE(report->passed());
  for (const GateResult& gate : report->gates) {
    EXPECT_EQ(gate.passed, !has_rowsel(gate)) << gate.name << ": " << gate.difference;
    if (gate.name != "lane qsa_pooled_rowsel") continue;
    EXPECT_NE(gate.difference.find("differs"), std::string::npos) << gate.difference;
    // The long prompt comes first in this gate and holds the position: the state is wrong before the first step.
    EXPECT_NE(gate.difference.find("before step 0, in: attention keys, values and index keys"), std::string::npos)
        << gate.difference;
    EXPECT_NE(gate.difference.find("qsa_pooled_rowsel"), std::string::npos) << gate.difference;
  }
}

TEST(Gates, AFaultInLogitsIsFoundWithItsToken) {
  const auto artifact = artifact::Artifact::open(std::string(LOCKSTEP_TEST_DATA) + "/toy-pack");
  ASSERT_TRUE(artifact);
  // The long prompt comes first in these gates; its token 2 is drawn from the row at the prompt's length plus one.
  const std::int64_t length = artifact->config().indexer_budget + 4 * artifact->config().indexer_ratio + 1;
  const auto report = with_fault(*artifact, length + 1, true);
  ASSERT_TRUE(report) << report.error().message;
  for (const GateResult& gate : report->gates) {
    if (gate.name != "lane qsa_pooled_rowsel") continue;
    EXPECT_FALSE(gate.passed);
    EXPECT_NE(gate.difference.find("token 2 differs: 7 instead of "), std::string::npos) << gate.difference;
    EXPECT_NE(gate.difference.find("before step 3, in: token history"), std::string::npos) << gate.difference;
  }
}

TEST(Gates, FilesThatChangeAreFound) {
  const test::ScratchDirectory scratch;
  std::filesystem::copy(std::string(LOCKSTEP_TEST_DATA) + "/toy-pack", scratch / "model");
  const auto artifact = artifact::Artifact::open(scratch / "model");
  ASSERT_TRUE(artifact);
  GateOptions options;
  options.tokens = 1;
  options.vocab = 512;
  options.hash = true;
  options.prompt_lengths = {1};
  const auto report = run_gates(*artifact, options, [&](const std::string&, std::int64_t done, std::int64_t) {
    if (done == 1) std::ofstream(scratch / "model" / "config.json", std::ios::app) << "\n";
    return done < 2;
  });
  ASSERT_FALSE(report);  // interrupted, after the file has changed
  options.seconds = -1;
  const auto changed = run_gates(*artifact, options, {});
  ASSERT_TRUE(changed) << changed.error().message;
  EXPECT_FALSE(changed->passed());
  EXPECT_EQ(changed->gates.at(0).name, "identity");
  EXPECT_EQ(changed->gates[0].difference, "config.json has changed");
  EXPECT_TRUE(changed->gates.at(1).passed) << changed->gates[1].difference;
  EXPECT_EQ(changed->gates.at(2).name, "file hashes");
  EXPECT_TRUE(changed->gates[2].passed);
  EXPECT_FALSE(changed->files.empty());
}

TEST(Gates, AStateThatDiffersIsNamedAtItsFirstStep) {
  const StateTrace a{{10, {{"one", "x"}, {"two", "y"}}}, {12, {{"one", "x"}, {"two", "y"}}}, {13, {{"one", "z"}}}};
  StateTrace b = a;
  EXPECT_FALSE(first_state_difference(a, b, 10));
  b[13] = {{"one", "q"}};
  b[12][1].second = "q";
  const auto found = first_state_difference(a, b, 10);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 2);
  EXPECT_EQ(found->part, "two");
  b.erase(12);
  EXPECT_EQ(first_state_difference(a, b, 10)->step, 3);
}

}  // namespace
}  // namespace lockstep::decode
