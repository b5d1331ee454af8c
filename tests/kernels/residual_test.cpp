// Norms, hyper-connections and the n-gram gate against the same equations in double.
//
// Bounds follow the operations: a rounded operation errs by kRoundoff of its result, fold32 as reference.hpp says,
// exp, sigmoid and silu by at most 2 ulp (4 kRoundoff).
#include "kernels/cases.hpp"
#include "kernels/reference.hpp"
#include "numerics/canon_math.hpp"

namespace lockstep::kernels::test {
namespace {

double relative_to(double value) {
  return kRoundoff * std::abs(value) + kTiniest;
}

/// 1 / sqrt(mean of squares + eps), and the relative error of the computed one: half that of the mean, then a root and
/// a quotient.
double inverse_rms(std::span<const float> x, double eps) {
  return 1 / std::sqrt(dot_exact(x, x) / static_cast<double>(x.size()) + eps);
}
double inverse_rms_error(std::size_t n) {
  return (static_cast<double>(n) / 64 + 8) * kRoundoff;
}

TEST(Residual, RmsNormPerGroup) {
  for_seeds(100, [](Random& random) {
    const std::int64_t size = random.between(1, 300);
    const std::int64_t groups = random.between(1, 4);
    const auto x = random.values(groups * size, random.pick(kFiniteStyles));
    const auto weight = random.values(groups * size, Style::Normal);
    auto out = untouched(groups * size);
    law().rms_norm(x.data(), weight.data(), groups, size, 1e-6F, out.data());
    for (std::int64_t i = 0; i < groups * size; ++i) {
      const std::span<const float> group(x.data() + i / size * size, static_cast<std::size_t>(size));
      const auto at = static_cast<std::size_t>(i);
      const double exact = x[at] * inverse_rms(group, static_cast<double>(1e-6F)) * weight[at];
      EXPECT_LE(std::abs(out[at] - exact), std::abs(exact) * inverse_rms_error(group.size()) + 4 * kTiniest);
    }
    auto in_place = x;
    law().rms_norm(in_place.data(), weight.data(), groups, size, 1e-6F, in_place.data());
    expect_equal(Bits().add(in_place), Bits().add(out), "in place");
  });
}

TEST(Residual, GatedNormAndUnitVector) {
  for_seeds(100, [](Random& random) {
    const std::int64_t n = random.between(1, 200);
    const auto x = random.values(n, random.pick(kFiniteStyles));
    const auto z = random.values(n, Style::Normal);
    const auto weight = random.values(n, Style::Normal);
    auto gated = untouched(n);
    auto unit = untouched(n);
    law().gated_norm(x.data(), z.data(), weight.data(), n, 1e-6F, gated.data());
    law().unit_vector(x.data(), n, 0.125F, unit.data());
    const double inverse = inverse_rms(x, static_cast<double>(1e-6F));
    const double length = 1 / std::sqrt(dot_exact(x, x) + static_cast<double>(1e-6F));
    const double share = inverse_rms_error(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double exact = x[i] * inverse * weight[i] * sigmoid_exact(z[i]);
      EXPECT_LE(std::abs(gated[i] - exact), std::abs(exact) * (share + 6 * kRoundoff) + 4 * kTiniest);
      const double unit_exact = x[i] * length * 0.125;
      EXPECT_LE(std::abs(unit[i] - unit_exact), std::abs(unit_exact) * share + 4 * kTiniest);
    }
  });
}

TEST(Residual, GatedMeanOfTheStreams) {
  for_seeds(100, [](Random& random) {
    const std::int64_t streams = random.between(1, 5);
    const std::int64_t hidden = random.between(1, 60);
    const auto gate = random.values(streams * hidden, Style::Normal);
    const auto n = random.values(streams * hidden, random.pick(kFiniteStyles));
    auto u = untouched(hidden);
    law().gated_mean(gate.data(), n.data(), streams, hidden, u.data());
    for (std::int64_t i = 0; i < hidden; ++i) {
      double exact = 0;
      double magnitude = 0;
      float ordered = 0;
      for (std::int64_t s = 0; s < streams; ++s) {
        const auto at = static_cast<std::size_t>(s * hidden + i);
        const double term = sigmoid_exact(gate[at]) * n[at] / static_cast<double>(streams);
        exact += term;
        magnitude += std::abs(term);
        const float weight = numerics::canon_sigmoid(gate[at]);
        ordered = s == 0 ? weight * n[at] : std::fma(weight, n[at], ordered);
      }
      EXPECT_LE(std::abs(u[static_cast<std::size_t>(i)] - exact), 10 * relative_to(magnitude));
      EXPECT_EQ(u[static_cast<std::size_t>(i)], ordered / static_cast<float>(streams));
    }
  });
}

TEST(Residual, InjectionAndItsWeights) {
  for_seeds(100, [](Random& random) {
    const std::int64_t streams = random.between(1, 5);
    const std::int64_t hidden = random.between(1, 60);
    const auto raw = random.values(streams, Style::Normal);
    auto weights = raw;
    law().inject_weights(weights.data(), streams);
    for (std::size_t s = 0; s < raw.size(); ++s) {
      const double exact = 2 * sigmoid_exact(raw[s] / static_cast<double>(streams));
      EXPECT_LE(std::abs(weights[s] - exact), 8 * relative_to(exact));
    }
    const auto x = random.values(streams * hidden, random.pick(kFiniteStyles));
    const auto y = random.values(hidden, random.pick(kFiniteStyles));
    auto out = x;
    law().inject(out.data(), weights.data(), y.data(), streams, hidden);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto stream = i / static_cast<std::size_t>(hidden);
      EXPECT_EQ(out[i], std::fma(weights[stream], y[i % static_cast<std::size_t>(hidden)], x[i]));
    }
  });
}

TEST(Residual, DividedSiluAndElementwiseProducts) {
  for_seeds(100, [](Random& random) {
    const std::int64_t n = random.between(1, 100);
    auto x = random.values(n, random.chance(3) ? Style::Zeros : Style::Normal);
    for (float& value : x) value *= 8.0F;
    const auto y = random.values(n, Style::Normal);
    auto divided = x;
    law().silu_divided(divided.data(), n, 3.0F);
    auto product = x;
    law().silu_product(product.data(), y.data(), n, product.data());
    auto gated = x;
    law().sigmoid_gate(gated.data(), y.data(), n);
    auto sum = x;
    law().add(sum.data(), y.data(), divided.data(), n);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double third = x[i] / 3.0;
      const double silu = third * sigmoid_exact(third);
      // The rounded quotient moves silu by at most (1 + |x|) roundoffs of it.
      EXPECT_LE(std::abs(divided[i] - silu), (5 + std::abs(third)) * relative_to(silu)) << x[i];
      const double exact = x[i] * sigmoid_exact(x[i]) * y[i];
      EXPECT_LE(std::abs(product[i] - exact), 6 * relative_to(exact)) << x[i];
      const double gate = x[i] * sigmoid_exact(y[i]);
      EXPECT_LE(std::abs(gated[i] - gate), 6 * relative_to(gate));
      const float right = y[i] + divided[i];  // the sum on the right first
      EXPECT_EQ(sum[i], x[i] + right);
    }
  });
}

TEST(Residual, CombinationOfExperts) {
  for_seeds(100, [](Random& random) {
    const std::int64_t ranks = random.between(1, 10);
    const std::int64_t n = random.between(1, 60);
    const auto outputs = random.values(ranks * n, random.pick(kFiniteStyles));
    const auto weights = random.positive(ranks, 0.0F, 1.0F);
    const auto shared = random.values(n, random.pick(kFiniteStyles));
    const float logit = random.value(Style::Normal);
    std::vector<const float*> parts;
    for (std::int64_t r = 0; r < ranks; ++r) parts.push_back(outputs.data() + r * n);
    auto y = untouched(n);
    law().combine(parts.data(), weights.data(), ranks, shared.data(), logit, n, y.data());
    for (std::int64_t i = 0; i < n; ++i) {
      double exact = sigmoid_exact(logit) * shared[static_cast<std::size_t>(i)];
      double magnitude = std::abs(exact);
      float ordered = 0.0F;
      for (std::int64_t r = 0; r < ranks; ++r) {
        const double term =
            static_cast<double>(weights[static_cast<std::size_t>(r)]) * parts[static_cast<std::size_t>(r)][i];
        exact += term;
        magnitude += std::abs(term);
        ordered = std::fma(weights[static_cast<std::size_t>(r)], parts[static_cast<std::size_t>(r)][i], ordered);
      }
      ordered = std::fma(numerics::canon_sigmoid(logit), shared[static_cast<std::size_t>(i)], ordered);
      EXPECT_EQ(y[static_cast<std::size_t>(i)], ordered);
      EXPECT_LE(std::abs(y[static_cast<std::size_t>(i)] - exact),
                (static_cast<double>(ranks) + 6) * relative_to(magnitude));
    }
  });
}

TEST(Residual, NgramGate) {
  const auto gate_of = [](double d) {
    const double root = std::sqrt(std::max(std::abs(d), 1e-6));
    return sigmoid_exact(d > 0 ? root : (d < 0 ? -root : 0.0));
  };
  for_seeds(150, [&](Random& random) {
    const std::int64_t streams = random.between(1, 4);
    const std::int64_t hidden = random.between(1, 200);
    const auto key = random.values(streams * hidden, random.chance(4) ? Style::Tiny : Style::Normal);
    const auto query = random.values(streams * hidden, Style::Normal);
    const auto value = random.values(hidden, Style::Normal);
    auto gated = untouched(streams * hidden);
    law().ple_gate(key.data(), query.data(), value.data(), streams, hidden, gated.data());
    for (std::int64_t s = 0; s < streams; ++s) {
      const std::span<const float> k(key.data() + s * hidden, static_cast<std::size_t>(hidden));
      const std::span<const float> q(query.data() + s * hidden, static_cast<std::size_t>(hidden));
      const double root = std::sqrt(static_cast<double>(hidden));
      const double d = dot_exact(k, q) / root;
      const double d_error = fold32_error(k, q) / root + 4 * kRoundoff * std::abs(d);
      // The gate rises with d: what d may err bounds what the gate may err, also where the sign is in doubt.
      const double low = gate_of(d - d_error) * (1 - 8 * kRoundoff);
      const double high = gate_of(d + d_error) * (1 + 8 * kRoundoff);
      for (std::int64_t i = 0; i < hidden; ++i) {
        const double v = value[static_cast<std::size_t>(i)];
        const double got = gated[static_cast<std::size_t>(s * hidden + i)];
        EXPECT_GE(got, std::min(low * v, high * v) - kTiniest);
        EXPECT_LE(got, std::max(low * v, high * v) + kTiniest);
      }
    }
  });
  // d = 0 has no sign: the gate is one half.
  const float zeros[] = {0.0F, -0.0F, 0.0F};
  const float ones[] = {1.0F, 1.0F, -1.0F};
  float out[3];
  law().ple_gate(zeros, ones, ones, 1, 3, out);
  EXPECT_EQ(out[0], 0.5F);
  EXPECT_EQ(out[2], -0.5F);
}

}  // namespace
}  // namespace lockstep::kernels::test
