// Top-k and routing (docs/numerics.md N5 and N7).
#include <set>

#include "kernels/cases.hpp"
#include "kernels/reference.hpp"
#include "numerics/canon_math.hpp"

namespace lockstep::kernels::test {
namespace {

std::vector<std::int32_t> top_k(const Kernels& kernels, const std::vector<float>& values, std::int64_t k) {
  std::vector<std::int32_t> indices(static_cast<std::size_t>(k), -1);
  std::vector<std::uint64_t> scratch(values.size());
  kernels.top_k(values.data(), static_cast<std::int64_t>(values.size()), k, indices.data(), scratch.data());
  return indices;
}

std::vector<std::int32_t> sorted_first(const std::vector<float>& values, std::int64_t k) {
  std::vector<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  order.resize(static_cast<std::size_t>(k));
  return order;
}

TEST(TopK, EqualsAStableSort) {
  for_seeds(400, [](Random& random) {
    const std::int64_t n = random.between(1, 400);
    auto values = random.values(n, random.pick(kFiniteStyles));
    if (random.chance(2)) {
      for (float& x : values) x = std::round(x);
    }
    if (random.chance(3)) {
      for (float& x : values) x = random.chance(2) ? 0.0F : -0.0F;
    }
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    if (random.chance(3)) values[static_cast<std::size_t>(random.between(0, n - 1))] = kInfinity;
    if (random.chance(3)) values[static_cast<std::size_t>(random.between(0, n - 1))] = -kInfinity;
    const std::int64_t k = random.chance(4) ? n : random.between(1, n);
    EXPECT_EQ(top_k(law(), values, k), sorted_first(values, k)) << n << " values, k " << k;
  });
}

TEST(TopK, ZerosAreEqualAndGoByIndex) {
  const std::vector<float> values = {-0.0F, 0.0F, -1.0F, -0.0F, 0.0F};
  for (const Kernels* k : available_kernels()) {
    EXPECT_EQ(top_k(*k, values, 5), (std::vector<std::int32_t>{0, 1, 3, 4, 2})) << k->name;
    EXPECT_EQ(top_k(*k, values, 0), std::vector<std::int32_t>());
  }
}

TEST(TopK, NanBreaksNothing) {
  for_seeds(200, [](Random& random) {
    const std::int64_t n = random.between(1, 200);
    auto values = random.values(n, Style::Normal);
    const std::int64_t nans = random.between(1, n);
    for (std::int64_t i = 0; i < nans; ++i) {
      const float sign = random.chance(2) ? -1.0F : 1.0F;
      values[static_cast<std::size_t>(random.between(0, n - 1))] =
          std::copysign(std::numeric_limits<float>::quiet_NaN(), sign);
    }
    const std::int64_t k = random.between(1, n);
    for (const Kernels* table : available_kernels()) {
      const auto indices = top_k(*table, values, k);
      const std::set<std::int32_t> distinct(indices.begin(), indices.end());
      EXPECT_EQ(distinct.size(), indices.size()) << table->name;
      EXPECT_GE(*distinct.begin(), 0);
      EXPECT_LT(*distinct.rbegin(), n);
    }
  });
}

struct Routed {
  std::vector<std::int32_t> experts;
  std::vector<float> weights, probabilities;
};

Routed route(const Kernels& kernels, std::vector<float> logits, std::int64_t k) {
  Routed out{std::vector<std::int32_t>(static_cast<std::size_t>(k), -1), untouched(k), std::move(logits)};
  std::vector<std::uint64_t> scratch(out.probabilities.size());
  kernels.route(out.probabilities.data(), static_cast<std::int64_t>(out.probabilities.size()), k, out.experts.data(),
                out.weights.data(), scratch.data());
  return out;
}

TEST(Route, SoftmaxThenTheBestRenormalised) {
  for_seeds(200, [](Random& random) {
    const std::int64_t n = random.between(1, 300);
    const std::int64_t k = random.between(1, std::min<std::int64_t>(n, 12));
    auto logits = random.values(n, Style::Normal);
    if (random.chance(2)) {
      for (float& x : logits) x = std::round(4 * x) / 4;  // ties
    }
    const Routed got = route(law(), logits, k);
    // Softmax keeps the order but may merge neighbours, so the order is that of the computed probabilities.
    EXPECT_EQ(got.experts, sorted_first(got.probabilities, k));
    const double top = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float x : logits) sum += std::exp(x - top);
    double chosen = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double p = std::exp(logits[i] - top) / sum;
      // exp 2 ulp and the rounded difference, the sum as fold32, one division.
      const double share = (static_cast<double>(n) / 32 + 20 + std::abs(logits[i] - top)) * kRoundoff;
      EXPECT_LE(std::abs(got.probabilities[i] - p), share * p) << i;
    }
    for (const std::int32_t e : got.experts) chosen += got.probabilities[static_cast<std::size_t>(e)];
    double total = 0;
    for (std::size_t r = 0; r < got.weights.size(); ++r) {
      const double p = got.probabilities[static_cast<std::size_t>(got.experts[r])];
      EXPECT_LE(std::abs(got.weights[r] - p / chosen), static_cast<double>(k + 2) * kRoundoff * p / chosen);
      total += got.weights[r];
    }
    EXPECT_NEAR(total, 1.0, static_cast<double>(k + 3) * kRoundoff);
  });
}

TEST(Route, HasTheOperationsOfThePage) {
  for_seeds(100, [](Random& random) {
    const std::int64_t n = random.between(1, 300);
    const std::int64_t k = random.between(1, std::min<std::int64_t>(n, 12));
    const auto logits = random.values(n, random.pick(kFiniteStyles));
    const float top = *std::max_element(logits.begin(), logits.end());
    std::vector<float> e;
    for (const float x : logits) e.push_back(numerics::canon_exp(x - top));
    const float sum = fold32_reference(e.size(), [&](std::size_t i, float lane) { return lane + e[i]; });
    for (float& x : e) x /= sum;
    float chosen = 0.0F;
    const auto order = sorted_first(e, k);
    for (const std::int32_t i : order) chosen += e[static_cast<std::size_t>(i)];
    std::vector<float> weights;
    for (const std::int32_t i : order) weights.push_back(e[static_cast<std::size_t>(i)] / chosen);
    const Routed got = route(law(), logits, k);
    expect_equal(Bits().add(got.probabilities).add(got.weights).add_integers(got.experts),
                 Bits().add(e).add(weights).add_integers(order), "routing");
  });
}

TEST(Route, LargeLogitsDoNotOverflow) {
  const Routed got = route(law(), {-3e38F, 3e38F, 3e38F, 0.0F}, 2);
  EXPECT_EQ(got.experts, (std::vector<std::int32_t>{1, 2}));
  EXPECT_EQ(got.weights, (std::vector<float>{0.5F, 0.5F}));
}

TEST(Route, NanGivesNanWeightsOfValidExperts) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const std::size_t where : {0U, 3U, 7U}) {
      std::vector<float> logits(8, 1.0F);
      logits[where] = bad;
      for (const Kernels* table : available_kernels()) {
        const Routed got = route(*table, logits, 3);
        const std::set<std::int32_t> distinct(got.experts.begin(), got.experts.end());
        EXPECT_EQ(distinct.size(), 3U);
        EXPECT_GE(*distinct.begin(), 0);
        EXPECT_LT(*distinct.rbegin(), 8);
        for (const float w : got.weights) EXPECT_NE(w, w) << table->name << ", logit " << where;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels::test
