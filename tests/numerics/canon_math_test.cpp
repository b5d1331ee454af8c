#include "numerics/canon_math.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>

namespace lockstep::numerics {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Distance in units of the last place of the float nearest to `exact`.
double ulps(float value, long double exact) {
  const float nearest = static_cast<float>(exact);
  if (value == nearest) return 0;  // also both infinite
  const float magnitude = std::fabs(nearest);
  const long double unit = static_cast<long double>(std::nextafter(magnitude, kInf)) - magnitude;
  return static_cast<double>(std::fabs((static_cast<long double>(value) - exact) / unit));
}

/// Walks all floats in steps (every 1,009th bit pattern), so that all exponents and both signs are seen.
template <class F, class G>
double worst(F function, G exact, const char* name) {
  double most = 0;
  float at = 0;
  for (std::uint64_t bits = 0; bits <= 0xffffffffU; bits += 1009) {
    const float x = bits_float(static_cast<std::uint32_t>(bits));
    if (!(x == x) || std::isinf(x)) continue;
    const double error = ulps(function(x), exact(static_cast<long double>(x)));
    if (error > most) {
      most = error;
      at = x;
    }
  }
  std::printf("%s: at most %.3f ulp (at %g)\n", name, most, static_cast<double>(at));
  return most;
}

TEST(CanonMath, ErrorsStayBelowTwoUlp) {
  EXPECT_LE(worst([](float x) { return canon_exp(x); }, [](long double x) { return std::exp(x); }, "exp"), 2.0);
  EXPECT_LE(worst([](float x) { return canon_sigmoid(x); }, [](long double x) { return 1.0L / (1.0L + std::exp(-x)); },
                  "sigmoid"),
            2.0);
  EXPECT_LE(worst([](float x) { return canon_softplus(x); },
                  [](long double x) { return std::max(x, 0.0L) + std::log1p(std::exp(-std::fabs(x))); }, "softplus"),
            2.0);
  EXPECT_LE(worst([](float x) { return canon_silu(x); },
                  [](long double x) { return x < -11000 ? 0.0L : x / (1.0L + std::exp(-x)); }, "silu"),
            2.0);
  double most = 0;
  for (float u = 1.0F; u > 0; u = std::nextafter(u * 0.99999F, 0.0F)) {
    most = std::max(most, ulps(canon_log1p_unit(u), std::log1p(static_cast<long double>(u))));
  }
  std::printf("log1p on (0, 1]: at most %.3f ulp\n", most);
  EXPECT_LE(most, 2.0);
}

TEST(CanonMath, SpecialValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(canon_exp(kInf), kInf);
  EXPECT_EQ(float_bits(canon_exp(-kInf)), 0U);
  EXPECT_EQ(canon_exp(0.0F), 1.0F);
  EXPECT_EQ(canon_sigmoid(kInf), 1.0F);
  EXPECT_EQ(float_bits(canon_sigmoid(-kInf)), 0U);
  EXPECT_EQ(canon_silu(kInf), kInf);
  EXPECT_EQ(float_bits(canon_silu(-kInf)), 0x80000000U);
  EXPECT_EQ(canon_softplus(kInf), kInf);
  EXPECT_EQ(float_bits(canon_softplus(-kInf)), 0U);
  EXPECT_TRUE(std::isnan(canon_exp(nan)));
  EXPECT_TRUE(std::isnan(canon_sigmoid(nan)));
  EXPECT_TRUE(std::isnan(canon_silu(nan)));
  EXPECT_TRUE(std::isnan(canon_softplus(nan)));
}

TEST(CanonMath, RoundIsTiesToEven) {
  EXPECT_EQ(canon_round(0.5F), 0.0F);
  EXPECT_EQ(canon_round(1.5F), 2.0F);
  EXPECT_EQ(canon_round(2.5F), 2.0F);
  EXPECT_EQ(canon_round(-2.5F), -2.0F);
  EXPECT_EQ(canon_round(-32766.5F), -32766.0F);
}

TEST(Bits, Bf16RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(float_to_bf16(1.0F), 0x3f80);
  EXPECT_EQ(float_to_bf16(bits_float(0x3f808000U)), 0x3f80);
  EXPECT_EQ(float_to_bf16(bits_float(0x3f818000U)), 0x3f82);
  EXPECT_EQ(float_to_bf16(kInf), 0x7f80);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(bits_float(0x7f800001U)))));
}

TEST(Bits, HalfWidensExactly) {
  EXPECT_EQ(half_to_float(0x3c00), 1.0F);
  EXPECT_EQ(half_to_float(0x0001), 0x1p-24F);
  EXPECT_EQ(half_to_float(0xfbff), -65504.0F);
  EXPECT_EQ(half_to_float(0x7c00), kInf);
  EXPECT_EQ(float_bits(half_to_float(0x8000)), 0x80000000U);
}

}  // namespace
}  // namespace lockstep::numerics
