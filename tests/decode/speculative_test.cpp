// E1: drafted == undrafted, for every acceptance pattern, and no trace of rejected rows in any part of the state.
#include <gtest/gtest.h>

#include <random>

#include "artifact/toy_model.hpp"
#include "model/fixture.hpp"
#include "support/cases.hpp"
#include "support/runs.hpp"

namespace lockstep::decode {
namespace {

const std::string kData = LOCKSTEP_TEST_DATA;
constexpr std::int64_t kVocabulary = 512;

using testing::decode;
using testing::difference;
using testing::Trace;

DecodeRequest random_request(std::mt19937& random) {
  DecodeRequest request;
  const std::size_t length = random() % 3 == 0 ? random() % 3 + 1 : random() % 70 + 1;
  for (std::size_t i = 0; i < length; ++i) {
    request.prompt.push_back(random() % 10 == 0 ? 2 : static_cast<TokenId>(random() % kVocabulary));
  }
  const std::array temperatures{0.0, 0.5, 0.7, 1.0, 1.5};
  request.sampler.temperature = temperatures[random() % temperatures.size()];
  request.sampler.top_k = std::array<std::int64_t, 3>{0, 1, 20}[random() % 3];
  request.sampler.top_p = random() % 2 == 0 ? 1.0 : 0.9;
  request.sampler.min_p = random() % 4 == 0 ? 0.1 : 0.0;
  request.sampler.presence_penalty = random() % 3 == 0 ? 1.1 : 0.0;
  request.sampler.frequency_penalty = random() % 3 == 0 ? 0.4 : 0.0;
  if (random() % 4 == 0) request.sampler.logit_bias[7] = 3.0;
  request.sampler.seed = random();
  request.sampler.draw_rule = random() % 2 == 0 ? DrawRule::Pcg64 : DrawRule::Race;
  request.max_tokens = static_cast<std::int64_t>(random() % 24 + 1);
  request.vocab = kVocabulary;
  if (random() % 2 == 0) {
    for (TokenId id = static_cast<TokenId>(random() % 16); id < kVocabulary; id += 16) request.stop_ids.push_back(id);
  }
  return request;
}

class Speculative : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    loaded_ = std::make_unique<model::Loaded>(model::load(kData + "/" + GetParam(), backend::StateType::BF16));
    plain_ = make_plain_decoder(*loaded_->model).value();
  }

  [[nodiscard]] std::unique_ptr<Decoder> speculative(SpeculativeOptions options) const {
    return make_speculative_decoder(*loaded_->model, std::move(options)).value();
  }

  std::unique_ptr<model::Loaded> loaded_;
  std::unique_ptr<Decoder> plain_;
};

TEST_P(Speculative, StreamModeEqualsPlainUnderEveryAcceptancePattern) {
  std::array<std::int64_t, kMaxDepth> accepted{};
  std::int64_t rejected = 0;
  for (unsigned seed = 0; seed < test::cases(200); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const DecodeRequest request = random_request(random);
    const Trace expected = decode(*plain_, request);
    SpeculativeOptions options;
    options.depth = static_cast<std::int64_t>(random() % 4 + 1);
    options.capture = random() % 4 != 0;
    options.prefill_chunk = random() % 2 == 0 ? kPrefillChunk : static_cast<std::int64_t>(random() % 9 + 1);
    // All drafts right, all wrong, right k of n times, or what the head itself proposes.
    const unsigned pattern = random() % 4;
    const unsigned share = random() % 5;
    options.script = [&](std::uint64_t number, TokenId proposed) {
      const bool known = number < expected.ids.size();
      const bool right = pattern == 0 || (pattern == 2 && random() % 5 < share);
      if (pattern == 3 || (!known && right)) return proposed;
      const TokenId target = known ? expected.ids[number] : 0;
      return right ? target : static_cast<TokenId>((target + 1 + static_cast<TokenId>(random() % 100)) % kVocabulary);
    };
    const auto decoder = speculative(options);
    const Trace outcome = decode(*decoder, request);
    ASSERT_EQ(difference(expected, outcome), "");
    if (options.capture) {
      ASSERT_EQ(outcome.stats.recomputed_tokens, 0);
    }
    for (std::size_t i = 0; i < accepted.size(); ++i) {
      accepted[i] += outcome.stats.accepted[i];
      rejected += outcome.stats.drafted[i] - outcome.stats.accepted[i];
    }
  }
  if (!test::usual_cases()) return;
  for (const std::int64_t count : accepted) EXPECT_GT(count, 20);  // the patterns did occur
  EXPECT_GT(rejected, 200);
}

TEST_P(Speculative, ContinuedPromptsEqualColdOnesIncludingTheDraftCache) {
  for (unsigned seed = 0; seed < test::cases(40); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    DecodeRequest first = random_request(random);
    SpeculativeOptions options;
    options.depth = static_cast<std::int64_t>(random() % 4 + 1);
    options.prefill_chunk = static_cast<std::int64_t>(random() % 30 + 1);
    const auto warm = speculative(options);
    const auto cold = speculative(options);
    decode(*warm, first);
    DecodeRequest second = first;
    second.prompt = warm->sequence()->tokens();
    const auto more = random_request(random).prompt;
    second.prompt.insert(second.prompt.end(), more.begin(), more.end());
    const Trace continued = decode(*warm, second);
    const Trace fresh = decode(*cold, second);
    ASSERT_EQ(continued.stats.reused_tokens, static_cast<std::int64_t>(second.prompt.size() - more.size()));
    ASSERT_EQ(continued.ids, fresh.ids);
    ASSERT_EQ(continued.stats.accepted, fresh.stats.accepted);
    ASSERT_EQ(test::part_difference(warm->sequence()->save_parts(), cold->sequence()->save_parts()), "");
  }
}

TEST_P(Speculative, RejectionModeIsReproducibleAndGreedyEqualsPlain) {
  for (unsigned seed = 0; seed < test::cases(60); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    DecodeRequest request = random_request(random);
    request.sampler.acceptance = AcceptanceRule::Rejection;
    request.sampler.draw_rule = DrawRule::Pcg64;
    SpeculativeOptions options;
    options.depth = static_cast<std::int64_t>(random() % 4 + 1);
    const Trace once = decode(*speculative(options), request);
    options.capture = false;
    options.prefill_chunk = 3;
    const Trace again = decode(*speculative(options), request);
    ASSERT_EQ(once.ids, again.ids);
    if (request.sampler.greedy()) {
      ASSERT_EQ(once.ids, decode(*plain_, request).ids);
    }
  }
}

// A draft head whose logits are no numbers guesses nothing; the target decides as if there were no drafts.
TEST_P(Speculative, NonFiniteDraftLogitsEndDraftsAndNotTheRequest) {
  artifact::ToyModel toy = artifact::ToyModel::load(GetParam());
  std::string& norm = toy.at("mtp.hyper_connection_mixer.hc_norm.weight").bytes;
  for (std::size_t i = 0; i < norm.size(); i += 2) norm.replace(i, 2, "\x7f\x7f");  // the largest bf16: sums overflow
  const artifact::Scratch scratch;
  toy.write(scratch.path());
  const model::Loaded damaged = model::load(scratch.path().string(), backend::StateType::BF16);
  const auto plain = make_plain_decoder(*damaged.model).value();
  for (unsigned seed = 0; seed < test::cases(30); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    DecodeRequest request = random_request(random);
    SpeculativeOptions options;
    options.depth = static_cast<std::int64_t>(random() % 4 + 1);
    options.capture = random() % 2 == 0;
    const auto decoder = make_speculative_decoder(*damaged.model, options).value();
    const Trace expected = decode(*plain, request);
    const Trace outcome = decode(*decoder, request);
    ASSERT_EQ(difference(expected, outcome), "");
    EXPECT_EQ(outcome.stats.drafted[0], 0);
    EXPECT_EQ(outcome.stats.steps, expected.stats.steps);
    EXPECT_LE(outcome.stats.draft_failures, outcome.stats.steps);
    EXPECT_GE(outcome.stats.draft_failures, outcome.stats.steps - 1);  // no drafts for the last token of a budget
    request.sampler.acceptance = AcceptanceRule::Rejection;
    request.sampler.draw_rule = DrawRule::Pcg64;
    const Trace tested = decode(*decoder, request);
    ASSERT_NE(tested.finish, Finish::None);
    ASSERT_EQ(decode(*decoder, request).ids, tested.ids);
    ASSERT_TRUE(!request.sampler.greedy() || tested.ids == expected.ids);
  }
}

TEST_P(Speculative, BadOptionsAreErrors) {
  SpeculativeOptions options;
  for (const std::int64_t depth : {-1, 0, 5}) {
    options.depth = depth;
    EXPECT_FALSE(make_speculative_decoder(*loaded_->model, options));
  }
}

INSTANTIATE_TEST_SUITE_P(Toys, Speculative, ::testing::Values("toy-hf", "toy-pack"), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace lockstep::decode
