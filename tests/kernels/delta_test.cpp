// Convolution, gates and the gated delta rule against docs/numerics.md N6 and against the recurrence in double.
#include "kernels/cases.hpp"
#include "kernels/reference.hpp"

namespace lockstep::kernels::test {
namespace {

struct Shape {
  std::int64_t key_dim, value_dim;
};

Shape random_shape(Random& random) {
  if (random.chance(4)) return {128, 128};
  return {random.between(1, 200), random.between(1, 70)};
}

struct Inputs {
  Inputs(Random& random, Shape shape, Style style)
      : state(random.values(shape.key_dim * shape.value_dim, style)),
        key(random.values(shape.key_dim, style)),
        query(random.values(shape.key_dim, style)),
        value(random.values(shape.value_dim, style)),
        decay(random.positive(1, 0.0F, 1.0F)[0]),
        beta(random.positive(1, 0.0F, 1.0F)[0]) {}

  std::vector<float> state, key, query, value;
  float decay, beta;
};

struct Step {
  std::vector<float> state, delta, out;
};

Step run(const Inputs& in, Shape shape) {
  Step step{untouched(shape.key_dim * shape.value_dim), untouched(shape.value_dim), untouched(shape.value_dim)};
  law().delta_step({in.state.data(), in.key.data(), in.query.data(), in.value.data(), in.decay, in.beta, shape.key_dim,
                    shape.value_dim, step.state.data(), step.delta.data(), step.out.data()});
  return step;
}

/// Neighbours are added until one number is left; an odd one at the end waits.
float pairwise(std::vector<float> sums) {
  while (sums.size() > 1) {
    std::vector<float> next;
    for (std::size_t i = 0; i + 1 < sums.size(); i += 2) next.push_back(sums[i] + sums[i + 1]);
    if (sums.size() % 2 != 0) next.push_back(sums.back());
    sums = std::move(next);
  }
  return sums[0];
}

/// Sum over keys of column[k] * factor[k] as N6 orders it.
float key_sum(const std::vector<float>& column, const std::vector<float>& factor) {
  std::vector<float> sums((column.size() + 31) / 32, 0.0F);
  for (std::size_t k = 0; k < column.size(); ++k) sums[k / 32] = std::fma(column[k], factor[k], sums[k / 32]);
  return pairwise(sums);
}

/// One value column after the other.
Step step_reference(const Inputs& in, Shape shape) {
  Step step{untouched(shape.key_dim * shape.value_dim), untouched(shape.value_dim), untouched(shape.value_dim)};
  const auto columns = static_cast<std::size_t>(shape.value_dim);
  for (std::size_t c = 0; c < columns; ++c) {
    std::vector<float> column(in.key.size());
    for (std::size_t k = 0; k < column.size(); ++k) column[k] = in.state[k * columns + c] * in.decay;
    const float rest = in.value[c] - key_sum(column, in.key);
    step.delta[c] = in.beta * rest;
    for (std::size_t k = 0; k < column.size(); ++k) column[k] = std::fma(in.key[k], step.delta[c], column[k]);
    step.out[c] = key_sum(column, in.query);
    for (std::size_t k = 0; k < column.size(); ++k) step.state[k * columns + c] = column[k];
  }
  return step;
}

TEST(Delta, StepHasTheOrderOfThePage) {
  for_seeds(150, [](Random& random) {
    const Shape shape = random_shape(random);
    const Inputs in(random, shape, random.pick(kStyles));
    const Step got = run(in, shape);
    const Step want = step_reference(in, shape);
    expect_equal(Bits().add(got.state), Bits().add(want.state), "state");
    expect_equal(Bits().add(got.delta), Bits().add(want.delta), "delta");
    expect_equal(Bits().add(got.out), Bits().add(want.out), "out");
  });
}

TEST(Delta, InPlaceIsTheSame) {
  for_seeds(50, [](Random& random) {
    const Shape shape = random_shape(random);
    const Inputs in(random, shape, random.pick(kStyles));
    const Step apart = run(in, shape);
    Step step{in.state, untouched(shape.value_dim), untouched(shape.value_dim)};
    law().delta_step({step.state.data(), in.key.data(), in.query.data(), in.value.data(), in.decay, in.beta,
                      shape.key_dim, shape.value_dim, step.state.data(), step.delta.data(), step.out.data()});
    expect_equal(Bits().add(step.state).add(step.delta).add(step.out),
                 Bits().add(apart.state).add(apart.delta).add(apart.out), "in place");
  });
}

// A rejected row is taken back by replaying the accepted ones, so the replay must give the step's bits.
TEST(Delta, ReplayGivesTheStateOfTheSteps) {
  for_seeds(80, [](Random& random) {
    const Shape shape = random_shape(random);
    const Style style = random.pick(kStyles);
    Inputs in(random, shape, style);
    std::vector<float> stepped = in.state;
    std::vector<float> replayed = in.state;
    for (int t = 0; t < 5; ++t) {
      const Inputs row(random, shape, style);
      in.key = row.key;
      in.query = row.query;
      in.value = row.value;
      in.decay = row.decay;
      in.beta = row.beta;
      in.state = stepped;
      const Step step = run(in, shape);
      stepped = step.state;
      if (t == 0) {
        const std::vector<float> before = replayed;
        law().delta_replay(before.data(), in.key.data(), step.delta.data(), in.decay, shape.key_dim, shape.value_dim,
                           replayed.data());
      } else {
        law().delta_replay(replayed.data(), in.key.data(), step.delta.data(), in.decay, shape.key_dim, shape.value_dim,
                           replayed.data());
      }
      expect_equal(Bits().add(replayed), Bits().add(stepped), "row " + std::to_string(t));
    }
  });
}

/// The recurrence as docs/model.md 3.4 writes it, in double, over many tokens with unit keys: errors of a step decay
/// with the state, so the distance stays near a few roundoffs per key.
TEST(Delta, ManyStepsStayCloseToTheRecurrenceInDouble) {
  for_seeds(10, [](Random& random) {
    const Shape shape{random.pick({64, 96, 128}), 24};
    const auto keys = static_cast<std::size_t>(shape.key_dim);
    const auto columns = static_cast<std::size_t>(shape.value_dim);
    Inputs in(random, shape, Style::Normal);
    in.state.assign(in.state.size(), 0.0F);
    std::vector<double> exact(in.state.size(), 0.0);
    double worst = 0;
    double largest = 0;
    for (int t = 0; t < 200; ++t) {
      const Inputs row(random, shape, Style::Normal);
      law().unit_vector(row.key.data(), shape.key_dim, 1.0F, in.key.data());
      law().unit_vector(row.query.data(), shape.key_dim, 0.1F, in.query.data());
      in.value = row.value;
      in.beta = row.beta;
      in.decay = random.positive(1, 0.8F, 1.0F)[0];
      const Step step = run(in, shape);
      in.state = step.state;
      for (std::size_t c = 0; c < columns; ++c) {
        double recalled = 0;
        for (std::size_t k = 0; k < keys; ++k) recalled += in.decay * exact[k * columns + c] * in.key[k];
        const double delta = in.beta * (in.value[c] - recalled);
        double out = 0;
        for (std::size_t k = 0; k < keys; ++k) {
          double& s = exact[k * columns + c];
          s = in.decay * s + in.key[k] * delta;
          out += s * in.query[k];
          worst = std::max(worst, std::abs(s - in.state[k * columns + c]));
          largest = std::max(largest, std::abs(s));
        }
        EXPECT_LE(std::abs(out - step.out[c]), 1e-5 * largest);
      }
    }
    EXPECT_LE(worst, 256 * kRoundoff * largest);
    EXPECT_GT(largest, 0.1);
  });
}

TEST(Delta, DecayAndBeta) {
  for_seeds(100, [](Random& random) {
    const std::int64_t heads = random.between(1, 60);
    const auto a = random.values(heads, Style::Normal);
    const auto b = random.values(heads, Style::Normal);
    const auto bias = random.values(heads, Style::Normal);
    const auto neg_a = random.positive(heads, -16.0F, 0.0F);
    auto decay = untouched(heads);
    auto beta = untouched(heads);
    law().gates(a.data(), b.data(), neg_a.data(), bias.data(), heads, decay.data(), beta.data());
    for (std::size_t h = 0; h < a.size(); ++h) {
      const double x = static_cast<double>(a[h]) + static_cast<double>(bias[h]);
      const double exponent = neg_a[h] * std::log1p(std::exp(x));
      const double exact = std::exp(exponent);
      // softplus errs by 2 ulp, and by what the rounded sum moves it: at most (1 + |x|) roundoffs of it.
      const double exponent_error = std::abs(exponent) * (8 + std::abs(x)) * kRoundoff;
      EXPECT_LE(std::abs(decay[h] - exact), exact * (exponent_error + 4 * kRoundoff) + kTiniest);
      EXPECT_LE(decay[h], 1.0F);
      EXPECT_LE(std::abs(beta[h] - sigmoid_exact(b[h])), 4 * kRoundoff * sigmoid_exact(b[h]));
    }
  });
}

TEST(Delta, ConvolutionAndSilu) {
  for_seeds(100, [](Random& random) {
    const std::int64_t channels = random.between(1, 80);
    const std::int64_t kernel = random.between(1, 6);
    const auto columns = random.values(kernel * channels, Style::Normal);
    const auto weight = random.values(channels * kernel, Style::Normal);
    std::vector<const float*> taps;
    for (std::int64_t j = 0; j < kernel; ++j) taps.push_back(columns.data() + j * channels);
    const std::int64_t begin = random.between(0, channels - 1);
    auto out = untouched(channels);
    law().conv_silu(taps.data(), weight.data(), kernel, begin, channels, out.data());
    for (std::int64_t c = 0; c < channels; ++c) {
      const float got = out[static_cast<std::size_t>(c)];
      if (c < begin) {
        EXPECT_EQ(got, kUntouched);
        continue;
      }
      double sum = 0;
      double magnitude = 0;
      for (std::int64_t j = 0; j < kernel; ++j) {
        const double term = static_cast<double>(weight[static_cast<std::size_t>(c * kernel + j)]) *
                            taps[static_cast<std::size_t>(j)][c];
        sum += term;
        magnitude += std::abs(term);
      }
      const double exact = sum * sigmoid_exact(sum);
      // silu's slope is below 1.1.
      const double error = 1.1 * static_cast<double>(kernel) * kRoundoff * magnitude + 4 * kRoundoff * std::abs(exact);
      EXPECT_LE(std::abs(got - exact), error + kTiniest);
    }
  });
}

}  // namespace
}  // namespace lockstep::kernels::test
