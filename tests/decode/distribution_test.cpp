#include "decode/distribution.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <random>

#include "decode/distribution_passes.hpp"
#include "decode/reference.hpp"

namespace lockstep::decode {
namespace {

using testing::random_mask;
using testing::random_params;
using testing::random_row;
using testing::reference_distribution;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

void expect_same(const Distribution& got, const Distribution& want) {
  ASSERT_EQ(got.ids, want.ids);
  ASSERT_EQ(got.probabilities.size(), want.probabilities.size());
  for (std::size_t i = 0; i < got.ids.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint64_t>(got.probabilities[i]), std::bit_cast<std::uint64_t>(want.probabilities[i]))
        << "id " << got.ids[i];
  }
  ASSERT_EQ(got.greedy, want.greedy);
}

// One random case: row with padding, parameters, counts and mask.
void check_random_case(std::mt19937_64& random, std::size_t vocab, RowScratch& scratch, Distribution& out) {
  std::vector<float> row = random_row(random, vocab);
  row.insert(row.end(), random() % 40, 1e30F);  // padding that must never win
  const SamplerParams params = random_params(random, vocab);
  TokenCounts counts;
  for (std::size_t i = random() % 30; i-- > 0;)
    counts.add(static_cast<TokenId>(random() % std::min<std::size_t>(vocab, 50)));
  std::vector<std::uint64_t> allowed;
  if (random() % 3 == 0) allowed = random_mask(random, vocab, 1 + random() % 20);
  const RowContext context{.token_number = 1,
                           .vocab = static_cast<std::int64_t>(vocab),
                           .counts = random() % 4 == 0 ? nullptr : &counts,
                           .allowed = allowed};
  const Status status = make_distribution(row, params, context, scratch, out);
  ASSERT_TRUE(status.has_value()) << status.error().message;
  expect_same(out, reference_distribution(row, params, context).value());
  double sum = 0;
  for (const double p : out.probabilities) sum += p;
  EXPECT_NEAR(sum, 1.0, 1e-9);
}

TEST(Distribution, EqualsTheReferenceOnSmallRows) {
  RowScratch scratch;
  Distribution out;
  for (std::uint64_t seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    check_random_case(random, 1 + random() % (seed % 2 == 0 ? 12 : 1500), scratch, out);
    if (HasFatalFailure()) return;
  }
}

TEST(Distribution, EqualsTheReferenceOnLargeRows) {
  RowScratch scratch;
  Distribution out;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(1'000 + seed);
    check_random_case(random, seed % 8 == 0 ? 248'077 : 20'000 + random() % 20'000, scratch, out);
    if (HasFatalFailure()) return;
  }
}

TEST(Distribution, EveryInstructionSetGivesTheSameBits) {
  std::mt19937_64 random(11);
  const auto sets = supported_row_passes();
  ASSERT_EQ(std::string_view(sets.front().name), "portable");
  for (std::size_t n = 1; n < 3000; n += n < 300 ? 1 : 97) {
    SCOPED_TRACE(n);
    std::vector<float> row = random_row(random, n);
    if (n % 7 == 0) row[random() % n] = -1e30F;
    std::vector<float> values(n), exps(n), maxima((n + kMaximaBlock - 1) / kMaximaBlock);
    ASSERT_TRUE(sets[0].scale(row.data(), 1.37F, values.data(), n));
    if (n % 5 == 0) values[random() % n] = -kInf;  // a masked token
    sets[0].block_maxima(values.data(), maxima.data(), n);
    const float max = *std::max_element(values.begin(), values.end());
    EXPECT_EQ(max, *std::max_element(maxima.begin(), maxima.end()));
    const float shift = std::isfinite(max) ? max : 0.0F;
    const double sum = sets[0].exp_fold(values.data(), shift, exps.data(), n);
    for (const RowPasses& set : sets.subspan(1)) {
      SCOPED_TRACE(set.name);
      std::vector<float> other_values(n), other_exps(n), other_maxima(maxima.size());
      ASSERT_TRUE(set.scale(row.data(), 1.37F, other_values.data(), n));
      for (std::size_t i = 0; i < n; ++i) {
        if (values[i] != -kInf) {
          EXPECT_EQ(other_values[i], values[i]);
        }
      }
      set.block_maxima(values.data(), other_maxima.data(), n);
      EXPECT_EQ(other_maxima, maxima);
      EXPECT_EQ(std::bit_cast<std::uint64_t>(set.exp_fold(values.data(), shift, other_exps.data(), n)),
                std::bit_cast<std::uint64_t>(sum));
      EXPECT_EQ(std::memcmp(other_exps.data(), exps.data(), n * sizeof(float)), 0);
    }
  }
}

TEST(Distribution, FindsNonFiniteLogitsAtEveryPosition) {
  for (const RowPasses& set : supported_row_passes()) {
    SCOPED_TRACE(set.name);
    std::vector<float> row(77, 0.5F), values(77);
    for (std::size_t i = 0; i < row.size(); ++i) {
      for (const float bad : {kInf, -kInf, kNaN}) {
        row[i] = bad;
        EXPECT_FALSE(set.scale(row.data(), 1.0F, values.data(), row.size()));
      }
      row[i] = 0.5F;
    }
    EXPECT_TRUE(set.scale(row.data(), 1.0F, values.data(), row.size()));
  }
}

TEST(Distribution, NonFiniteLogitIsAnErrorThatNamesTheToken) {
  RowScratch scratch;
  Distribution out;
  std::vector<float> row(300, 0.0F);
  row[299] = kNaN;
  const auto sampled = make_distribution(row, {}, {.token_number = 41, .vocab = 300}, scratch, out);
  ASSERT_FALSE(sampled.has_value());
  EXPECT_EQ(sampled.error().kind, ErrorKind::Internal);
  EXPECT_NE(sampled.error().message.find("token 41"), std::string::npos);
  EXPECT_NE(sampled.error().message.find("id 299"), std::string::npos);
  EXPECT_FALSE(make_distribution(row, {.temperature = 0}, {.vocab = 300}, scratch, out).has_value());
  // A masked token's logit still tells that the model's row is broken; a padding row does not.
  const std::vector<std::uint64_t> allowed(5, 1);
  EXPECT_FALSE(make_distribution(row, {}, {.vocab = 300, .allowed = allowed}, scratch, out).has_value());
  EXPECT_TRUE(make_distribution(row, {}, {.vocab = 299}, scratch, out).has_value());
}

TEST(Distribution, MaskWithoutATokenIsAnError) {
  RowScratch scratch;
  Distribution out;
  const std::vector<float> row(130, 1.0F);
  std::vector<std::uint64_t> allowed(3, 0);
  allowed[2] = ~std::uint64_t{0} << 2;  // only ids of the padding
  for (const double temperature : {0.0, 1.0}) {
    const auto status = make_distribution(row, {.temperature = temperature},
                                          {.token_number = 7, .vocab = 130, .allowed = allowed}, scratch, out);
    ASSERT_FALSE(status.has_value());
    EXPECT_EQ(status.error().kind, ErrorKind::Invalid);
    EXPECT_NE(status.error().message.find("token 7"), std::string::npos);
  }
  allowed[2] |= 2;  // id 129
  ASSERT_TRUE(make_distribution(row, {}, {.vocab = 130, .allowed = allowed}, scratch, out).has_value());
  EXPECT_EQ(out.ids, std::vector<TokenId>{129});
  EXPECT_EQ(out.probabilities, std::vector<double>{1.0});
}

TEST(Distribution, BadArgumentsAreErrors) {
  RowScratch scratch;
  Distribution out;
  const std::vector<float> row(100, 0.0F);
  const std::vector<std::uint64_t> short_mask(1, 1);
  EXPECT_FALSE(make_distribution(row, {}, {.vocab = 101}, scratch, out).has_value());
  EXPECT_FALSE(make_distribution(row, {}, {.vocab = 0}, scratch, out).has_value());
  EXPECT_FALSE(make_distribution(row, {}, {.vocab = 100, .allowed = short_mask}, scratch, out).has_value());
  EXPECT_FALSE(make_distribution(row, {.logit_bias = {{100, 1.0}}}, {.vocab = 100}, scratch, out).has_value());
  EXPECT_FALSE(make_distribution(row, {.logit_bias = {{-1, 1.0}}}, {.vocab = 100}, scratch, out).has_value());
}

TEST(Distribution, ExtremeButFiniteRows) {
  RowScratch scratch;
  Distribution out;
  constexpr float kMax = std::numeric_limits<float>::max();
  ASSERT_TRUE(make_distribution(std::vector<float>{kMax, -kMax, kMax}, {}, {.vocab = 3}, scratch, out).has_value());
  EXPECT_EQ(out.ids, (std::vector<TokenId>{0, 2}));
  EXPECT_EQ(out.probabilities, (std::vector<double>{0.5, 0.5}));
  const auto status = make_distribution(std::vector<float>{kMax, 0}, {.temperature = 0.5},
                                        {.token_number = 3, .vocab = 2}, scratch, out);
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().message.find("token 3"), std::string::npos);
  ASSERT_TRUE(
      make_distribution(std::vector<float>{1, -kMax}, {.temperature = 1e-5}, {.vocab = 2}, scratch, out).has_value());
  EXPECT_EQ(out.ids, std::vector<TokenId>{0});
}

TEST(Distribution, TopPNormalisesOverTheFullVocabulary) {
  // Eight equal tokens: each has 1/8 of the mass, so 0.5 needs four although top-k left six.
  RowScratch scratch;
  Distribution out;
  const std::vector<float> row(8, 2.0F);
  ASSERT_TRUE(make_distribution(row, {.top_k = 6, .top_p = 0.5}, {.vocab = 8}, scratch, out).has_value());
  EXPECT_EQ(out.ids, (std::vector<TokenId>{0, 1, 2, 3}));
  ASSERT_TRUE(make_distribution(row, {.top_k = 6, .top_p = 0.51}, {.vocab = 8}, scratch, out).has_value());
  EXPECT_EQ(out.ids.size(), 5U);
  ASSERT_TRUE(make_distribution(row, {.top_p = 0.0}, {.vocab = 8}, scratch, out).has_value());
  EXPECT_EQ(out.ids, std::vector<TokenId>{0});
}

TEST(Distribution, PenaltiesAndBiasAct) {
  RowScratch scratch;
  Distribution out;
  TokenCounts counts;
  for (int i = 0; i < 3; ++i) counts.add(1);
  counts.add(2);
  counts.add(2);
  counts.remove(2);
  counts.add(0);
  counts.remove(0);
  EXPECT_EQ(counts.of(0), 0U);
  EXPECT_EQ(counts.entries().size(), 2U);
  const std::vector<float> row(4, 0.0F);
  const SamplerParams params{.presence_penalty = 0.5, .frequency_penalty = 0.25, .logit_bias = {{3, -1.0}}};
  ASSERT_TRUE(make_distribution(row, params, {.vocab = 4, .counts = &counts}, scratch, out).has_value());
  const double z = 1 + std::exp(-1.25) + std::exp(-0.75) + std::exp(-1.0);
  EXPECT_NEAR(out.probabilities[0], 1 / z, 1e-6);
  EXPECT_NEAR(out.probabilities[1], std::exp(-1.25) / z, 1e-6);
  EXPECT_NEAR(out.probabilities[2], std::exp(-0.75) / z, 1e-6);
  EXPECT_NEAR(out.probabilities[3], std::exp(-1.0) / z, 1e-6);
}

TEST(Distribution, GreedyTakesTheLowestIdOfATie) {
  RowScratch scratch;
  Distribution out;
  std::vector<float> row(2000, -1.0F);
  row[1500] = row[700] = row[699 + 256] = 3.0F;
  for (const double temperature : {0.0, 1e-6}) {
    ASSERT_TRUE(make_distribution(row, {.temperature = temperature}, {.vocab = 2000}, scratch, out).has_value());
    EXPECT_TRUE(out.greedy);
    EXPECT_EQ(out.ids, std::vector<TokenId>{700});
  }
}

TEST(Distribution, ReusesItsMemory) {
  RowScratch scratch;
  Distribution out;
  std::mt19937_64 random(3);
  const std::vector<float> row = random_row(random, 5000);
  const SamplerParams params{.top_k = 20, .top_p = 0.95};
  ASSERT_TRUE(make_distribution(row, params, {.vocab = 5000}, scratch, out).has_value());
  const auto* values = scratch.values.data();
  const auto* exps = scratch.exps.data();
  const auto* candidates = scratch.candidates.data();
  const auto* ids = out.ids.data();
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(make_distribution(row, params, {.vocab = 5000}, scratch, out).has_value());
    EXPECT_EQ(scratch.values.data(), values);
    EXPECT_EQ(scratch.exps.data(), exps);
    EXPECT_EQ(scratch.candidates.data(), candidates);
    EXPECT_EQ(out.ids.data(), ids);
  }
}

TEST(Distribution, ProbabilityOfAnId) {
  Distribution distribution;
  distribution.ids = {3, 8, 20};
  distribution.probabilities = {0.25, 0.25, 0.5};
  EXPECT_EQ(distribution.probability_of(8), 0.25);
  EXPECT_EQ(distribution.probability_of(20), 0.5);
  for (const TokenId absent : {-1, 0, 4, 21}) EXPECT_EQ(distribution.probability_of(absent), 0.0);
}

}  // namespace
}  // namespace lockstep::decode
