#include "base/checked.hpp"

#include <array>
#include <random>

#include <gtest/gtest.h>

namespace lockstep {
namespace {

__extension__ using Wide = __int128;

/// Small, huge and uniform numbers, so that both outcomes are frequent.
template <class T>
T interesting(std::mt19937_64& random) {
  const auto value = static_cast<T>(random());
  switch (random() % 4) {
    case 0:
      return static_cast<T>(value % 16);
    case 1:
      return static_cast<T>(std::numeric_limits<T>::max() - static_cast<T>(random() % 16));
    case 2:
      return static_cast<T>(value >> (random() % (8 * sizeof(T))));
    default:
      return value;
  }
}

template <class T>
void compare_with_wide_arithmetic() {
  std::mt19937_64 random(3);
  int overflows = 0;
  for (int i = 0; i < 20'000; ++i) {
    const T a = interesting<T>(random);
    const T b = interesting<T>(random);
    const Wide sum = Wide{a} + Wide{b};
    const Wide product = Wide{a} * Wide{b};
    const auto fits = [](Wide x) {
      return x >= Wide{std::numeric_limits<T>::min()} && x <= Wide{std::numeric_limits<T>::max()};
    };
    ASSERT_EQ(checked_add(a, b).has_value(), fits(sum)) << a << " + " << b;
    ASSERT_EQ(checked_mul(a, b).has_value(), fits(product)) << a << " * " << b;
    ASSERT_EQ(Wide{checked_add(a, b).value_or(0)}, fits(sum) ? sum : Wide{0});
    ASSERT_EQ(Wide{checked_mul(a, b).value_or(0)}, fits(product) ? product : Wide{0});
    overflows += fits(product) ? 0 : 1;
  }
  EXPECT_GT(overflows, 1000);
}

TEST(Checked, AgreesWithWideArithmetic) {
  compare_with_wide_arithmetic<std::int64_t>();
  compare_with_wide_arithmetic<std::int32_t>();
  compare_with_wide_arithmetic<std::uint32_t>();
}

TEST(Checked, SixtyFourBitBorders) {
  EXPECT_EQ(checked_add(UINT64_MAX, std::uint64_t{0}), UINT64_MAX);
  EXPECT_EQ(checked_add(UINT64_MAX, std::uint64_t{1}), std::nullopt);
  EXPECT_EQ(checked_mul(std::uint64_t{1} << 32, std::uint64_t{1} << 31), std::uint64_t{1} << 63);
  EXPECT_EQ(checked_mul(std::uint64_t{1} << 32, std::uint64_t{1} << 32), std::nullopt);
}

TEST(Checked, Product) {
  EXPECT_EQ(checked_product({}), 1U);
  EXPECT_EQ(checked_product(std::array<std::uint64_t, 3>{3, 5, 7}), 105U);
  EXPECT_EQ(checked_product(std::array<std::uint64_t, 3>{std::uint64_t{1} << 40, std::uint64_t{1} << 40, 1}),
            std::nullopt);
  // An overflow on the way counts even if a later factor is 0: the order of dimensions must not decide.
  EXPECT_EQ(checked_product(std::array<std::uint64_t, 3>{UINT64_MAX, 2, 0}), std::nullopt);
}

TEST(Checked, RoundUp) {
  for (std::uint64_t step = 1; step < 20; ++step) {
    for (std::uint64_t value = 0; value < 100; ++value) {
      const std::uint64_t rounded = checked_round_up(value, step).value();
      EXPECT_EQ(rounded % step, 0U);
      EXPECT_TRUE(rounded >= value && rounded < value + step);
    }
  }
  EXPECT_EQ(checked_round_up(UINT64_MAX, 2), std::nullopt);
  EXPECT_EQ(checked_round_up(UINT64_MAX, 1), UINT64_MAX);
  EXPECT_EQ(checked_round_up(5, 0), std::nullopt);
}

}  // namespace
}  // namespace lockstep
