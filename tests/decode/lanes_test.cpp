#include "decode/lanes.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace lockstep::decode {
namespace {

/// Sets an environment variable for the life of the object.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

Lanes lanes(std::vector<std::string> disabled = {}) {
  return Lanes::from_user(disabled).value();
}

TEST(Lanes, AllAreArmedByDefault) {
  for (const LaneInfo& lane : known_lanes()) EXPECT_EQ(verdict_text(lanes().verdict(lane.id)), "armed");
  EXPECT_FALSE(lanes().all_disabled());
}

TEST(Lanes, FlagsAndEnvironmentSwitchOff) {
  EXPECT_EQ(verdict_text(lanes({"mtp"}).verdict(LaneId::Mtp)), "off (--disable-optimization)");
  EXPECT_TRUE(lanes({"mtp"}).armed(LaneId::GdnCapture));
  EXPECT_FALSE(lanes({"gdn_capture,mtp"}).armed(LaneId::GdnCapture));
  EXPECT_TRUE(lanes({"", "all"}).all_disabled());
  {
    const Variable off("LOCKSTEP_GDN_CAPTURE", "0");
    EXPECT_EQ(verdict_text(lanes().verdict(LaneId::GdnCapture)), "off (LOCKSTEP_GDN_CAPTURE=0)");
  }
  {
    const Variable off("LOCKSTEP_DISABLE", "all");
    for (const LaneInfo& lane : known_lanes()) EXPECT_FALSE(lanes().armed(lane.id));
  }
  const Variable on("LOCKSTEP_MTP", "1");
  EXPECT_TRUE(lanes().armed(LaneId::Mtp));
}

TEST(Lanes, UnknownNamesAreUsageErrors) {
  const auto result = Lanes::from_user(std::vector<std::string>{"mtp,warp_drive"});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind, ErrorKind::Usage);
  EXPECT_NE(result.error().message.find("warp_drive"), std::string::npos);
  const Variable bad("LOCKSTEP_DISABLE", "nothing");
  EXPECT_FALSE(Lanes::from_user({}));
}

TEST(Lanes, DeclinedLanesSayWhy) {
  Lanes table = lanes();
  table.decline(LaneId::Mtp, "the model has no draft layer");
  EXPECT_EQ(verdict_text(table.verdict(LaneId::Mtp)), "declined (the model has no draft layer)");
  EXPECT_FALSE(table.armed(LaneId::Mtp));
}

}  // namespace
}  // namespace lockstep::decode
