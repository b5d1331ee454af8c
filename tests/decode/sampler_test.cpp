#include "decode/sampler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>

#include "base/file.hpp"
#include "base/json.hpp"
#include "decode/reference.hpp"
#include "decode/sampler_logprobs.hpp"
#include "decode/statistics.hpp"
#include "numerics/double_math.hpp"
#include "numerics/philox.hpp"

namespace lockstep::decode {
namespace {

using testing::chi_square;
using testing::kLeastPValue;
using testing::random_params;
using testing::random_row;

Distribution random_distribution(std::mt19937_64& random, std::size_t n) {
  RowScratch scratch;
  Distribution out;
  SamplerParams params = random_params(random, n);
  params.temperature = std::max(params.temperature, 0.3);
  const auto row = random_row(random, n);
  EXPECT_TRUE(make_distribution(row, params, {.vocab = static_cast<std::int64_t>(n)}, scratch, out).has_value());
  return out;
}

TEST(Sampler, EqualsNumpyChoice) {
  const auto text = read_file(LOCKSTEP_TEST_DATA "/sampler/vectors.json", 1 << 20);
  ASSERT_TRUE(text.has_value());
  const auto data = parse_json(*text, "vectors.json");
  ASSERT_TRUE(data.has_value());
  ASSERT_EQ((*data)["choices"].size(), 12U);
  for (const Json& row : (*data)["choices"]) {
    SCOPED_TRACE(row["seed"].get<std::string>());
    Distribution distribution;
    distribution.ids = row["ids"].get<std::vector<TokenId>>();
    distribution.probabilities = row["probabilities"].get<std::vector<double>>();
    const Sampler sampler(std::stoull(row["seed"].get<std::string>(), nullptr, 16), DrawRule::Pcg64);
    for (std::size_t n = row["draws"].size(); n-- > 0;) {  // backwards: every draw is random access
      EXPECT_EQ(sampler.draw(distribution, n).id, row["draws"][n].get<TokenId>());
    }
  }
}

TEST(Sampler, ChoiceIsTheFirstIdWhoseCumulativeQuotientExceedsU) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Distribution distribution = random_distribution(random, 1 + random() % 400);
    std::vector<double> cumulative;
    double sum = 0;
    for (const double p : distribution.probabilities) cumulative.push_back(sum += p);
    for (double& c : cumulative) c /= sum;
    const auto check = [&](double u) {
      const auto index = std::upper_bound(cumulative.begin(), cumulative.end(), u) - cumulative.begin();
      const Choice choice = choose(distribution, u);
      EXPECT_EQ(choice.id, distribution.ids[static_cast<std::size_t>(index)]) << u;
      EXPECT_EQ(choice.probability, distribution.probabilities[static_cast<std::size_t>(index)]);
    };
    check(0.0);
    check(1 - 0x1p-53);
    for (int i = 0; i < 50; ++i) check(static_cast<double>(random() >> 11) * 0x1p-53);
    // Exactly at the steps and one number below.
    for (const double c : cumulative) {
      if (c < 1) check(c);
      check(std::nextafter(c, 0.0));
    }
  }
}

TEST(Sampler, RaceIsTheEarliestArrival) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Distribution distribution = random_distribution(random, 1 + random() % 400);
    const std::uint64_t number = random() >> (random() % 64);
    double earliest = std::numeric_limits<double>::infinity();
    TokenId winner = -1;
    for (std::size_t i = 0; i < distribution.ids.size(); ++i) {
      const double u = numerics::philox_uniform(seed, number, static_cast<std::uint32_t>(distribution.ids[i]));
      const double arrival = -numerics::canon_log64(u) / distribution.probabilities[i];
      if (arrival < earliest) {
        earliest = arrival;
        winner = distribution.ids[i];
      }
    }
    EXPECT_EQ(Sampler(seed, DrawRule::Race).draw(distribution, number).id, winner);
  }
}

// A candidate's arrival does not depend on which other candidates exist: removing a losing one changes nothing. This is
// what makes a draft's race agree with the target's.
TEST(Sampler, RaceIgnoresLosers) {
  std::mt19937_64 random(8);
  Distribution distribution = random_distribution(random, 60);
  for (std::uint64_t number = 0; number < 200; ++number) {
    const TokenId winner = race(distribution, 5, number).id;
    Distribution fewer;
    for (std::size_t i = 0; i < distribution.ids.size(); ++i) {
      if (distribution.ids[i] != winner && random() % 2 == 0) continue;
      fewer.ids.push_back(distribution.ids[i]);
      fewer.probabilities.push_back(distribution.probabilities[i]);
    }
    EXPECT_EQ(race(fewer, 5, number).id, winner);
  }
}

TEST(Sampler, GreedyDrawsNothing) {
  Distribution distribution;
  distribution.ids = {17};
  distribution.probabilities = {1.0};
  distribution.greedy = true;
  for (const DrawRule rule : {DrawRule::Pcg64, DrawRule::Race}) {
    EXPECT_EQ(Sampler(1, rule).draw(distribution, 99).id, 17);
  }
}

struct Setting {
  const char* name;
  SamplerParams params;
};

std::vector<Setting> settings() {
  return {{"T 1", {}},
          {"T 0.6, top-k 5", {.temperature = 0.6, .top_k = 5}},
          {"T 1, top-k 20, top-p 0.95", {.top_k = 20, .top_p = 0.95}},
          {"T 1.8, top-p 0.8", {.temperature = 1.8, .top_p = 0.8}},
          {"T 1, min-p 0.1", {.min_p = 0.1}},
          {"T 0.9, top-k 12, presence 1.5, frequency 0.4",
           {.temperature = 0.9, .top_k = 12, .presence_penalty = 1.5, .frequency_penalty = 0.4}},
          {"T 1, bias, top-p 0.9", {.top_p = 0.9, .logit_bias = {{2, 2.0}, {4, -100.0}}}}};
}

// The target is computed here with the C library in long double: independent of the code under test.
std::map<TokenId, double> analytic(const std::vector<float>& row, const SamplerParams& params,
                                   const TokenCounts& counts) {
  std::vector<std::pair<long double, TokenId>> order;
  long double z = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto id = static_cast<TokenId>(i);
    long double logit = row[i];
    if (params.logit_bias.contains(id)) logit += params.logit_bias.at(id);
    if (counts.of(id) > 0) logit -= params.presence_penalty + params.frequency_penalty * counts.of(id);
    order.emplace_back(-std::exp(logit / params.temperature), id);
    z -= order.back().first;
  }
  std::sort(order.begin(), order.end());
  std::map<TokenId, double> kept;
  long double before = 0, sum = 0;
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    const long double p = -order[rank].first / z;
    const bool in_k = params.top_k == 0 || static_cast<std::int64_t>(rank) < params.top_k;
    if (in_k && (rank == 0 || before < params.top_p) && p >= params.min_p * (-order[0].first / z)) {
      kept[order[rank].second] = static_cast<double>(p);
      sum += p;
    }
    before += p;
  }
  for (auto& [id, p] : kept) p = static_cast<double>(p / sum);
  return kept;
}

TEST(Sampler, BothRulesDrawFromTheAnalyticDistribution) {
  std::mt19937_64 random(21);
  std::normal_distribution<float> normal(0, 1.5F);
  std::vector<float> row(30);
  for (float& x : row) x = normal(random);
  TokenCounts counts;
  for (const TokenId id : {1, 1, 1, 3, 8, 8}) counts.add(id);
  RowScratch scratch;
  Distribution distribution;
  for (const auto& [name, params] : settings()) {
    ASSERT_TRUE(make_distribution(row, params, {.vocab = 30, .counts = &counts}, scratch, distribution).has_value());
    for (const DrawRule rule : {DrawRule::Pcg64, DrawRule::Race}) {
      const Sampler sampler(777, rule);
      std::map<TokenId, long> seen;
      for (std::uint64_t n = 0; n < 60'000; ++n) ++seen[sampler.draw(distribution, n).id];
      const std::string label = std::string(rule == DrawRule::Race ? "race,  " : "pcg64, ") + name;
      const auto fit = chi_square(analytic(row, params, params.has_penalties() ? counts : TokenCounts()), seen, label);
      EXPECT_FALSE(fit.impossible) << label;
      EXPECT_GT(fit.degrees, 2) << label;
      EXPECT_GT(fit.p_value, kLeastPValue) << label;
    }
  }
}

TEST(Sampler, DrawsOfDifferentSeedsAgreeWithTheDistributionToo) {
  Distribution distribution;
  distribution.ids = {0, 5, 6, 4000, 248'000};
  distribution.probabilities = {0.5, 0.25, 0.15, 0.09, 0.01};
  std::map<TokenId, double> expected;
  for (std::size_t i = 0; i < distribution.ids.size(); ++i)
    expected[distribution.ids[i]] = distribution.probabilities[i];
  for (const DrawRule rule : {DrawRule::Pcg64, DrawRule::Race}) {
    std::map<TokenId, long> seen;
    for (std::uint64_t seed = 0; seed < 50'000; ++seed) ++seen[Sampler(seed, rule).draw(distribution, 3).id];
    EXPECT_GT(chi_square(expected, seen, rule == DrawRule::Race ? "race, over seeds" : "pcg64, over seeds").p_value,
              kLeastPValue);
  }
}

TEST(Logprobs, AreTheModelsOwnLogSoftmax) {
  RowScratch scratch;
  Logprobs out;
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const std::size_t n = 1 + random() % 900;
    std::vector<float> row = random_row(random, n);
    row.push_back(50.0F);  // padding
    const auto chosen = static_cast<TokenId>(random() % n);
    const RowContext context{.vocab = static_cast<std::int64_t>(n)};
    ASSERT_TRUE(read_logprobs(row, chosen, 5, context, scratch, out).has_value());
    long double z = 0;
    for (std::size_t i = 0; i < n; ++i) z += std::exp(static_cast<long double>(row[i]));
    const auto exact = [&](TokenId id) {
      return static_cast<double>(static_cast<long double>(row[static_cast<std::size_t>(id)]) - std::log(z));
    };
    worst = std::max(worst, std::fabs(out.chosen - exact(chosen)));
    ASSERT_EQ(out.top.size(), std::min<std::size_t>(5, n));
    for (std::size_t i = 0; i < out.top.size(); ++i) {
      worst = std::max(worst, std::fabs(out.top[i].logprob - exact(out.top[i].id)));
      if (i > 0) {
        EXPECT_LE(out.top[i].logprob, out.top[i - 1].logprob);
      }
    }
  }
  std::printf("log-probabilities: worst error %.3g\n", worst);
  EXPECT_LT(worst, 2e-7);  // canon_exp is a binary32 function
}

TEST(Logprobs, BadArgumentsAreErrors) {
  RowScratch scratch;
  Logprobs out;
  std::vector<float> row(10, 0.0F);
  EXPECT_TRUE(read_logprobs(row, 9, 0, {.vocab = 10}, scratch, out).has_value());
  EXPECT_TRUE(out.top.empty());
  EXPECT_FALSE(read_logprobs(row, 10, 0, {.vocab = 10}, scratch, out).has_value());
  EXPECT_FALSE(read_logprobs(row, -1, 0, {.vocab = 10}, scratch, out).has_value());
  EXPECT_FALSE(read_logprobs(row, 0, 21, {.vocab = 10}, scratch, out).has_value());
  EXPECT_FALSE(read_logprobs(row, 0, 1, {.vocab = 11}, scratch, out).has_value());
  row[4] = std::numeric_limits<float>::infinity();
  const auto status = read_logprobs(row, 0, 1, {.token_number = 12, .vocab = 10}, scratch, out);
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().message.find("token 12"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::decode
