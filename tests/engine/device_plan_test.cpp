// The plan of a load on a CUDA device, from shapes.
#include "engine/device_plan.hpp"

#include <gtest/gtest.h>

#include "artifact/synth.hpp"
#include "artifact/synth_geometry.hpp"
#include "backend/ngram/table_rows.hpp"
#include "engine/fixture.hpp"

namespace lockstep::engine {
namespace {

using backend::NgramMode;

constexpr std::uint64_t kPlenty = std::uint64_t{1} << 50;

DevicePlan planned(const LoadSetup& setup, std::uint64_t free = kPlenty, std::uint64_t available = kPlenty) {
  return plan_device(artifact::Artifact::open_shapes(kToyPack).value(), setup, free, available).value();
}

TEST(DevicePlan, GrowsWithTokensSequencesAndRows) {
  LoadSetup setup;
  setup.tokens = 1000;
  const DevicePlan one = planned(setup);
  EXPECT_GT(one.weights, 0U);
  setup.parallel = 5;
  const DevicePlan five = planned(setup);
  EXPECT_EQ(five.states, 5 * one.states);
  EXPECT_EQ(five.weights, one.weights);
  setup.rows = 512;
  EXPECT_GT(planned(setup).scratch, five.scratch);
  setup.draft = false;
  EXPECT_LT(planned(setup).weights, five.weights);
}

TEST(DevicePlan, RefusesWhatDoesNotFitWithTheFigures) {
  const DevicePlan plan = planned(LoadSetup{});
  EXPECT_TRUE(check_fits(plan, plan.total(), 0, "cuda:1", "m"));
  const Status refused = check_fits(plan, plan.total() - 1, 0, "cuda:1", "m");
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
  constexpr std::uint64_t kMany = std::uint64_t{1} << 40;
  LoadSetup setup;
  setup.on_demand = true;
  setup.rows = 2048;
  const auto plan = [&](std::int64_t tokens) {
    setup.tokens = tokens;
    return plan_device(artifact, setup, kMany, kMany).value();
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

TEST(DevicePlan, TheTableIsCountedWhereItIs) {
  const artifact::Artifact artifact = artifact::Artifact::open_shapes(kToyPack).value();
  std::uint64_t packed = 0;
  for (const artifact::LayerView& layer : artifact.view().layers) {
    if (layer.ple) packed = (backend::packed_table_bytes(layer.ple->table) + 511) / 512 * 512;
  }
  ASSERT_GT(packed, 0U);
  LoadSetup setup;
  setup.cpu.ngram.cache_bytes = 10000;
  const auto with = [&](NgramMode mode) {
    setup.cpu.ngram.mode = mode;
    return planned(setup);
  };
  const DevicePlan device = with(NgramMode::Device);
  EXPECT_EQ(device.place, NgramMode::Device);
  EXPECT_EQ(device.table, packed);
  EXPECT_EQ(device.host_table, 0U);
  const DevicePlan pinned = with(NgramMode::Pinned);
  EXPECT_EQ(pinned.place, NgramMode::Pinned);
  EXPECT_EQ(pinned.table, 0U);
  EXPECT_EQ(pinned.host_table, packed);
  EXPECT_EQ(pinned.total() + packed, device.total());
  const DevicePlan streamed = with(NgramMode::Streamed);
  EXPECT_EQ(streamed.place, NgramMode::Streamed);
  EXPECT_EQ(streamed.host_table, 10000U);
  EXPECT_EQ(with(NgramMode::Resident).host_table,
            backend::packed_row_bytes(artifact.view().layers[1].ple->table) *
                static_cast<std::uint64_t>(artifact.view().layers[1].ple->table.rows));
}

TEST(DevicePlan, AnAutomaticPlaceIsTheFirstThatFits) {
  LoadSetup setup;
  const DevicePlan device = planned(setup);
  EXPECT_EQ(device.place, NgramMode::Device);
  // All of it, and a tenth for states to come.
  const std::uint64_t enough = device.total() * 10 / 9 + 10;
  EXPECT_EQ(planned(setup, enough).place, NgramMode::Device);
  EXPECT_EQ(planned(setup, device.total()).place, NgramMode::Pinned);
  EXPECT_EQ(planned(setup, device.total(), device.table * 4 / 3 + 10).place, NgramMode::Pinned);
  EXPECT_EQ(planned(setup, device.total(), device.table).place, NgramMode::Streamed);
  setup.on_demand = true;
  EXPECT_EQ(planned(setup, device.total(), device.table).place, NgramMode::Resident);
}

TEST(DevicePlan, PageLockedMemoryThatIsNotThereIsRefused) {
  LoadSetup setup;
  setup.cpu.ngram.mode = NgramMode::Pinned;
  const DevicePlan plan = planned(setup);
  EXPECT_TRUE(check_fits(plan, plan.total(), plan.host_table, "cuda:0", "m"));
  const Status refused = check_fits(plan, plan.total(), plan.host_table - 1, "cuda:0", "m");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Limit);
  EXPECT_NE(refused.error().message.find("page-locked"), std::string::npos) << refused.error().message;
  EXPECT_NE(refused.error().message.find("--ple streamed"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace lockstep::engine
