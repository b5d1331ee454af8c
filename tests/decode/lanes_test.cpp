#include "decode/lanes.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "decode/lanes/ar_pipeline.hpp"
#include "model/fixture.hpp"

namespace lockstep::decode {
namespace {

const std::string kToy = LOCKSTEP_TEST_DATA "/toy-pack";

/// Sets an environment variable for the life of the object.
class Variable {
 public:
  Variable(std::string name, const char* value) : name_(std::move(name)) { ::setenv(name_.c_str(), value, 1); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { ::unsetenv(name_.c_str()); }

 private:
  std::string name_;
};

Lanes lanes(std::vector<std::string> disabled = {}) {
  return Lanes::from_user(disabled).value();
}

std::string verdict(const Lanes& lanes, LaneId id) {
  return verdict_text(lanes.verdict(id));
}

TEST(Lanes, AllAreArmedByDefault) {
  for (const LaneInfo& lane : known_lanes()) EXPECT_EQ(verdict(lanes(), lane.id), "armed");
  EXPECT_FALSE(lanes().all_disabled());
}

TEST(Lanes, TheTableIsWhole) {
  std::size_t index = 0;
  for (const LaneInfo& lane : known_lanes()) {
    EXPECT_EQ(static_cast<std::size_t>(lane.id), index++);
    std::string environment = "LOCKSTEP_";
    for (const char c : lane.name) environment += static_cast<char>(std::toupper(c));
    EXPECT_EQ(lane.environment, environment);
    EXPECT_FALSE(lane.contract.empty());
    EXPECT_FALSE(lane.needs.empty());
    EXPECT_NE(lane.missing, nullptr);
    EXPECT_NE(lane.ran, nullptr);
  }
}

TEST(Lanes, FlagsAndEnvironmentSwitchOff) {
  EXPECT_EQ(verdict(lanes({"mtp"}), LaneId::Mtp), "off (--disable-optimization)");
  EXPECT_TRUE(lanes({"mtp"}).armed(LaneId::GdnCapture));
  EXPECT_FALSE(lanes({"gdn_capture,mtp"}).armed(LaneId::GdnCapture));
  EXPECT_TRUE(lanes({"mtp", "all"}).all_disabled());
  for (const LaneInfo& lane : known_lanes()) {
    EXPECT_FALSE(lanes({"all"}).armed(lane.id));
    EXPECT_FALSE(lanes({std::string(lane.name)}).armed(lane.id));
    const Variable off(std::string(lane.environment), "0");
    EXPECT_EQ(verdict(lanes(), lane.id), fmt::format("off ({}=0)", lane.environment));
  }
  {
    const Variable off("LOCKSTEP_DISABLE", "all");
    for (const LaneInfo& lane : known_lanes()) EXPECT_FALSE(lanes().armed(lane.id));
    EXPECT_FALSE(lanes().for_backend().pooled_rowsel);
    EXPECT_EQ(lanes().for_backend().ple_aux_bytes, 0U);
  }
  EXPECT_TRUE(lanes().for_backend().pooled_rowsel);
  const Variable on("LOCKSTEP_MTP", "1");
  EXPECT_TRUE(lanes().armed(LaneId::Mtp));
  EXPECT_FALSE(lanes({"mtp"}).armed(LaneId::Mtp));  // an opt-out wins over anything else
}

TEST(Lanes, UnknownNamesAreUsageErrors) {
  for (const char* empty : {"", ",", "mtp,", ",mtp"}) {
    EXPECT_FALSE(Lanes::from_user(std::vector<std::string>{empty})) << empty;
  }
  const auto result = Lanes::from_user(std::vector<std::string>{"mtp,warp_drive"});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind, ErrorKind::Usage);
  EXPECT_NE(result.error().message.find("warp_drive"), std::string::npos);
  for (const LaneInfo& lane : known_lanes()) {
    EXPECT_NE(result.error().message.find(lane.name), std::string::npos) << lane.name;
  }
  const Variable bad("LOCKSTEP_DISABLE", "nothing");
  EXPECT_FALSE(Lanes::from_user({}));
}

TEST(Lanes, InstallationDeclinesWhatMissesSomething) {
  backend::CpuOptions options = model::one_thread();
  options.lanes = lanes().for_backend();
  const model::Loaded whole = model::load(kToy, backend::StateType::BF16, options);
  Lanes table = lanes();
  table.install(*whole.model);
  EXPECT_EQ(verdict(table, LaneId::Mtp), "armed");
  EXPECT_EQ(verdict(table, LaneId::GdnCapture), "armed");
  EXPECT_EQ(verdict(table, LaneId::ArPipeline), "declined (speculative decoding runs instead)");
  EXPECT_EQ(verdict(table, LaneId::PleCachedAux), "armed");
  EXPECT_EQ(verdict(table, LaneId::QsaPooledRowsel), "armed");
  EXPECT_EQ(verdict(table, LaneId::Frspec),
            "declined (the model has no list of draft tokens; `lockstep frspec` makes one)");

  // A backend without the paths, and no drafts.
  const model::Loaded bare = model::load(kToy, backend::StateType::BF16);
  table = lanes({"mtp"});
  table.install(*bare.model);
  EXPECT_EQ(verdict(table, LaneId::Mtp), "off (--disable-optimization)");
  EXPECT_EQ(verdict(table, LaneId::GdnCapture), "declined (nothing is taken back without mtp)");
  EXPECT_EQ(verdict(table, LaneId::ArPipeline), "armed");
  EXPECT_EQ(verdict(table, LaneId::PleCachedAux), "declined (this device has no such path)");
  EXPECT_EQ(verdict(table, LaneId::QsaPooledRowsel), "declined (this device has no such path)");
  EXPECT_EQ(verdict(table, LaneId::Frspec), "declined (there are no drafts without mtp)");

  // What the user switched off stays so, whatever the model has.
  table = lanes({"all"});
  table.install(*whole.model);
  for (const LaneInfo& lane : known_lanes()) EXPECT_EQ(verdict(table, lane.id), "off (--disable-optimization)");
}

/// A streamed toy model whose disk can be made to fail.
struct FailingModel {
  std::atomic<bool> failing{false};
  model::Loaded loaded = load();

  model::Loaded load() {
    backend::CpuOptions options = model::one_thread();
    options.lanes = lanes().for_backend();
    options.ngram.mode = backend::NgramMode::Streamed;
    options.ngram.cache_bytes = 2000;
    options.ngram.intercept = [this](std::uint64_t, std::int64_t result) { return failing ? -EIO : result; };
    return model::load(kToy, backend::StateType::BF16, options);
  }
};

std::string state_of(const std::vector<LaneReport>& report, LaneId id) {
  return verdict_text(report.at(static_cast<std::size_t>(id)).verdict);
}

TEST(Lanes, APoisonedLaneStaysOutUntilReload) {
  FailingModel disk;
  const model::Model& model = *disk.loaded.model;
  Lanes table = lanes({"mtp"});
  table.install(model);
  const auto decoder = make_plain_decoder(model).value();
  const auto driver = make_pipelined_driver().value();
  DecodeRequest request;
  for (TokenId id = 0; id < 20; ++id) request.prompt.push_back(id * 7);
  request.sampler.temperature = 0;
  request.max_tokens = 12;
  request.vocab = 512;
  const auto answer = [&](Decoder& by) -> Status {
    LOCKSTEP_TRY(by.start(request, {}));
    return driver->run(
        by, [](std::span<const Choice>) -> Result<bool> { return true; }, [] {});
  };
  ASSERT_TRUE(answer(*decoder));
  std::vector<LaneReport> report = lane_report(table, model, decoder->stats());
  EXPECT_EQ(state_of(report, LaneId::PleCachedAux), "armed");
  EXPECT_EQ(state_of(report, LaneId::ArPipeline), "armed");
  EXPECT_NE(report[static_cast<std::size_t>(LaneId::ArPipeline)].run.detail.find(
                "ar_pipeline_active true, ar_pipeline_variant streamed"),
            std::string::npos);

  disk.failing = true;
  request.prompt.insert(request.prompt.begin(), {400, 300, 200, 100});
  const Status failed = answer(*decoder);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().kind, ErrorKind::Io);
  EXPECT_NE(failed.error().message.find("reload the model"), std::string::npos);
  report = lane_report(table, model, decoder->stats());
  const std::string poisoned = "poisoned (" + failed.error().message + ")";
  EXPECT_EQ(state_of(report, LaneId::PleCachedAux), poisoned);
  EXPECT_EQ(state_of(report, LaneId::ArPipeline), poisoned);
  EXPECT_EQ(state_of(report, LaneId::QsaPooledRowsel), "armed");
  EXPECT_EQ(state_of(report, LaneId::Mtp), "off (--disable-optimization)");

  // The disk recovers, the lane does not: neither for the next request nor for a new installation.
  disk.failing = false;
  EXPECT_EQ(answer(*decoder).error().message, failed.error().message);
  Lanes again = lanes({"mtp"});
  again.install(model);
  EXPECT_EQ(verdict(again, LaneId::PleCachedAux), poisoned);
  EXPECT_FALSE(again.armed(LaneId::ArPipeline));

  const model::Loaded reloaded = disk.load();
  Lanes fresh = lanes({"mtp"});
  fresh.install(*reloaded.model);
  EXPECT_EQ(verdict(fresh, LaneId::PleCachedAux), "armed");
  const auto works = make_plain_decoder(*reloaded.model).value();
  EXPECT_TRUE(answer(*works));
}

}  // namespace
}  // namespace lockstep::decode
