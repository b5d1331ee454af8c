// The plan of a load on a CUDA device, from shapes.
#include "engine/device_plan.hpp"

#include <gtest/gtest.h>

#include "artifact/synth.hpp"
#include "artifact/synth_geometry.hpp"
#include "engine/fixture.hpp"

namespace lockstep::engine {
namespace {

TEST(DevicePlan, GrowsWithTokensSequencesAndRows) {
  const artifact::Artifact artifact = artifact::Artifact::open_shapes(kToyPack).value();
  LoadSetup setup;
  setup.tokens = 1000;
  const DevicePlan one = plan_device(artifact, setup).value();
  EXPECT_GT(one.weights, 0U);
  setup.parallel = 5;
  const DevicePlan five = plan_device(artifact, setup).value();
  EXPECT_EQ(five.states, 5 * one.states);
  EXPECT_EQ(five.weights, one.weights);
  setup.rows = 512;
  EXPECT_GT(plan_device(artifact, setup).value().scratch, five.scratch);
  setup.draft = false;
  EXPECT_LT(plan_device(artifact, setup).value().weights, five.weights);
}

TEST(DevicePlan, RefusesWhatDoesNotFitWithTheFigures) {
  const artifact::Artifact artifact = artifact::Artifact::open_shapes(kToyPack).value();
  const DevicePlan plan = plan_device(artifact, LoadSetup{}).value();
  EXPECT_TRUE(check_fits(plan, plan.total(), "cuda:1", "m"));
  const Status refused = check_fits(plan, plan.total() - 1, "cuda:1", "m");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Limit);
  for (const char* part : {"m: ", "cuda:1", "weights", "state", "scratch", "free", "--force-memory"}) {
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
}

/// Shapes of the published model; no weight is made.
artifact::Artifact published() {
  artifact::SynthModel synth{*artifact::synth_geometry("flash-next"), *artifact::find_recipe("bare"), 1};
  synth.config["text_config"]["ngram_vocab_size_base"] = 50'000;
  return artifact::make_synthetic_on_demand(synth, 1).value();
}

TEST(DevicePlan, StatesOfThePublishedModelAreLinearInTheContext) {
  const artifact::Artifact artifact = published();
  LoadSetup setup;
  setup.on_demand = true;
  setup.rows = 2048;
  const auto plan = [&](std::int64_t tokens) {
    setup.tokens = tokens;
    return plan_device(artifact, setup).value();
  };
  const DevicePlan quarter = plan(65'536), half = plan(131'072), whole = plan(262'144);
  EXPECT_GT(half.states, quarter.states);
  EXPECT_EQ(whole.states - half.states, 2 * (half.states - quarter.states));
  EXPECT_GT(whole.scratch, half.scratch);
  EXPECT_LT(whole.scratch - half.scratch, half.scratch);
  EXPECT_EQ(whole.weights, quarter.weights);
  EXPECT_EQ(half.states - quarter.states, 65'536 * half.token);
  EXPECT_LT(whole.states, std::uint64_t{8} << 30);
  EXPECT_LT(whole.total(), std::uint64_t{90} << 30) << "it fits where docs/performance.md says";
}

}  // namespace
}  // namespace lockstep::engine
