#include "numerics/double_math.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>

namespace lockstep::numerics {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Distance in units in the last place of the exact value.
double ulps(double got, long double exact) {
  const double rounded = static_cast<double>(exact);
  int exponent;
  std::frexp(rounded, &exponent);
  const long double unit = std::ldexp(1.0L, std::max(exponent - 53, -1074));
  return static_cast<double>(std::fabs((static_cast<long double>(got) - exact) / unit));
}

std::uint64_t bits(double x) {
  return std::bit_cast<std::uint64_t>(x);
}

TEST(DoubleMath, ExpIsWithinOneUlp) {
  std::mt19937_64 random(1);
  double worst = 0, worst_denormal = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    const double range = i % 3 == 0 ? 1.0 : i % 3 == 1 ? 40.0 : 708.0;
    const double x = std::uniform_real_distribution<double>(-range, range)(random);
    worst = std::max(worst, ulps(canon_exp64(x), std::exp(static_cast<long double>(x))));
  }
  for (int i = 0; i < 100'000; ++i) {
    const double x = std::uniform_real_distribution<double>(-745.1, -708.0)(random);
    worst_denormal = std::max(worst_denormal, ulps(canon_exp64(x), std::exp(static_cast<long double>(x))));
  }
  std::printf("exp: worst error %.4f ulp, %.4f ulp where the result is denormal\n", worst, worst_denormal);
  EXPECT_LT(worst, 1.0);
  EXPECT_LT(worst_denormal, 1.01);
}

TEST(DoubleMath, ExpSpecialValues) {
  EXPECT_EQ(canon_exp64(0.0), 1.0);
  EXPECT_EQ(canon_exp64(-0.0), 1.0);
  EXPECT_EQ(canon_exp64(kInf), kInf);
  EXPECT_EQ(bits(canon_exp64(-kInf)), bits(0.0));
  EXPECT_TRUE(std::isnan(canon_exp64(kNaN)));
  EXPECT_EQ(canon_exp64(709.79), kInf);
  EXPECT_EQ(canon_exp64(1e300), kInf);
  EXPECT_LT(canon_exp64(709.78), kInf);
  EXPECT_EQ(bits(canon_exp64(-745.14)), bits(0.0));
  EXPECT_EQ(bits(canon_exp64(-1e300)), bits(0.0));
  EXPECT_EQ(canon_exp64(-745.13), std::numeric_limits<double>::denorm_min());
}

TEST(DoubleMath, LogIsWithinOneUlp) {
  std::mt19937_64 random(2);
  double worst = 0;
  const auto check = [&](double x) {
    worst = std::max(worst, ulps(canon_log64(x), std::log(static_cast<long double>(x))));
  };
  for (int i = 0; i < 700'000; ++i) {
    check(std::uniform_real_distribution<double>(0.0, 1.0)(random));          // the draws' argument
    check(1.0 + std::uniform_real_distribution<double>(-0.3, 0.45)(random));  // cancellation around 1
    check(std::bit_cast<double>(random() % 0x7ff0000000000000U));             // every exponent, denormals too
  }
  for (int i = 1; i < 2000; ++i) {
    check(1.0 - i * 0x1p-53);
    check(1.0 + i * 0x1p-52);
    check(i * std::numeric_limits<double>::denorm_min());
  }
  std::printf("log: worst error %.4f ulp\n", worst);
  EXPECT_LT(worst, 1.0);
}

TEST(DoubleMath, LogSpecialValues) {
  EXPECT_EQ(bits(canon_log64(1.0)), bits(0.0));
  EXPECT_EQ(canon_log64(0.0), -kInf);
  EXPECT_EQ(canon_log64(-0.0), -kInf);
  EXPECT_EQ(canon_log64(kInf), kInf);
  EXPECT_TRUE(std::isnan(canon_log64(-1.0)));
  EXPECT_TRUE(std::isnan(canon_log64(-kInf)));
  EXPECT_TRUE(std::isnan(canon_log64(kNaN)));
}

TEST(DoubleMath, SinCosIsWithinOneUlp) {
  // The reference is reduced here, in 113-bit arithmetic: 85 bits of pi/2 times n (23 bits) is exact, the rest of pi/2
  // follows as a second part. sinl and cosl then see an argument near or below pi/4.
  __extension__ typedef __float128 Quad;
  const Quad half_pi_high = Quad{0x1921fb54442p-40} + Quad{0xd18469898ccp-84};
  const Quad half_pi_low = Quad{0x0.51701b839a252p-84};
  std::mt19937_64 random(3);
  double worst_sin = 0, worst_cos = 0;
  const auto check = [&](double x) {
    const double n = std::rint(x / 1.5707963267948966);
    const auto r = static_cast<long double>((Quad{x} - Quad{n} * half_pi_high) - Quad{n} * half_pi_low);
    const long double s = std::sin(r), c = std::cos(r);
    const auto quadrant = static_cast<std::int64_t>(n) & 3;
    const long double sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
    const long double cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
    const SinCos got = canon_sincos64(x);
    worst_sin = std::max(worst_sin, ulps(got.sin, sine));
    worst_cos = std::max(worst_cos, ulps(got.cos, cosine));
  };
  for (int i = 0; i < 400'000; ++i) {
    check(std::uniform_real_distribution<double>(-4.0, 4.0)(random));
    check(std::uniform_real_distribution<double>(-300'000.0, 300'000.0)(random));
    check(std::uniform_real_distribution<double>(-kSinCosLimit, kSinCosLimit)(random));
    check(std::ldexp(1.0, -static_cast<int>(random() % 1000)));
    check(static_cast<double>(static_cast<std::int64_t>(random() % 6'366'198)) * 1.5707963267948966);  // near zeros
    check(static_cast<double>(random() % 1'048'576));  // whole positions
  }
  std::printf("sin: worst error %.4f ulp, cos: %.4f ulp, |x| <= 1e7\n", worst_sin, worst_cos);
  EXPECT_LT(worst_sin, 1.0);
  EXPECT_LT(worst_cos, 1.0);
}

TEST(DoubleMath, SinCosSpecialValues) {
  EXPECT_EQ(bits(canon_sincos64(0.0).sin), bits(0.0));
  EXPECT_EQ(bits(canon_sincos64(-0.0).sin), bits(-0.0));
  EXPECT_EQ(canon_sincos64(0.0).cos, 1.0);
  EXPECT_FALSE(std::isnan(canon_sincos64(kSinCosLimit).sin));
  for (const double x : {kInf, -kInf, kNaN, 1.0000001e7, -1e300}) {
    EXPECT_TRUE(std::isnan(canon_sincos64(x).sin)) << x;
    EXPECT_TRUE(std::isnan(canon_sincos64(x).cos)) << x;
  }
  EXPECT_EQ(canon_sincos64(5e-324).sin, 5e-324);
}

TEST(DoubleMath, RotaryFrequencies) {
  EXPECT_EQ(rotary_frequency(0, 64, 1e7), 1.0);
  double worst = 0;
  for (const double theta : {1e4, 1e6, 1e7}) {
    for (int pair = 0; pair < 32; ++pair) {
      const long double exact = std::pow(static_cast<long double>(theta), -2.0L * pair / 64);
      worst = std::max(worst, std::fabs(static_cast<double>(rotary_frequency(pair, 64, theta) / exact - 1)));
    }
  }
  std::printf("rotary frequency: worst relative error %.3g\n", worst);
  EXPECT_LT(worst, 4e-15);
}

// Fixed bits: a changed result of any function is a changed canon, whatever its error.
TEST(DoubleMath, BitsAreFixed) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  const auto mix = [&hash](double x) { hash = (hash ^ bits(x)) * 0x100000001b3U; };
  std::mt19937_64 random(4);
  for (int i = 0; i < 100'000; ++i) {
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;
    mix(canon_exp64((u - 0.5) * 1400));
    mix(canon_log64(u + 0x1p-60));
    const SinCos value = canon_sincos64((u - 0.5) * 2e6);
    mix(value.sin);
    mix(value.cos);
  }
  EXPECT_EQ(hash, 0x0febfa98e758d674U);
}

}  // namespace
}  // namespace lockstep::numerics
