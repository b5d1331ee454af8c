// Sampling statistics from end to end: the joint distribution of the first three tokens of many requests, drafted by a
// model's own draft head and judged by the real decoder, against the product of what plain decoding draws from.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>

#include "decode/acceptance.hpp"
#include "decode/statistics.hpp"
#include "model/fixture.hpp"
#include "support/random_model.hpp"
#include "support/runs.hpp"

namespace lockstep::decode {
namespace {

using testing::chi_square;
using testing::ChiSquare;
using testing::kLeastPValue;
using testing::must;

using Triple = std::array<TokenId, 3>;
constexpr std::uint64_t kDraws = 50'000, kStreamDraws = 25'000, kWrongDraws = 10'000;
constexpr std::int64_t kVocabulary = 9;
/// A wrong rule must be this far beyond the threshold.
constexpr double kSurelyWrong = 1e-12;

struct Setting {
  const char* name;
  SamplerParams params;
};

const std::vector<Setting>& settings() {
  // Synthetic logits spread over several units, so temperatures above 1 give draft and target something in common.
  static const std::vector<Setting> list{
      {"T 3", {.temperature = 3.0}},
      {"T 1, top-k 5", {.temperature = 1.0, .top_k = 5}},
      {"T 4, top-p 0.8", {.temperature = 4.0, .top_p = 0.8}},
      {"T 5, top-k 7, top-p 0.9, min-p 0.05", {.temperature = 5.0, .top_k = 7, .top_p = 0.9, .min_p = 0.05}},
      {"T 3, presence 1.8, frequency 1.2, bias",
       {.temperature = 3.0, .presence_penalty = 1.8, .frequency_penalty = 1.2, .logit_bias = {{4, 2.0}}}}};
  return list;
}

/// The thinnest model that has everything: a gated delta net with n-grams, an attention layer and a draft layer.
artifact::Artifact thin_model(unsigned seed) {
  Json geometry = test::random_geometry(seed, {.draft = true, .vocabulary = kVocabulary, .thin = true});
  geometry["num_hidden_layers"] = 2;
  geometry["layer_types"] = {"linear_attention", "full_attention"};
  geometry["ple_layer_ids"] = {1};
  for (const char* one : {"num_attention_heads", "num_key_value_heads", "linear_num_key_heads",
                          "linear_num_value_heads", "indexer_n_heads", "num_experts_per_tok", "heads_per_ngram"}) {
    geometry[one] = 1;
  }
  for (const char* two : {"hc_count", "num_experts", "ngram_size"}) geometry[two] = 2;
  geometry["hc_lowrank"] = 8;
  geometry["ple_embed_dim"] = 16;
  geometry = parse_json(geometry.dump(), "geometry").value();
  const auto dense = [](const artifact::MatrixPart& /*part*/) { return std::optional<artifact::Precision>(); };
  return artifact::make_synthetic(artifact::parse_config(geometry).value(), dense, seed, 1).value();
}

class Statistics : public ::testing::Test {
 protected:
  Statistics()
      : loaded_(model::load(thin_model(5), backend::StateType::F32)),
        runner_(model::Runner::create(*loaded_.model, 8).value()) {
    request_.prompt = {3, 1, 4, 1, 5};
    request_.vocab = kVocabulary;
    request_.max_tokens = 4;  // a first cycle of two drafts and the token after them
    DecodeRequest prompt = request_;
    prompt.prompt_only = true;
    const auto generation = must(make_speculative_generation(*loaded_.model, options(), prompt, std::nullopt));
    testing::finish(*generation, runner_, 8);
    start_.emplace(generation->take().value());
    EXPECT_FALSE(start_->logits.empty());
  }

  static SpeculativeOptions options() {
    SpeculativeOptions options;
    options.depth = 2;
    return options;
  }

  /// Raw logits after the prompt and `context`.
  const std::vector<float>& logits(const std::vector<TokenId>& context) {
    std::vector<float>& row = rows_[context];
    if (!row.empty()) return row;
    auto sequence = model::Sequence::create(*loaded_.model).value();
    std::vector<TokenId> tokens = request_.prompt;
    tokens.insert(tokens.end(), context.begin(), context.end());
    const model::Segment segment{&sequence, tokens, model::LogitsWanted::Last, false};
    EXPECT_TRUE(runner_.forward({&segment, 1}));
    row.assign(runner_.logits().begin(), runner_.logits().end());
    return row;
  }

  /// What plain decoding draws the token after `context` from.
  Distribution target(const SamplerParams& params, const std::vector<TokenId>& context) {
    TokenCounts counts;
    for (const TokenId token : context) counts.add(token);
    Distribution out;
    const RowContext row{.token_number = context.size(), .vocab = kVocabulary, .counts = &counts};
    EXPECT_TRUE(make_distribution(logits(context), params, row, scratch_, out));
    return out;
  }

  std::map<Triple, double> expected(const SamplerParams& params) {
    std::map<Triple, double> out;
    const Distribution first = target(params, {});
    for (std::size_t i = 0; i < first.ids.size(); ++i) {
      const Distribution second = target(params, {first.ids[i]});
      for (std::size_t j = 0; j < second.ids.size(); ++j) {
        const Distribution third = target(params, {first.ids[i], second.ids[j]});
        for (std::size_t k = 0; k < third.ids.size(); ++k) {
          out[{first.ids[i], second.ids[j], third.ids[k]}] =
              first.probabilities[i] * second.probabilities[j] * third.probabilities[k];
        }
      }
    }
    return out;
  }

  struct Seen {
    std::map<Triple, long> counts;
    std::array<std::int64_t, kMaxDepth> drafted{}, accepted{};
    std::int64_t recomputed = 0;
  };

  /// Requests that differ in their seed only, each from the state after the prompt.
  Seen decode(const SamplerParams& params, const SpeculativeOptions& options, std::uint64_t draws) {
    Seen seen;
    DecodeRequest request = request_;
    request.sampler = params;
    for (request.sampler.seed = 0; request.sampler.seed < draws; ++request.sampler.seed) {
      const auto generation =
          must(make_speculative_generation(*loaded_.model, options, request, start_->fork(*loaded_.model).value()));
      testing::finish(*generation, runner_, 8);
      const std::span<const Choice> tokens = generation->emitted();
      ++seen.counts[{tokens[0].id, tokens[1].id, tokens[2].id}];
      for (std::size_t i = 0; i < kMaxDepth; ++i) {
        seen.drafted[i] += generation->stats().drafted[i];
        seen.accepted[i] += generation->stats().accepted[i];
      }
      seen.recomputed += generation->stats().recomputed_tokens;
    }
    return seen;
  }

  model::Loaded loaded_;
  model::Runner runner_;
  DecodeRequest request_;
  std::optional<Checkpoint> start_;
  std::map<std::vector<TokenId>, std::vector<float>> rows_;
  RowScratch scratch_;
};

TEST_F(Statistics, RejectionModeDrawsFromThePlainDistribution) {
  for (const Setting& setting : settings()) {
    SCOPED_TRACE(setting.name);
    SamplerParams params = setting.params;
    params.acceptance = AcceptanceRule::Rejection;
    const Seen seen = decode(params, options(), kDraws);
    const ChiSquare fit = chi_square(expected(params), seen.counts, std::string("rejection, ") + setting.name);
    EXPECT_FALSE(fit.impossible);
    EXPECT_GT(fit.degrees, 20);
    EXPECT_GT(fit.p_value, kLeastPValue);
    // Both outcomes of the test happened, often, at both depths.
    for (std::size_t depth = 0; depth < 2; ++depth) {
      EXPECT_GT(seen.accepted[depth], 300) << "depth " << depth + 1;
      EXPECT_GT(seen.drafted[depth] - seen.accepted[depth], 1000) << "depth " << depth + 1;
    }
    EXPECT_EQ(seen.recomputed, 0);
  }
}

TEST_F(Statistics, StreamModeDrawsFromThePlainDistribution) {
  for (const std::size_t index : {2U, 4U}) {
    for (const DrawRule rule : {DrawRule::Pcg64, DrawRule::Race}) {
      SamplerParams params = settings()[index].params;
      params.draw_rule = rule;
      const std::string name = std::string(rule == DrawRule::Race ? "race, " : "pcg64, ") + settings()[index].name;
      SCOPED_TRACE(name);
      const Seen seen = decode(params, options(), kStreamDraws);
      const ChiSquare fit = chi_square(expected(params), seen.counts, name);
      EXPECT_FALSE(fit.impossible);
      EXPECT_GT(fit.degrees, 20);
      EXPECT_GT(fit.p_value, kLeastPValue);
      EXPECT_GT(seen.accepted[0], 1000);
      EXPECT_EQ(seen.recomputed, 0);
    }
  }
}

/// Drafts that were not drawn from the distribution that judges them: the p/q test is then wrong, and this is seen.
TEST_F(Statistics, DraftsFromAnotherDistributionAreNoticed) {
  SamplerParams params = settings()[0].params;
  params.acceptance = AcceptanceRule::Rejection;
  SpeculativeOptions wrong = options();
  wrong.script = [](std::uint64_t number, TokenId proposed) { return number == 1 ? 4 : proposed; };
  const ChiSquare fit =
      chi_square(expected(params), decode(params, wrong, kWrongDraws).counts, "rejection, drafts from elsewhere");
  EXPECT_LT(fit.p_value, kSurelyWrong);
}

/// One draft and its replacement, by the right rule or by one that has a mistake in it.
using Rule = std::function<TokenId(const Distribution& p, const Distribution& q, numerics::Pcg64& generator)>;

/// On the model's own distributions, with q the one at another temperature: the right rule passes the very test that
/// wrong ones fail.
TEST_F(Statistics, WrongAcceptanceRulesAreNoticed) {
  const auto judge = [](bool (*keep)(double u, double p, double q), bool from_residual) -> Rule {
    return [keep, from_residual](const Distribution& p, const Distribution& q, numerics::Pcg64& generator) {
      const TokenId draft = draw_next(q, generator);
      if (keep(generator.next_double(), p.probability_of(draft), q.probability_of(draft))) return draft;
      Distribution rest;
      residual(p, q, rest);
      return draw_next(from_residual ? rest : p, generator);
    };
  };
  const std::vector<std::tuple<const char*, bool, Rule>> rules{
      {"the right rule", true, judge(accepts, true)},
      {"a replacement from p", false, judge(accepts, false)},
      {"every likely draft kept", false, judge([](double, double p, double q) { return p >= 0.5 * q; }, true)},
      {"the coin against p", false, judge([](double u, double p, double) { return u <= p; }, true)},
      {"the coin against q", false, judge([](double u, double, double q) { return u <= q; }, true)}};
  SamplerParams params, drafted;
  params.temperature = 2.0;
  drafted.temperature = 3.5;
  for (const auto& [name, right, rule] : rules) {
    SCOPED_TRACE(name);
    std::map<TokenId, double> expected;
    std::map<TokenId, long> seen;
    const Distribution p = target(params, {}), q = target(drafted, {});
    for (std::size_t i = 0; i < p.ids.size(); ++i) expected[p.ids[i]] = p.probabilities[i];
    numerics::Pcg64 generator(1);
    for (std::uint64_t draw = 0; draw < kDraws; ++draw) ++seen[rule(p, q, generator)];
    const ChiSquare fit = chi_square(expected, seen, name);
    if (right) {
      EXPECT_GT(fit.p_value, kLeastPValue);
    } else {
      EXPECT_LT(fit.p_value, kSurelyWrong);
    }
  }
}

}  // namespace
}  // namespace lockstep::decode
