// The plan of a load on a CUDA device, from shapes.
#include "engine/device_plan.hpp"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace lockstep::engine
