// Statistics against cases that can be worked out by hand.
#include "report/statistics.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace lockstep::report {
namespace {

TEST(Statistics, MeansAndSpread) {
  EXPECT_EQ(mean(std::vector<double>{1, 2, 6}), 3);
  EXPECT_EQ(median({6, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 10}), 3);
  EXPECT_EQ(deviation(std::vector<double>{2, 4, 4, 4, 5, 5, 7, 9}), std::sqrt(32.0 / 7));
  EXPECT_EQ(deviation(std::vector<double>{3}), 0);
  EXPECT_EQ(t_quantile(1), 12.706);
  EXPECT_EQ(t_quantile(2), 4.303);
  EXPECT_EQ(t_quantile(24), 2.086);  // that of 20
  EXPECT_EQ(t_quantile(1000), 2.000);
  const auto found = interval(std::vector<double>{1, 2, 3});
  ASSERT_TRUE(found);
  EXPECT_DOUBLE_EQ(found->low, 2 - 4.303 / std::sqrt(3.0));
  EXPECT_DOUBLE_EQ(found->high, 2 + 4.303 / std::sqrt(3.0));
  EXPECT_FALSE(interval(std::vector<double>{1}));
}

TEST(Statistics, ALinearDriftCancels) {
  // The machine loses 1 token/s a window; b is 10 % faster. ABBA, two seeds.
  std::vector<Measured> windows;
  for (std::size_t w = 0; w < 4; ++w) {
    const std::size_t arm = w == 1 || w == 2 ? 1 : 0;
    const double factor = arm == 1 ? 1.1 : 1.0;
    const double time = static_cast<double>(w);
    windows.push_back({arm, {factor * (100 - time), factor * (200 - time)}});
  }
  const auto found = compare(windows, 1, 0);
  ASSERT_TRUE(found);
  EXPECT_NEAR(found->change, 0.1, 1e-12);
  EXPECT_EQ(found->pairs, 2U);
  EXPECT_NEAR(*found->noise, 3 / 148.5, 1e-12);  // the drift counts as noise
  EXPECT_EQ(found->word, Word::Gain);
}

TEST(Statistics, TheWordFollowsFromIntervalAndNoise) {
  const auto word = [](std::vector<Measured> windows) { return compare(windows, 1, 0)->word; };
  EXPECT_EQ(word({{0, {100, 100}}, {1, {110, 111}}, {0, {100, 100}}}), Word::Gain);
  EXPECT_EQ(word({{0, {100, 100}}, {1, {90, 91}}, {0, {100, 100}}}), Word::Loss);
  // As far apart, but the control alone moves by as much.
  EXPECT_EQ(word({{0, {94, 94}}, {1, {110, 111}}, {0, {106, 106}}}), Word::WithinNoise);
  // The seeds disagree.
  EXPECT_EQ(word({{0, {100, 100}}, {1, {130, 101}}, {0, {100, 100}}}), Word::WithinNoise);
  // Without a repeated window the noise is unknown.
  EXPECT_EQ(word({{0, {100, 100}}, {1, {110, 111}}}), Word::WithinNoise);
  // One seed and one window: no interval.
  EXPECT_EQ(word({{0, {100}}, {1, {110}}, {0, {100}}}), Word::WithinNoise);
  // One seed, two windows: the windows are the pairs.
  EXPECT_EQ(word({{0, {100}}, {1, {110}}, {1, {111}}, {0, {100}}}), Word::Gain);
}

TEST(Statistics, SwingsOfSingleSeedsCountThoughTheirMeansCancel) {
  // The control's window means are equal, its seeds swing by 40/120 and 40/180; the arm is exactly 5 % faster.
  const std::vector<double> first{100, 200};
  const std::vector<double> last{140, 160};
  std::vector<Measured> windows{{0, first}};
  for (const double weight : {1.0 / 3, 2.0 / 3}) {
    std::vector<double> rates;
    for (std::size_t s = 0; s < 2; ++s) rates.push_back(1.05 * ((1 - weight) * first[s] + weight * last[s]));
    windows.push_back({1, std::move(rates)});
  }
  windows.push_back({0, last});
  const auto spread = seed_spread(windows, 0);
  ASSERT_TRUE(spread);
  EXPECT_NEAR(spread->largest, 40.0 / 120, 1e-12);
  EXPECT_NEAR(spread->median, (40.0 / 120 + 40.0 / 180) / 2, 1e-12);
  const auto found = compare(windows, 1, 0);
  ASSERT_TRUE(found);
  EXPECT_NEAR(found->change, 0.05, 1e-12);
  EXPECT_NEAR(*found->noise, 0, 1e-12);
  EXPECT_NEAR(found->interval->low, 0.05, 1e-12) << "the pairs agree";
  EXPECT_NEAR(*found->threshold, spread->median / std::sqrt(2.0), 1e-12);
  EXPECT_EQ(found->word, Word::WithinNoise);
  for (Measured& window : windows) {
    for (double& rate : window.by_seed) rate *= window.arm == 1 ? 1.3 / 1.05 : 1;
  }
  EXPECT_EQ(compare(windows, 1, 0)->word, Word::Gain) << "30 % is more than that";
}

TEST(Statistics, TheThresholdIsTheLargestOfFour) {
  // Half the interval's width: the seeds disagree, everything repeats.
  auto found = compare(std::vector<Measured>{{0, {100, 100}}, {1, {130, 101}}, {1, {130, 101}}, {0, {100, 100}}}, 1, 0);
  EXPECT_NEAR(*found->threshold, (found->interval->high - found->interval->low) / 2, 1e-12);
  // The noise: the control moves as a whole.
  std::vector<Measured> drifting{{0, {94, 94}}, {1, {110, 110}}, {0, {106, 106}}};
  found = compare(drifting, 1, 0);
  EXPECT_NEAR(*found->noise, 0.12, 1e-12);
  // The windows: the deviation of 0.94 and 1.06, one degree of freedom, two windows and one.
  EXPECT_NEAR(*found->window_half_width, 12.706 * std::sqrt(2 * 0.06 * 0.06 * 1.5), 1e-9);
  EXPECT_EQ(*found->threshold, *found->window_half_width);
  drifting = {{0, {94, 94}}};
  for (int i = 0; i < 8; ++i) drifting.push_back({1, {130, 130}});
  for (int i = 0; i < 8; ++i) drifting.push_back({0, {100, 100}});
  drifting.push_back({0, {106, 106}});
  found = compare(drifting, 1, 0);
  EXPECT_NEAR(*found->threshold, 0.12, 1e-12) << "many windows tell more than their range: the noise is left";
  // An arm that does not repeat counts as a control does.
  found = compare(std::vector<Measured>{{0, {100, 100}}, {1, {80, 140}}, {1, {140, 80}}, {0, {100, 100}}}, 1, 0);
  EXPECT_EQ(*found->window_half_width, 0);
  EXPECT_NEAR(found->seed_spread->median, 60.0 / 110, 1e-12);
  EXPECT_NEAR(*found->threshold, 60.0 / 110 / std::sqrt(2.0), 1e-12);
  // Nothing was repeated.
  EXPECT_FALSE(compare(std::vector<Measured>{{0, {100, 100}}, {1, {110, 111}}}, 1, 0)->threshold);
  EXPECT_FALSE(seed_spread(std::vector<Measured>{{0, {1, 2}}}, 0));
}

TEST(Statistics, OnlyWhatWasRunIsCompared) {
  EXPECT_FALSE(compare(std::vector<Measured>{{0, {1}}}, 1, 0));
  EXPECT_FALSE(compare(std::vector<Measured>{{1, {1}}}, 1, 0));
  EXPECT_FALSE(compare(std::vector<Measured>{{0, {1}}}, 0, 0));
  EXPECT_FALSE(window_noise(std::vector<Measured>{{0, {1}}}, 0));
}

TEST(Statistics, EqualArmsAreWithinNoiseAndScaleDoesNotMatter) {
  std::mt19937 random(5);
  std::normal_distribution<double> jitter(0, 0.01);
  int wrong = 0;
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE(round);
    std::vector<Measured> windows;
    for (const std::size_t arm : {0U, 1U, 1U, 0U}) {
      windows.push_back({arm, {100 * (1 + jitter(random)), 90 * (1 + jitter(random)), 80 * (1 + jitter(random))}});
    }
    std::vector<Measured> scaled = windows;
    for (Measured& window : scaled) {
      for (double& value : window.by_seed) value *= 1e-3;
    }
    const auto found = compare(windows, 1, 0);
    const auto again = compare(scaled, 1, 0);
    EXPECT_NEAR(found->change, again->change, 1e-12);
    EXPECT_EQ(found->word, again->word);
    EXPECT_LE(found->interval->low, found->change);
    EXPECT_GE(found->interval->high, found->change);
    if (found->word != Word::WithinNoise) ++wrong;
  }
  EXPECT_LT(wrong, 25);  // a 95 % interval alone would be wrong in about that many
}

TEST(Statistics, EqualArmsWhoseWindowsDifferAreRarelyToldApart) {
  // All seeds of a window share its speed: the more seeds, the surer the pairs would be of a difference that is none.
  std::mt19937 random(6);
  std::normal_distribution<double> window_jitter(0, 0.05);
  std::normal_distribution<double> jitter(0, 0.02);
  int wrong = 0;
  int by_pairs = 0;
  for (int round = 0; round < 500; ++round) {
    std::vector<Measured> windows;
    for (const std::size_t arm : {0U, 1U, 1U, 0U}) {
      const double speed = 100 * std::exp(window_jitter(random));
      Measured& window = windows.emplace_back(Measured{arm, {}});
      for (int seed = 0; seed < 8; ++seed) window.by_seed.push_back(speed * std::exp(jitter(random)));
    }
    const auto found = compare(windows, 1, 0);
    if (found->word != Word::WithinNoise) ++wrong;
    if (found->interval->low > 0 || found->interval->high < 0) ++by_pairs;
  }
  EXPECT_LT(wrong, 50);
  EXPECT_GT(by_pairs, 200) << "what the pairs alone would say";
}

}  // namespace
}  // namespace lockstep::report
