// The arithmetic of text quality: windows, log-sum-exp, divergence, ranks.
#include "decode/quality.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "decode/text_windows.hpp"

namespace lockstep::decode {
namespace {

TEST(TextWindows, AreCutAsDocumented) {
  using Windows = std::vector<TextWindow>;
  EXPECT_EQ(text_windows(10, 4, 4), (Windows{{0, 4, 1}, {4, 8, 5}, {8, 10, 9}}));
  EXPECT_EQ(text_windows(10, 4, 2), (Windows{{0, 4, 1}, {2, 6, 4}, {4, 8, 6}, {6, 10, 8}}));
  EXPECT_EQ(text_windows(9, 4, 4), (Windows{{0, 4, 1}, {4, 8, 5}}));
  EXPECT_EQ(text_windows(3, 8, 1), (Windows{{0, 3, 1}}));
  EXPECT_TRUE(text_windows(1, 4, 2).empty());
  EXPECT_TRUE(text_windows(0, 4, 2).empty());
}

TEST(TextWindows, ScoreEveryTokenOnceWithEnoughBeforeIt) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const std::size_t tokens = random() % 200;
    const std::size_t context = 2 + random() % 40;
    const std::size_t stride = 1 + random() % context;
    SCOPED_TRACE(testing::Message() << tokens << " tokens, context " << context << ", stride " << stride);
    std::vector<int> scored(tokens);
    for (const TextWindow& window : text_windows(tokens, context, stride)) {
      ASSERT_LE(window.end - window.begin, context);
      ASSERT_LE(window.end, tokens);
      for (std::size_t t = window.scored; t < window.end; ++t) {
        ++scored[t];
        const std::size_t least = window.begin == 0 ? 1 : std::max<std::size_t>(1, context - stride);
        ASSERT_GE(t - window.begin, least);
      }
    }
    for (std::size_t t = 0; t < tokens; ++t) {
      const bool first_of_window = stride == context ? t % context == 0 : t == 0;
      ASSERT_EQ(scored[t], first_of_window ? 0 : 1) << "token " << t;
    }
  }
}

TEST(Quality, LogSumExpHasNoOverflow) {
  EXPECT_DOUBLE_EQ(log_sum_exp(std::vector<float>{0, 0}), std::log(2.0));
  EXPECT_DOUBLE_EQ(log_sum_exp(std::vector<float>{3e38F, 3e38F}), static_cast<double>(3e38F) + std::log(2.0));
  EXPECT_DOUBLE_EQ(log_sum_exp(std::vector<float>{-1000, -1000, -1000, -1000}), -1000 + std::log(4.0));
  EXPECT_DOUBLE_EQ(log_sum_exp(std::vector<float>{5}), 5);
}

TEST(Quality, DivergenceOfKnownDistributions) {
  // p = (3/4, 1/4), q = (1/2, 1/2).
  const std::vector<float> a{std::log(3.0F), 0};
  const std::vector<float> b{1, 1};
  const double expected = 0.75 * std::log(1.5) + 0.25 * std::log(0.5);
  EXPECT_NEAR(divergence(a, log_sum_exp(a), b, log_sum_exp(b)), expected, 1e-7);
  EXPECT_EQ(divergence(a, log_sum_exp(a), a, log_sum_exp(a)), 0);
}

TEST(Quality, DivergenceIsNeverNegativeAndIgnoresAShift) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 3);
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(round);
    std::vector<float> a(1 + random() % 300);
    std::vector<float> b(a.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      a[i] = normal(random);
      b[i] = round % 2 == 0 ? normal(random) : a[i] + 64;  // odd rounds: the same distribution but for rounding
    }
    const double kl = divergence(a, log_sum_exp(a), b, log_sum_exp(b));
    EXPECT_GE(kl, 0);
    EXPECT_LT(kl, round % 2 == 1 ? 1e-9 : 1e3);
  }
}

TEST(Quality, NearestRankAndErrors) {
  const std::vector<double> values{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  EXPECT_EQ(nearest_rank(values, 0.5), 5);
  EXPECT_EQ(nearest_rank(values, 0.95), 10);
  EXPECT_EQ(nearest_rank(values, 0.9), 9);
  EXPECT_EQ(nearest_rank(values, 0), 1);
  EXPECT_EQ(nearest_rank(values, 1), 10);
  EXPECT_EQ(nearest_rank(std::vector<double>{4}, 0.5), 4);
  const MeanError found = mean_error(std::vector<double>{1, 2, 3, 4});
  EXPECT_DOUBLE_EQ(found.mean, 2.5);
  EXPECT_DOUBLE_EQ(found.error, std::sqrt(5.0 / 3 / 4));
  EXPECT_EQ(mean_error(std::vector<double>{4}).error, 0);
}

}  // namespace
}  // namespace lockstep::decode
