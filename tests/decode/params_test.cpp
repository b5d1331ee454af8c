#include "decode/params.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace lockstep::decode {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

void expect_rejected(const SamplerParams& params, const std::string& word) {
  const auto result = checked_params(params, 100);
  ASSERT_FALSE(result.has_value()) << word;
  EXPECT_EQ(result.error().kind, ErrorKind::Invalid);
  EXPECT_NE(result.error().message.find(word), std::string::npos) << result.error().message;
}

TEST(SamplerParams, DefaultsAndBordersAreAccepted) {
  EXPECT_TRUE(checked_params({}, 100).has_value());
  EXPECT_TRUE(checked_params({.temperature = 0}, 100)->greedy());
  EXPECT_TRUE(checked_params({.temperature = 0.9e-5}, 100)->greedy());
  EXPECT_FALSE(checked_params({.temperature = kGreedyBelow}, 100)->greedy());
  EXPECT_TRUE(checked_params({.temperature = 1e300}, 100).has_value());
  EXPECT_EQ(checked_params({.top_k = -1}, 100)->top_k, 0);
  EXPECT_EQ(checked_params({.top_k = INT64_MAX}, 100)->top_k, INT64_MAX);
  EXPECT_TRUE(checked_params({.top_p = 0, .min_p = 1}, 100).has_value());
  EXPECT_TRUE(checked_params({.logit_bias = {{0, -100}, {99, 100}}}, 100).has_value());
}

TEST(SamplerParams, PenaltiesAreClamped) {
  const auto params = checked_params({.presence_penalty = 7, .frequency_penalty = -1e300}, 100);
  ASSERT_TRUE(params.has_value());
  EXPECT_EQ(params->presence_penalty, 2.0);
  EXPECT_EQ(params->frequency_penalty, -2.0);
  EXPECT_TRUE(params->has_penalties());
}

TEST(SamplerParams, EverythingElseIsRejectedByName) {
  for (const double bad : {-0.1, -kInf, kInf, kNaN}) expect_rejected({.temperature = bad}, "temperature");
  for (const double bad : {-0.1, 1.1, kInf, kNaN}) {
    expect_rejected({.top_p = bad}, "top_p");
    expect_rejected({.min_p = bad}, "min_p");
  }
  expect_rejected({.top_k = -2}, "top_k");
  for (const double bad : {kInf, -kInf, kNaN}) {
    expect_rejected({.presence_penalty = bad}, "presence_penalty");
    expect_rejected({.frequency_penalty = bad}, "frequency_penalty");
  }
  expect_rejected({.logit_bias = {{100, 0}}}, "100");
  expect_rejected({.logit_bias = {{-1, 0}}}, "-1");
  for (const double bad : {100.5, -101.0, kInf, kNaN}) expect_rejected({.logit_bias = {{5, bad}}}, "token 5");
  expect_rejected({.draw_rule = DrawRule::Race, .acceptance = AcceptanceRule::Rejection}, "pcg64");
}

}  // namespace
}  // namespace lockstep::decode
