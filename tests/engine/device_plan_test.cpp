// The plan of a load on a CUDA device, from shapes.
#include "engine/device_plan.hpp"

#include <gtest/gtest.h>

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
