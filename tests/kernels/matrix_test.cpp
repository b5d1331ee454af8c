// Codes, activations and matrix products of the scalar kernels against docs/numerics.md N1 to N4 written a second time.
#include "kernels/cases.hpp"
#include "kernels/reference.hpp"
#include "numerics/affine.hpp"
#include "numerics/fold32.hpp"

namespace lockstep::kernels::test {
namespace {

constexpr int kGroups[] = {32, 64, 128};
constexpr ElementType kTypes[] = {ElementType::F32, ElementType::F16, ElementType::BF16};
constexpr int kSegment = 512;

bool same_number(float a, float b) {
  return (a != a && b != b) || numerics::float_bits(a) == numerics::float_bits(b);
}

TEST(Formats, EveryHalfAndBfloatIsWidenedExactly) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto stored = static_cast<std::uint16_t>(bits);
    std::byte bytes[2];
    std::memcpy(bytes, &stored, 2);
    ASSERT_TRUE(same_number(numerics::half_to_float(stored), element_float(bytes, ElementType::F16, 0))) << bits;
    ASSERT_TRUE(same_number(numerics::bf16_to_float(stored), element_float(bytes, ElementType::BF16, 0))) << bits;
    // Every bfloat16 number rounds to itself.
    if (numerics::bf16_to_float(stored) == numerics::bf16_to_float(stored)) {
      ASSERT_EQ(numerics::float_to_bf16(numerics::bf16_to_float(stored)), stored);
    }
  }
}

TEST(Formats, RoundingToBfloatIsToNearestEven) {
  const auto neighbour = [](std::uint32_t bits) { return numerics::bits_float(bits << 16); };
  for_seeds(20, [&](Random& random) {
    for (int i = 0; i < 5000; ++i) {
      // A number between two neighbours; often exactly in the middle, or one step beside it.
      const auto low = static_cast<std::uint32_t>(random.between(0, 0x7f7e) | random.between(0, 1) << 15);
      constexpr std::uint32_t kRests[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
      const std::uint32_t rest =
          random.chance(3) ? static_cast<std::uint32_t>(random.between(0, 0xffff)) : random.pick(kRests);
      const float x = numerics::bits_float(low << 16 | rest);
      const double below = std::abs(static_cast<double>(x) - static_cast<double>(neighbour(low)));
      const double above = std::abs(static_cast<double>(neighbour(low + 1)) - static_cast<double>(x));
      const std::uint32_t expected = below < above || (below == above && low % 2 == 0) ? low : low + 1;
      ASSERT_EQ(numerics::float_to_bf16(x), expected) << x;
    }
  });
  constexpr float kLargest = std::numeric_limits<float>::max();
  EXPECT_EQ(numerics::float_to_bf16(kLargest), 0x7f80);  // nearer to 2^128 than to the largest bfloat16
  EXPECT_EQ(numerics::float_to_bf16(-kLargest), 0xff80);
  for (const std::uint32_t nan : {0x7f800001U, 0x7fc00000U, 0xff800001U, 0x7fffffffU}) {
    const float back = numerics::bf16_to_float(numerics::float_to_bf16(numerics::bits_float(nan)));
    EXPECT_NE(back, back);
  }
}

TEST(Codes, UnpackingEqualsReadingBitByBit) {
  for (int bits = 2; bits <= 8; ++bits) {
    for_seeds(20, [&](Random& random) {
      const int count = random.pick(kGroups);
      const auto stream = random.bytes(count * bits / 8);  // nothing behind it
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(count));
      numerics::unpack_codes(stream.data(), bits, count, codes.data());
      for (int i = 0; i < count; ++i) {
        ASSERT_EQ(codes[static_cast<std::size_t>(i)], code_reference(stream.data(), bits, i)) << bits << " bits, " << i;
      }
    });
  }
}

struct Quantised {
  float step;
  std::vector<std::int16_t> values;
  std::int32_t sum;
};

Quantised quantise(const std::vector<float>& x) {
  Quantised out{0, std::vector<std::int16_t>(x.size()), 0};
  out.step = numerics::quantise_group(x.data(), static_cast<int>(x.size()), out.values.data(), &out.sum);
  return out;
}

/// N3 in double: t and x / t are rounded once to binary32 (a quotient in double rounds to the same number).
Quantised quantise_reference(const std::vector<float>& x) {
  Quantised out{0, std::vector<std::int16_t>(x.size()), 0};
  double top = 0;
  bool finite = true;
  for (const float value : x) {
    finite = finite && std::isfinite(value);
    top = std::max(top, std::abs(static_cast<double>(value)));
  }
  out.step = finite ? static_cast<float>(top / 32767.0) : std::numeric_limits<float>::quiet_NaN();
  if (!finite || out.step == 0) return out;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto quotient = static_cast<float>(static_cast<double>(x[i]) / static_cast<double>(out.step));
    const double rounded = std::nearbyint(static_cast<double>(quotient));
    out.values[i] = static_cast<std::int16_t>(std::clamp(rounded, -32767.0, 32767.0));
    out.sum += out.values[i];
  }
  return out;
}

TEST(Activations, FollowTheRule) {
  for_seeds(300, [](Random& random) {
    const auto x = random.values(random.pick(kGroups), random.pick(kStyles));
    const Quantised got = quantise(x);
    const Quantised want = quantise_reference(x);
    EXPECT_TRUE(same_number(got.step, want.step)) << got.step << " " << want.step;
    EXPECT_EQ(got.values, want.values);
    EXPECT_EQ(got.sum, want.sum);
  });
}

TEST(Activations, TiesGoToEven) {
  // The largest is 32767 * 2^e, so the step is 2^e and every half is a tie.
  for (const int exponent : {-40, 0, 17}) {
    std::vector<float> x(32, 0.0F);
    x[0] = std::ldexp(32767.0F, exponent);
    const float halves[] = {0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, 1000.5F, 32765.5F};
    const int expected[] = {0, 2, 2, 0, -2, -2, 1000, 32766};
    for (std::size_t i = 0; i < 8; ++i) x[i + 1] = std::ldexp(halves[i], exponent);
    const Quantised got = quantise(x);
    EXPECT_EQ(got.step, std::ldexp(1.0F, exponent));
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(got.values[i + 1], expected[i]) << halves[i];
  }
}

TEST(Activations, ZerosUnderflowAndDenormalSteps) {
  const std::vector<std::int16_t> zeros(64, 0);
  std::vector<float> x(64, -0.0F);
  EXPECT_EQ(quantise(x).step, 0.0F);
  EXPECT_EQ(quantise(x).values, zeros);
  // m / 32767 underflows to zero below 2^-150 * 32767.
  x[5] = 0x1p-149F * 16383.0F;
  EXPECT_EQ(quantise(x).step, 0.0F);
  EXPECT_EQ(quantise(x).values, zeros);
  EXPECT_EQ(quantise(x).sum, 0);
  // Just above, the step is the smallest denormal, and the quotient is out of range without the clamp.
  x[5] = -0x1p-149F * 49000.0F;
  x[6] = 0x1p-149F * 100.0F;
  const Quantised got = quantise(x);
  EXPECT_EQ(got.step, 0x1p-149F);
  EXPECT_EQ(got.values[5], -32767);
  EXPECT_EQ(got.values[6], 100);
  EXPECT_EQ(got.sum, -32667);
}

TEST(Activations, NonFiniteGroupsGiveNanAndZeros) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> x(128, 3.0F);
    x[77] = bad;
    const Quantised got = quantise(x);
    EXPECT_NE(got.step, got.step);
    EXPECT_EQ(got.values, std::vector<std::int16_t>(128, 0));
    EXPECT_EQ(got.sum, 0);
  }
}

/// N3 for one output: exact integer sums per group, groups added inside segments of 512 inputs, then the segments.
float affine_reference(const AffineMatrix& m, const QuantisedRows& x, std::int64_t row, std::int64_t t) {
  std::vector<float> segments(static_cast<std::size_t>((m.cols + kSegment - 1) / kSegment), 0.0F);
  for (std::int64_t group = 0; group < m.cols / m.group; ++group) {
    std::int64_t integer = 0;
    std::int64_t sum = 0;
    for (std::int64_t i = group * m.group; i < (group + 1) * m.group; ++i) {
      integer += static_cast<std::int64_t>(affine_element(m, row, i).code) * x.values[t * m.cols + i];
      sum += x.values[t * m.cols + i];
    }
    const AffineElement element = affine_element(m, row, group * m.group);
    const float step = x.steps[t * (m.cols / m.group) + group];
    const float st = element.scale * step;
    const float bt = element.bias * step;
    const float constant = bt * static_cast<float>(sum);
    segments[static_cast<std::size_t>(group * m.group / kSegment)] +=
        std::fma(st, static_cast<float>(integer), constant);
  }
  float total = 0.0F;
  for (const float segment : segments) total += segment;
  return total;
}

class AffineProduct : public testing::TestWithParam<int> {};

TEST_P(AffineProduct, EqualsTheFormula) {
  for_seeds(40, [](Random& random) {
    const int group = random.pick(kGroups);
    const std::int64_t groups = random.between(1, 1400 / group);
    const std::int64_t x_rows = random.between(1, 18);
    const OwnedAffine matrix(random, random.between(1, 4), GetParam(), group, groups, random.pick(kTypes),
                             random.pick(kStyles));
    const OwnedRows x(random.values(x_rows * groups * group, random.pick(kStyles)), x_rows, group);
    const std::int64_t stride = matrix.view.rows + 1;
    auto out = untouched(x_rows * stride);
    law().affine_rows(matrix.view, x.view, 0, matrix.view.rows, out.data(), stride);
    for (std::int64_t t = 0; t < x_rows; ++t) {
      for (std::int64_t row = 0; row < matrix.view.rows; ++row) {
        const float got = out[static_cast<std::size_t>(t * stride + row)];
        ASSERT_TRUE(same_number(got, affine_reference(matrix.view, x.view, row, t)))
            << "row " << row << ", token " << t;
      }
      ASSERT_EQ(out[static_cast<std::size_t>(t * stride + matrix.view.rows)], kUntouched);
    }
  });
}

// What 16-bit activations cost: half a step per input, and the rounding of the few operations per group.
TEST_P(AffineProduct, IsCloseToTheProductOfTheRealNumbers) {
  for_seeds(40, [](Random& random) {
    const int group = random.pick(kGroups);
    const std::int64_t groups = random.between(1, 1400 / group);
    const OwnedAffine matrix(random, 3, GetParam(), group, groups, random.pick(kTypes), Style::Normal);
    const auto x = random.values(groups * group, random.chance(2) ? Style::Normal : Style::Zeros);
    const OwnedRows quantised(x, 1, group);
    std::vector<float> out(3);
    law().affine_rows(matrix.view, quantised.view, 0, 3, out.data(), 3);
    for (std::int64_t row = 0; row < 3; ++row) {
      long double exact = 0;
      double error = 0;
      double magnitude = 0;
      for (std::int64_t i = 0; i < groups * group; ++i) {
        const AffineElement w = affine_element(matrix.view, row, i);
        const double step = quantised.steps[static_cast<std::size_t>(i / group)];
        const double a = std::abs(quantised.values[static_cast<std::size_t>(i)] * step);
        exact += static_cast<long double>(w.weight()) * static_cast<long double>(x[static_cast<std::size_t>(i)]);
        error += std::abs(w.weight()) * 0.501 * step;
        magnitude += (std::abs(static_cast<double>(w.scale)) * w.code + std::abs(static_cast<double>(w.bias))) * a;
      }
      error += (static_cast<double>(groups) + 8) * kRoundoff * magnitude;
      EXPECT_LE(std::abs(out[static_cast<std::size_t>(row)] - static_cast<double>(exact)), error);
    }
  });
}

TEST_P(AffineProduct, UnquantisedActivationsUseDequantisedWeights) {
  for_seeds(30, [](Random& random) {
    const int group = random.pick(kGroups);
    const std::int64_t cols = group * random.between(1, 8);
    const std::int64_t x_rows = random.between(1, 18);
    const OwnedAffine matrix(random, 3, GetParam(), group, cols / group, random.pick(kTypes),
                             random.pick(kFiniteStyles));
    const auto x = random.values(x_rows * cols, random.pick(kFiniteStyles));
    auto out = untouched(x_rows * 3);
    law().affine_rows_unquantised(matrix.view, x.data(), x_rows, 0, 3, out.data(), 3);
    for (std::int64_t row = 0; row < 3; ++row) {
      auto weights = untouched(cols);
      law().affine_row(matrix.view, row, weights.data());
      for (std::int64_t i = 0; i < cols; ++i) {
        const AffineElement w = affine_element(matrix.view, row, i);
        ASSERT_TRUE(
            same_number(weights[static_cast<std::size_t>(i)], std::fma(w.scale, static_cast<float>(w.code), w.bias)));
      }
      for (std::int64_t t = 0; t < x_rows; ++t) {
        const std::span<const float> xs(x.data() + t * cols, static_cast<std::size_t>(cols));
        ASSERT_TRUE(same_number(out[static_cast<std::size_t>(t * 3 + row)], fold32_dot_reference(weights, xs)));
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Bits, AffineProduct, testing::Values(2, 3, 4, 5, 6, 8));

TEST(Fold32, OrderIsThatOfThePage) {
  for_seeds(300, [](Random& random) {
    const std::int64_t n = random.between(0, 400);
    const auto a = random.values(n, random.pick(kStyles));
    const auto b = random.values(n, random.pick(kStyles));
    const auto size = static_cast<std::size_t>(n);
    EXPECT_TRUE(same_number(numerics::fold32_dot(a.data(), b.data(), size), fold32_dot_reference(a, b)));
    const float sum = fold32_reference(size, [&](std::size_t i, float lane) { return lane + a[i]; });
    EXPECT_TRUE(same_number(numerics::fold32_sum(a.data(), size), sum));
  });
  // 33 ones and large numbers that cancel only in this order: lane 0 takes elements 0 and 32 before lanes meet.
  std::vector<float> x(33, 1.0F);
  x[0] = 1e30F;
  x[32] = -1e30F;
  EXPECT_EQ(numerics::fold32_sum(x.data(), 33), 31.0F);
  x[32] = 1.0F;
  x[16] = -1e30F;  // lane 16 meets lane 0 first, and takes element 32 with it
  EXPECT_EQ(numerics::fold32_sum(x.data(), 33), 30.0F);
  // Products that underflow leave -0 in their lanes; missing elements of a last partial row make +0 of it.
  const std::vector<float> a(33, -1e-30F);
  const std::vector<float> b(33, 1e-30F);
  EXPECT_TRUE(std::signbit(numerics::fold32_dot(a.data(), b.data(), 32)));
  EXPECT_FALSE(std::signbit(numerics::fold32_dot(a.data(), b.data(), 33)));
}

TEST(DenseProduct, IsFold32OfTheWidenedWeights) {
  for_seeds(150, [](Random& random) {
    const ElementType type = random.pick(kTypes);
    const std::int64_t rows = random.between(1, 5);
    const std::int64_t cols = random.between(1, 300);
    const std::int64_t x_rows = random.between(1, 4);
    const auto data = random.elements(rows * cols, type, random.pick(kStyles));
    const DenseMatrix matrix{data.data(), type, rows, cols};
    const auto x = random.values(x_rows * cols, random.pick(kStyles));
    auto out = untouched(x_rows * rows);
    law().dense_rows(matrix, x.data(), x_rows, 0, rows, out.data(), rows);
    for (std::int64_t row = 0; row < rows; ++row) {
      auto weights = untouched(cols);
      law().dense_row(matrix, row, weights.data());
      for (std::int64_t i = 0; i < cols; ++i) {
        ASSERT_TRUE(
            same_number(weights[static_cast<std::size_t>(i)], element_float(data.data(), type, row * cols + i)));
      }
      for (std::int64_t t = 0; t < x_rows; ++t) {
        const std::span<const float> xs(x.data() + t * cols, static_cast<std::size_t>(cols));
        const float got = out[static_cast<std::size_t>(t * rows + row)];
        ASSERT_TRUE(same_number(got, fold32_dot_reference(weights, xs)));
        if (std::isfinite(got)) {
          EXPECT_LE(std::abs(got - dot_exact(weights, xs)), fold32_error(weights, xs));
        }
      }
    }
  });
}

TEST(MatrixRows, NothingOutsideTheRangeIsWritten) {
  for_seeds(50, [](Random& random) {
    const std::int64_t rows = random.between(1, 20);
    const std::int64_t begin = random.between(0, rows);
    const std::int64_t end = random.between(begin, rows);
    const std::int64_t x_rows = random.between(1, 20);
    const OwnedAffine affine(random, rows, 4, 64, 2, ElementType::BF16, Style::Normal);
    const auto data = random.elements(rows * 128, ElementType::BF16, Style::Normal);
    const DenseMatrix dense{data.data(), ElementType::BF16, rows, 128};
    const auto x = random.values(x_rows * 128, Style::Normal);
    const OwnedRows quantised(x, x_rows, 64);
    for (const Kernels* k : available_kernels()) {
      auto a = untouched(x_rows * rows);
      auto b = a;
      auto c = a;
      k->affine_rows(affine.view, quantised.view, begin, end, a.data(), rows);
      k->affine_rows_unquantised(affine.view, x.data(), x_rows, begin, end, b.data(), rows);
      k->dense_rows(dense, x.data(), x_rows, begin, end, c.data(), rows);
      for (const auto* out : {&a, &b, &c}) {
        for (std::int64_t i = 0; i < x_rows * rows; ++i) {
          const bool inside = i % rows >= begin && i % rows < end;
          ASSERT_EQ((*out)[static_cast<std::size_t>(i)] != kUntouched, inside) << k->name << ", element " << i;
        }
      }
    }
  });
}

}  // namespace
}  // namespace lockstep::kernels::test
