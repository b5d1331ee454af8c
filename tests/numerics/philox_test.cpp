#include "numerics/philox.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

namespace lockstep::numerics {
namespace {

std::array<std::uint32_t, 4> block(std::array<std::uint32_t, 4> counter, std::uint32_t key0, std::uint32_t key1) {
  PhiloxBlock in{};
  std::copy(counter.begin(), counter.end(), in.word);
  const PhiloxBlock out = philox4x32(in, key0, key1);
  return {out.word[0], out.word[1], out.word[2], out.word[3]};
}

// The known answers published with the Random123 library for philox4x32 with ten rounds.
TEST(Philox, KnownAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(block({0, 0, 0, 0}, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(block({~0U, ~0U, ~0U, ~0U}, ~0U, ~0U), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(block({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformLayout) {
  const std::uint64_t seed = 0x299f31d0a4093822U, n = 0x85a308d3243f6a88U;
  const auto words = block({0x243f6a88, 0x85a308d3, 77, 0}, 0xa4093822, 0x299f31d0);
  const std::uint64_t r = words[0] | (std::uint64_t{words[1]} << 32);
  EXPECT_EQ(philox_uniform(seed, n, 77), std::ldexp(static_cast<double>((r >> 11) | 1), -53));
}

// Neighbouring counters are what the race draw uses: the mean, the variance and the lag correlation over ids and over
// token numbers must be those of independent uniform numbers. Bounds are five standard deviations.
TEST(Philox, NeighboursAreUniformAndUncorrelated) {
  constexpr int kCount = 200'000;
  double sum = 0, squares = 0, over_ids = 0, over_numbers = 0;
  for (int i = 0; i < kCount; ++i) {
    const auto id = static_cast<std::uint32_t>(i);
    const double u = philox_uniform(9, 3, id) - 0.5;
    ASSERT_GT(u, -0.5);
    ASSERT_LT(u, 0.5);
    sum += u;
    squares += u * u;
    over_ids += u * (philox_uniform(9, 3, id + 1) - 0.5);
    over_numbers += u * (philox_uniform(9, 4, id) - 0.5);
  }
  const double root = std::sqrt(kCount);
  EXPECT_LT(std::fabs(sum / root), 5 * std::sqrt(1.0 / 12));
  EXPECT_LT(std::fabs((squares - kCount / 12.0) / root), 5 * std::sqrt(1.0 / 180));
  EXPECT_LT(std::fabs(over_ids / root), 5 * (1.0 / 12));
  EXPECT_LT(std::fabs(over_numbers / root), 5 * (1.0 / 12));
}

}  // namespace
}  // namespace lockstep::numerics
