#include "decode/acceptance.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <random>
#include <string>

#include "decode/reference.hpp"
#include "decode/statistics.hpp"

namespace lockstep::decode {
namespace {

using testing::chi_square;
using testing::kLeastPValue;
using testing::random_params;

constexpr std::size_t kVocab = 9;

// A model of a few tokens whose logits depend on the last two tokens, and a draft model that sees them through noise.
class ToyModel {
 public:
  ToyModel(std::uint64_t seed, float draft_noise) : seed_(seed), noise_(draft_noise) {}

  [[nodiscard]] const std::vector<float>& target(std::span<const TokenId> context) const { return row(context, false); }
  [[nodiscard]] const std::vector<float>& draft(std::span<const TokenId> context) const { return row(context, true); }

 private:
  [[nodiscard]] const std::vector<float>& row(std::span<const TokenId> context, bool noisy) const {
    std::uint64_t state = seed_ * 1000003 + 1;
    for (std::size_t i = context.size() > 2 ? context.size() - 2 : 0; i < context.size(); ++i) {
      state = state * 31 + static_cast<std::uint64_t>(context[i]) + 1;
    }
    std::vector<float>& logits = rows_[{state, noisy}];
    if (!logits.empty()) return logits;
    std::mt19937_64 random(state);
    std::normal_distribution<float> normal(0.0F, 1.0F);
    logits.resize(kVocab);
    for (float& x : logits) x = 1.5F * normal(random);
    for (float& x : logits) x += (noisy ? noise_ : 0.0F) * normal(random);
    return logits;
  }

  std::uint64_t seed_;
  float noise_;
  mutable std::map<std::pair<std::uint64_t, bool>, std::vector<float>> rows_;
};

struct Request {
  SamplerParams params;
  std::vector<std::uint64_t> allowed;
};

Distribution distribution_of(const Request& request, const std::vector<float>& row, const TokenCounts& counts) {
  static RowScratch scratch;
  Distribution out;
  const RowContext context{.vocab = kVocab, .counts = &counts, .allowed = request.allowed};
  const Status status = make_distribution(row, request.params, context, scratch, out);
  EXPECT_TRUE(status.has_value());
  return out;
}

TokenCounts counts_of(std::span<const TokenId> tokens) {
  TokenCounts counts;
  for (const TokenId token : tokens) counts.add(token);
  return counts;
}

std::vector<TokenId> plain(const ToyModel& model, const Request& request, std::size_t length) {
  const Sampler sampler(request.params);
  std::vector<TokenId> tokens;
  while (tokens.size() < length) {
    const auto distribution = distribution_of(request, model.target(tokens), counts_of(tokens));
    tokens.push_back(sampler.draw(distribution, tokens.size()).id);
  }
  return tokens;
}

// Speculative decoding in stream mode with `depth` drafts a cycle; counts what was kept.
std::vector<TokenId> stream(const ToyModel& model, const Request& request, std::size_t length, std::size_t depth,
                            std::size_t& kept, std::size_t& drafted) {
  const Sampler sampler(request.params);
  std::vector<TokenId> tokens;
  while (tokens.size() < length) {
    std::vector<TokenId> drafts, context = tokens;
    for (std::size_t i = 0; i < depth; ++i) {
      const auto q = distribution_of(request, model.draft(context), counts_of(context));
      drafts.push_back(sampler.draw(q, context.size()).id);
      context.push_back(drafts.back());
    }
    std::vector<TokenId> targets;
    for (std::size_t i = 0; i <= depth; ++i) {
      const std::span<const TokenId> before(context.data(), tokens.size() + i);
      targets.push_back(
          sampler.draw(distribution_of(request, model.target(before), counts_of(before)), before.size()).id);
    }
    const std::size_t accepted = stream_accepted(drafts, targets);
    kept += accepted;
    drafted += depth;
    tokens.insert(tokens.end(), targets.begin(), targets.begin() + static_cast<std::ptrdiff_t>(accepted) + 1);
  }
  tokens.resize(length);
  return tokens;
}

// The same with the rejection rule. The token that ends a cycle is the pending one that starts the next.
std::vector<TokenId> rejection(const ToyModel& model, const Request& request, std::size_t length, std::size_t depth,
                               std::uint64_t seed, std::size_t& kept) {
  numerics::Pcg64 generator(seed);
  Distribution scratch;
  std::vector<TokenId> tokens = {draw_next(distribution_of(request, model.target({}), {}), generator)};
  while (tokens.size() < length) {
    std::vector<TokenId> drafts, context = tokens;
    std::vector<Distribution> q, p;
    for (std::size_t i = 0; i < depth; ++i) {
      q.push_back(distribution_of(request, model.draft(context), counts_of(context)));
      drafts.push_back(draw_next(q.back(), generator));
      context.push_back(drafts.back());
    }
    for (std::size_t i = 0; i <= depth; ++i) {
      const std::span<const TokenId> before(context.data(), tokens.size() + i);
      p.push_back(distribution_of(request, model.target(before), counts_of(before)));
    }
    const RejectionOutcome outcome = rejection_accepted(drafts, q, p, true, generator, scratch);
    kept += outcome.accepted;
    tokens.insert(tokens.end(), drafts.begin(), drafts.begin() + static_cast<std::ptrdiff_t>(outcome.accepted));
    tokens.push_back(outcome.next.value());
  }
  tokens.resize(length);
  return tokens;
}

TEST(Acceptance, StreamKeepsThePrefixThatAgrees) {
  const std::array<TokenId, 3> drafts = {4, 5, 6};
  EXPECT_EQ(stream_accepted(drafts, std::array<TokenId, 4>{4, 5, 6, 9}), 3U);
  EXPECT_EQ(stream_accepted(drafts, std::array<TokenId, 4>{4, 7, 6, 9}), 1U);
  EXPECT_EQ(stream_accepted(drafts, std::array<TokenId, 3>{1, 5, 6}), 0U);
  EXPECT_EQ(stream_accepted({}, std::array<TokenId, 1>{1}), 0U);
}

// Plain and speculative output are the same tokens for random parameters, both draw rules, penalties and masks.
TEST(Acceptance, StreamModeEqualsPlainDecoding) {
  std::size_t kept = 0, drafted = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const ToyModel model(seed, seed % 5 == 0 ? 0.0F : 0.7F);
    Request request{.params = random_params(random, kVocab), .allowed = {}};
    request.params.draw_rule = seed % 2 == 0 ? DrawRule::Pcg64 : DrawRule::Race;
    if (seed % 3 == 0) request.allowed = testing::random_mask(random, kVocab, 2);
    const auto expected = plain(model, request, 24);
    for (std::size_t depth = 1; depth <= 4; ++depth) {
      std::size_t case_kept = 0, case_drafted = 0;
      EXPECT_EQ(stream(model, request, 24, depth, case_kept, case_drafted), expected) << "depth " << depth;
      if (seed % 5 == 0) {
        EXPECT_EQ(case_kept, case_drafted) << "a draft equal to the target is always kept";
      }
      kept += case_kept;
      drafted += case_drafted;
    }
  }
  std::printf("stream mode: %zu of %zu drafts kept\n", kept, drafted);
}

TEST(Acceptance, ProbabilityAndCoin) {
  EXPECT_EQ(acceptance_probability(0.2, 0.4), 0.5);
  EXPECT_EQ(acceptance_probability(0.4, 0.2), 1.0);
  EXPECT_EQ(acceptance_probability(0.4, 0.4), 1.0);
  EXPECT_EQ(acceptance_probability(0.4, 0.0), 1.0);
  EXPECT_EQ(acceptance_probability(0.0, 0.0), 0.0);
  EXPECT_EQ(acceptance_probability(0.0, 0.3), 0.0);
  EXPECT_TRUE(accepts(0.5, 0.2, 0.4));
  EXPECT_FALSE(accepts(std::nextafter(0.5, 1.0), 0.2, 0.4));
  EXPECT_TRUE(accepts(1 - 0x1p-53, 0.3, 0.0));
  EXPECT_FALSE(accepts(0.0, 0.0, 0.3));
  EXPECT_FALSE(accepts(0.0, 0.0, 0.0));
}

TEST(Acceptance, ResidualIsThePositiveDifference) {
  Distribution p, q, out;
  p.ids = {1, 3, 5, 9};
  p.probabilities = {0.125, 0.5, 0.25, 0.125};
  q.ids = {0, 3, 5, 7};
  q.probabilities = {0.25, 0.25, 0.375, 0.125};
  residual(p, q, out);
  EXPECT_EQ(out.ids, (std::vector<TokenId>{1, 3, 9}));
  EXPECT_EQ(out.probabilities, (std::vector<double>{0.25, 0.5, 0.25}));
  residual(p, p, out);  // nothing left
  EXPECT_EQ(out.ids, p.ids);
  EXPECT_EQ(out.probabilities, p.probabilities);
}

Distribution two_tokens(double first) {
  Distribution out;
  out.ids = {0, 1};
  out.probabilities = {first, 1 - first};
  return out;
}

// One double per coin, one for the replacement or the bonus, none beyond.
TEST(Acceptance, RejectionDrawOrder) {
  const std::vector<Distribution> q = {two_tokens(0.5), two_tokens(0.5)};
  const std::array<TokenId, 2> drafts = {0, 0};
  Distribution scratch;
  const auto doubles_used = [](const numerics::Pcg64& before, const numerics::Pcg64& after) {
    numerics::Pcg64 walker = before;
    int used = 0;
    for (; !(walker == after); ++used) walker.skip(1);
    return used;
  };
  {
    const std::vector<Distribution> p = {two_tokens(0.5), two_tokens(0.5), two_tokens(0.5)};
    const numerics::Pcg64 start(1);
    numerics::Pcg64 generator = start;
    const auto outcome = rejection_accepted(drafts, q, p, true, generator, scratch);
    EXPECT_EQ(outcome.accepted, 2U);
    EXPECT_EQ(outcome.next, choose(p[2], start.uniform_at(2)).id);
    EXPECT_EQ(doubles_used(start, generator), 3);
    generator = start;
    EXPECT_FALSE(rejection_accepted(drafts, q, {p.data(), 2}, false, generator, scratch).next.has_value());
    EXPECT_EQ(doubles_used(start, generator), 2);
  }
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const std::vector<Distribution> p = {two_tokens(0.2), two_tokens(0.0), two_tokens(0.5)};
    const numerics::Pcg64 start(seed);
    numerics::Pcg64 generator = start;
    const auto outcome = rejection_accepted(drafts, q, p, true, generator, scratch);
    EXPECT_EQ(outcome.accepted, start.uniform_at(0) <= 0.4 ? 1U : 0U);
    EXPECT_EQ(outcome.next, 1);
    EXPECT_EQ(doubles_used(start, generator), static_cast<int>(outcome.accepted) + 2);
  }
}

TEST(Acceptance, GreedyRequestsDrawNothing) {
  const Request request{.params = {.temperature = 0}, .allowed = {}};
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const ToyModel model(seed, 0.7F);
    const auto expected = plain(model, request, 20);
    std::size_t kept = 0;
    EXPECT_EQ(rejection(model, request, 20, 3, 1, kept), expected);
    EXPECT_EQ(rejection(model, request, 20, 3, 2, kept), expected) << "the seed must not matter";
  }
}

// The joint distribution of the first three tokens, drafted two at a time, against the product of the target's own
// distributions: this covers accepted drafts, replacements, bonus tokens and the draws after them.
TEST(Acceptance, RejectionModeDrawsFromTheTarget) {
  struct Setting {
    const char* name;
    SamplerParams params;
    bool mask;
  };
  const std::vector<Setting> settings = {
      {"T 1", {}, false},
      {"T 0.5, top-k 4", {.temperature = 0.5, .top_k = 4}, false},
      {"T 1.5, top-p 0.7", {.temperature = 1.5, .top_p = 0.7}, false},
      {"T 1, top-k 6, top-p 0.9, min-p 0.05", {.top_k = 6, .top_p = 0.9, .min_p = 0.05}, false},
      {"T 1, presence 1.2, frequency 0.8", {.presence_penalty = 1.2, .frequency_penalty = 0.8}, false},
      {"T 1, bias, mask", {.logit_bias = {{0, 1.5}, {5, -2.0}}}, true}};
  for (const auto& [name, params, mask] : settings) {
    SCOPED_TRACE(name);
    const ToyModel model(33, 1.0F);
    Request request{.params = params, .allowed = {}};
    if (mask) request.allowed = {0b101111011};
    using Triple = std::array<TokenId, 3>;
    std::map<Triple, double> expected;
    const auto extend = [&](auto& self, std::vector<TokenId>& context, double probability) -> void {
      if (context.size() == 3) {
        expected[{context[0], context[1], context[2]}] += probability;
        return;
      }
      const Distribution p = distribution_of(request, model.target(context), counts_of(context));
      for (std::size_t i = 0; i < p.ids.size(); ++i) {
        context.push_back(p.ids[i]);
        self(self, context, probability * p.probabilities[i]);
        context.pop_back();
      }
    };
    std::vector<TokenId> empty;
    extend(extend, empty, 1.0);

    std::map<Triple, long> seen, seen_stream;
    std::size_t kept = 0, stream_kept = 0, drafted = 0;
    for (std::uint64_t seed = 0; seed < 50'000; ++seed) {
      const auto tokens = rejection(model, request, 3, 2, seed, kept);
      ++seen[{tokens[0], tokens[1], tokens[2]}];
      request.params.seed = seed;
      request.params.draw_rule = seed % 2 == 0 ? DrawRule::Race : DrawRule::Pcg64;
      const auto streamed = stream(model, request, 3, 2, stream_kept, drafted);
      ++seen_stream[{streamed[0], streamed[1], streamed[2]}];
    }
    const auto fit = chi_square(expected, seen, std::string("rejection, ") + name);
    EXPECT_FALSE(fit.impossible);
    EXPECT_GT(fit.degrees, 10);
    EXPECT_GT(fit.p_value, kLeastPValue);
    EXPECT_GT(kept, 10'000U);
    const auto stream_fit = chi_square(expected, seen_stream, std::string("stream,    ") + name);
    EXPECT_FALSE(stream_fit.impossible);
    EXPECT_GT(stream_fit.p_value, kLeastPValue);
  }
}

// Every pair of parameter values in both acceptance modes: no failure, and every token is one that the target allows.
TEST(Acceptance, PairsOfParametersInEveryMode) {
  const std::vector<std::function<void(Request&)>> changes = {[](Request& r) { r.params.temperature = 0; },
                                                              [](Request& r) { r.params.temperature = 0.01; },
                                                              [](Request& r) { r.params.temperature = 50; },
                                                              [](Request& r) { r.params.top_k = 1; },
                                                              [](Request& r) { r.params.top_k = 3; },
                                                              [](Request& r) { r.params.top_p = 0; },
                                                              [](Request& r) { r.params.top_p = 0.6; },
                                                              [](Request& r) { r.params.min_p = 0.2; },
                                                              [](Request& r) { r.params.min_p = 1; },
                                                              [](Request& r) { r.params.presence_penalty = 2; },
                                                              [](Request& r) { r.params.presence_penalty = -2; },
                                                              [](Request& r) { r.params.frequency_penalty = 2; },
                                                              [](Request& r) { r.params.frequency_penalty = -2; },
                                                              [](Request& r) {
                                                                r.params.logit_bias = {{1, 100}, {2, -100}};
                                                              },
                                                              [](Request& r) { r.allowed = {0b000100100}; },
                                                              [](Request& r) { r.allowed = {0b000000001}; },
                                                              [](Request& r) { r.params.draw_rule = DrawRule::Race; }};
  for (std::size_t a = 0; a < changes.size(); ++a) {
    for (std::size_t b = 0; b < changes.size(); ++b) {
      SCOPED_TRACE(fmt::format("changes {} and {}", a, b));
      Request request;
      changes[a](request);
      changes[b](request);
      request.params.seed = a * 100 + b;
      request.params = checked_params(request.params, kVocab).value();
      const ToyModel model(a + b, 0.8F);
      std::size_t kept = 0, drafted = 0;
      EXPECT_EQ(stream(model, request, 12, 3, kept, drafted), plain(model, request, 12));
      const auto tokens = rejection(model, request, 12, 3, request.params.seed, kept);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const std::span<const TokenId> before(tokens.data(), i);
        const auto p = distribution_of(request, model.target(before), counts_of(before));
        EXPECT_GT(p.probability_of(tokens[i]), 0.0) << "token " << i;
      }
      if (request.params.draw_rule == DrawRule::Pcg64) {
        EXPECT_EQ(tokens, rejection(model, request, 12, 3, request.params.seed, kept)) << "not reproducible";
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::decode
