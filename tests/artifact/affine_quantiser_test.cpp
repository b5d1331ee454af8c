#include "artifact/affine_quantiser.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "numerics/affine.hpp"
#include "numerics/bits.hpp"

namespace lockstep::artifact {
namespace {

constexpr int kBits[] = {2, 3, 4, 5, 6, 8};
constexpr int kGroups[] = {32, 64, 128};

float bf16(float x) {
  return numerics::bf16_to_float(numerics::float_to_bf16(x));
}

struct Quantised {
  std::vector<std::byte> codes;
  std::vector<std::uint16_t> scales, biases;
  MatrixView view;
};

Quantised quantise(const std::vector<float>& row, Precision precision) {
  Quantised q;
  q.codes.resize(row.size() * static_cast<std::size_t>(precision.bits) / 8);
  q.scales.resize(row.size() / static_cast<std::size_t>(precision.group));
  q.biases = q.scales;
  quantise_row(row, precision, {q.codes.data(), q.scales.data(), q.biases.data()});
  q.view.rows = 1;
  q.view.cols = static_cast<std::int64_t>(row.size());
  q.view.quantised = true;
  q.view.bits = precision.bits;
  q.view.group = precision.group;
  q.view.codes = q.codes.data();
  q.view.scales = std::as_bytes(std::span(q.scales)).data();
  q.view.biases = std::as_bytes(std::span(q.biases)).data();
  return q;
}

/// Rows of several kinds: normal, one-sided, narrow around a large value, constant, zero, tiny, with outliers.
std::vector<float> random_row(std::mt19937& random, std::size_t size) {
  std::normal_distribution<float> normal(0.0F, 0.05F);
  const unsigned kind = random() % 8;
  const float centre = normal(random) * 40.0F;
  std::vector<float> row(size);
  for (float& x : row) {
    const float z = normal(random);
    switch (kind) {
      case 0:
        x = z;
        break;
      case 1:
        x = std::fabs(z);
        break;
      case 2:
        x = -std::fabs(z);
        break;
      case 3:
        x = centre + 0.01F * z;
        break;
      case 4:
        x = centre;
        break;
      case 5:
        x = 0.0F;
        break;
      case 6:
        x = z * 1e-8F;
        break;
      default:
        x = random() % 20 == 0 ? 50.0F * z : z;
        break;
    }
    x = bf16(x);
  }
  return row;
}

TEST(AffineQuantiser, EveryValueIsWithinHalfAStep) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    for (const int bits : kBits) {
      for (const int group : kGroups) {
        SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << bits << " bits, group " << group);
        const std::vector<float> row = random_row(random, 256);
        const Quantised q = quantise(row, {bits, group});
        std::vector<float> back(row.size());
        read_row(q.view, 0, 0, back.data());
        for (std::size_t i = 0; i < row.size(); ++i) {
          const std::size_t g = i / static_cast<std::size_t>(group);
          const double half_step = std::fabs(numerics::bf16_to_float(q.scales[g])) / 2.0;
          // Beside half a step: the rounding of scale * code + bias in f32.
          const double rounding = 1e-6 * std::fabs(numerics::bf16_to_float(q.biases[g]));
          ASSERT_LE(std::fabs(back[i] - row[i]), half_step * 1.0001 + rounding) << "value " << row[i] << " at " << i;
        }
      }
    }
  }
}

TEST(AffineQuantiser, TheEdgeOfLargerMagnitudeIsExact) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::vector<float> row = random_row(random, 64);
    const Quantised q = quantise(row, {4, 64});
    std::vector<float> back(row.size());
    read_row(q.view, 0, 0, back.data());
    const auto edge =
        std::max_element(row.begin(), row.end(), [](float a, float b) { return std::fabs(a) < std::fabs(b); });
    if (std::fabs(*edge) < 1e-6F) continue;  // narrower than the smallest step
    EXPECT_EQ(back[static_cast<std::size_t>(edge - row.begin())], *edge);
  }
}

TEST(AffineQuantiser, AKnownGroup) {
  // Extremes -8 and 7: scale 1, bias -8, codes value + 8.
  std::vector<float> row(32);
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i % 16) - 8.0F;
  const Quantised q = quantise(row, {4, 32});
  EXPECT_EQ(numerics::bf16_to_float(q.scales[0]), 1.0F);
  EXPECT_EQ(numerics::bf16_to_float(q.biases[0]), -8.0F);
  EXPECT_EQ(q.codes[0], std::byte{0x10});
  EXPECT_EQ(q.codes[7], std::byte{0xfe});
  // Extremes -7 and 8: the scale is negative, so that 8 is exact.
  for (float& x : row) x = -x;
  const Quantised mirrored = quantise(row, {4, 32});
  EXPECT_EQ(numerics::bf16_to_float(mirrored.scales[0]), -1.0F);
  EXPECT_EQ(numerics::bf16_to_float(mirrored.biases[0]), 8.0F);
  EXPECT_EQ(mirrored.codes, q.codes);
}

TEST(AffineQuantiser, CodesSurviveTheBitStream) {
  for (unsigned seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    for (const int bits : kBits) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << bits << " bits");
      std::vector<std::uint8_t> codes(32 * (1 + random() % 8));
      for (std::uint8_t& code : codes) code = static_cast<std::uint8_t>(random() & ((1U << bits) - 1));
      std::vector<std::byte> stream(codes.size() * static_cast<std::size_t>(bits) / 8);
      pack_codes(codes, bits, stream.data());
      std::vector<std::uint8_t> back(codes.size());
      numerics::unpack_codes(reinterpret_cast<const std::uint8_t*>(stream.data()), bits, static_cast<int>(codes.size()),
                             back.data());
      EXPECT_EQ(back, codes);
    }
  }
}

}  // namespace
}  // namespace lockstep::artifact
