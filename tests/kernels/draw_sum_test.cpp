// Sums by segments have the bits of the chain of additions.
#include "kernels/draw_sum.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "support/cases.hpp"

namespace lockstep::kernels {
namespace {

/// Values between 0 and 1 as exponentials of logits are, and some that are out for trouble: ties, powers of two, jumps.
std::vector<float> random_values(std::mt19937_64& random, std::size_t n) {
  std::vector<float> values(n);
  const auto kind = random() % 8;
  const double spread = std::array{0.01, 1.0, 4.0, 12.0, 30.0}[random() % 5];
  const double height = std::array{0.0, 3.0, 12.0, 25.0, 60.0}[random() % 5];
  std::normal_distribution<double> normal(-height, spread);
  const int grid = static_cast<int>(random() % 50) + 10;
  for (float& x : values) {
    x = static_cast<float>(std::exp(std::min(0.0, normal(random))));
    switch (kind) {
      case 0:  // few bits, so that half of a grid is met exactly
        x = static_cast<float>(std::ldexp(static_cast<double>(random() % 8), -grid));
        break;
      case 1:
        x = static_cast<float>(std::ldexp(1.0, -static_cast<int>(random() % 60)));
        break;
      case 2:
        x = random() % 100 == 0 ? x : 0.0F;
        break;
      case 3:
        x = std::ldexp(x, -static_cast<int>(random() % 150));
        break;
      case 4:  // ties against a large sum
        x = static_cast<float>(
            std::ldexp(static_cast<double>(2 * (random() % 4) + 1), -53 + static_cast<int>(random() % 12)));
        break;
      default:
        break;
    }
  }
  if (random() % 2 == 0) values[random() % n] = 1.0F;  // the most probable token
  if (kind == 4) values[0] = 1.0F;
  return values;
}

double chain(const std::vector<float>& values) {
  double sum = 0;
  for (const float x : values) sum += static_cast<double>(x);
  return sum;
}

std::array<std::int64_t, 3> kinds{};

double by_segments(const std::vector<float>& values) {
  double about = 0;
  double sure = 0;
  double sum = 0;
  for (std::size_t first = 0; first < values.size(); first += kSegmentSteps) {
    const auto value = [&](int i) { return values[first + static_cast<std::size_t>(i)]; };
    const SumSegment segment = plan_segment(about, sure, value);
    ++kinds.at(static_cast<std::size_t>(segment.kind));
    sum = add_segment(sum, segment, value);
    double own = 0;  // as a device adds up each segment before it knows the others
    for (int i = 0; i < kSegmentSteps; ++i) own += static_cast<double>(value(i));
    about += own;
    sure = std::max(sure, own);
  }
  return sum;
}

TEST(DrawSum, SegmentsGiveTheBitsOfTheChain) {
  kinds = {};
  for (unsigned seed = 0; seed < test::cases(3000); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const std::size_t segments = random() % 10 == 0 ? kMostSteps / kSegmentSteps : random() % 40 + 1;
    const std::vector<float> values = random_values(random, segments * kSegmentSteps);
    ASSERT_EQ(draw_sum::bits_of(chain(values)), draw_sum::bits_of(by_segments(values)));
  }
  if (!test::usual_cases()) return;
  for (const std::int64_t count : kinds) EXPECT_GT(count, 1000);
}

/// The two runs do differ where ties are, and only then.
TEST(DrawSum, ParityDecidesTies) {
  std::vector<float> values(kSegmentSteps, 0.0F);
  values[3] = 0x1p-53F;
  const auto plan = [&] { return plan_segment(1.5, 0, [&](int i) { return values[static_cast<std::size_t>(i)]; }); };
  SumSegment segment = plan();
  EXPECT_EQ(segment.kind, SumSegment::kOneBinade);
  EXPECT_EQ(segment.first.even, 0.0);
  EXPECT_EQ(segment.first.odd, 0x1p-52);
  values[3] = 0x1.8p-53F;
  segment = plan();
  EXPECT_EQ(segment.first.even, 0x1p-52);
  EXPECT_EQ(segment.first.odd, 0x1p-52);
}

TEST(DrawSum, CloseToAPowerOfTwoItIsStepByStep) {
  std::vector<float> values(kSegmentSteps, 0x1p-60F);
  const auto kind = [&](double about, double sure = 0) {
    return plan_segment(about, sure, [&](int i) { return values[static_cast<std::size_t>(i)]; }).kind;
  };
  for (const double about : {0.0, 1.0, 2.0, 1 + 0x1p-40, 2 - 0x1p-40, 0x1p-149}) {
    EXPECT_EQ(kind(about), SumSegment::kStepByStep) << about;
  }
  EXPECT_EQ(kind(1 + 0x1p-30), SumSegment::kOneBinade);
  EXPECT_EQ(kind(1, 1), SumSegment::kOneBinade);
  EXPECT_EQ(kind(2, 1), SumSegment::kStepByStep);
  values[9] = 1.0F;
  EXPECT_EQ(kind(1.5), SumSegment::kTwoBinades);
  values[10] = 1.0F;
  values[11] = 1.0F;
  EXPECT_EQ(kind(1.5), SumSegment::kStepByStep);
}

}  // namespace
}  // namespace lockstep::kernels
