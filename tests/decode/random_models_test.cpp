// E1 and E2 on random geometries: speculative decoding in stream mode leaves exactly what plain decoding leaves - ids,
// probabilities, log-probabilities, the reason of the end and every part of the state.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "model/fixture.hpp"
#include "support/cases.hpp"
#include "support/random_model.hpp"
#include "support/runs.hpp"

namespace lockstep::decode {
namespace {

using testing::difference;
using testing::must;
using testing::Trace;

constexpr unsigned kRequestsPerModel = 10;

template <class T>
T pick(std::mt19937& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

DecodeRequest random_request(std::mt19937& random, std::int64_t vocabulary) {
  DecodeRequest request;
  const auto token = [&] { return static_cast<TokenId>(random() % static_cast<unsigned>(vocabulary)); };
  const std::size_t length = random() % 3 == 0 ? random() % 3 + 1 : random() % 70 + 1;
  for (std::size_t i = 0; i < length; ++i) request.prompt.push_back(random() % 10 == 0 ? 2 : token());
  SamplerParams& sampler = request.sampler;
  sampler.temperature = pick(random, {0.0, 0.3, 0.7, 1.0, 1.0, 1.5, 4.0});
  sampler.top_k = pick<std::int64_t>(random, {0, 0, 1, 5, 20});
  sampler.top_p = pick(random, {1.0, 1.0, 0.95, 0.6});
  sampler.min_p = pick(random, {0.0, 0.0, 0.05, 0.3});
  sampler.presence_penalty = pick(random, {0.0, 0.0, 1.1, -0.8});
  sampler.frequency_penalty = pick(random, {0.0, 0.0, 0.4, -0.3});
  for (std::size_t i = random() % 3; i > 0; --i) sampler.logit_bias[token()] = pick(random, {-100.0, -1.0, 2.0});
  sampler.seed = random();
  sampler.draw_rule = random() % 2 == 0 ? DrawRule::Pcg64 : DrawRule::Race;
  request.max_tokens = static_cast<std::int64_t>(random() % 4 == 0 ? random() % 2 + 1 : random() % 20 + 6);
  request.vocab = vocabulary - static_cast<std::int64_t>(random() % 2 == 0 ? 0 : random() % 5);
  for (TokenId& id : request.prompt) id = std::min(id, static_cast<TokenId>(request.vocab - 1));
  std::erase_if(sampler.logit_bias, [&](const auto& entry) { return entry.first >= request.vocab; });
  request.logprobs = random() % 2 == 0;
  request.top_logprobs = request.logprobs ? static_cast<std::int64_t>(random() % 4) : 0;
  return request;
}

/// Drafts for a run whose tokens are known: all right, all wrong, some right, or the head's own.
std::function<TokenId(std::uint64_t, TokenId)> drafts(std::mt19937& random, const std::vector<TokenId>& expected,
                                                      std::optional<TokenId> stop, std::int64_t vocabulary) {
  const unsigned pattern = random() % 6, share = random() % 5;
  return [=, &random](std::uint64_t number, TokenId proposed) {
    const bool right = pattern < 3 || (pattern == 3 && random() % 5 < share);
    if (pattern == 4) return proposed;
    const std::optional<TokenId> target =
        number < expected.size() ? std::optional(expected[number]) : (number == expected.size() ? stop : std::nullopt);
    if (right) return target.value_or(proposed);
    const auto other = static_cast<TokenId>(random() % static_cast<unsigned>(vocabulary));
    return other == target ? static_cast<TokenId>((other + 1) % vocabulary) : other;
  };
}

/// What the cases covered, so that a test that no longer tries anything fails.
struct Coverage {
  std::array<std::int64_t, kMaxDepth> drafted{}, accepted{};
  std::int64_t stops = 0, single = 0, logprobs = 0;

  void add(const Trace& trace) {
    for (std::size_t i = 0; i < drafted.size(); ++i) {
      drafted[i] += trace.stats.drafted[i];
      accepted[i] += trace.stats.accepted[i];
    }
    stops += trace.finish == Finish::Stop ? 1 : 0;
    single += trace.ids.size() == 1 ? 1 : 0;
    logprobs += static_cast<std::int64_t>(trace.logprobs.size());
  }
};

class Case {
 public:
  Case(const model::Model& model, std::mt19937& random)
      : model_(model), random_(random), runner_(model::Runner::create(model, 64).value()) {}

  /// Plain decoding, with one token of the first run made a stop token in half of the cases.
  Trace plain(DecodeRequest& request) {
    Trace expected = run_plain(request);
    if (expected.ids.empty() || random_() % 2 == 0) return expected;
    stop_ = expected.ids[random_() % expected.ids.size()];
    request.stop_ids = {*stop_};
    return run_plain(request);
  }

  Trace speculative(const DecodeRequest& request, const Trace& expected, SpeculativeOptions& options) {
    options.depth = pick<std::int64_t>(random_, {1, 2, 3, 4, 4});
    options.capture = random_() % 5 != 0;
    options.script = drafts(random_, expected.ids, stop_, request.vocab);
    const auto generation = must(make_speculative_generation(model_, options, request, std::nullopt));
    return testing::trace(*generation, runner_, static_cast<std::int64_t>(random_() % 64 + 1));
  }

 private:
  Trace run_plain(const DecodeRequest& request) {
    const auto generation = must(make_plain_generation(model_, request, std::nullopt));
    return testing::trace(*generation, runner_, 64);
  }

  const model::Model& model_;
  std::mt19937& random_;
  model::Runner runner_;
  std::optional<TokenId> stop_;
};

TEST(RandomModels, SpeculativeDecodingLeavesWhatPlainDecodingLeaves) {
  Coverage coverage;
  for (unsigned seed = 0; seed < test::cases(24); ++seed) {
    const model::Loaded loaded = model::load(test::random_model(seed, {.draft = true, .vocabulary = {}}),
                                             seed % 3 == 0 ? backend::StateType::F32 : backend::StateType::BF16);
    for (unsigned index = 0; index < kRequestsPerModel; ++index) {
      SCOPED_TRACE("model " + std::to_string(seed) + ", request " + std::to_string(index));
      std::mt19937 random(seed * 1000 + index);
      Case test(*loaded.model, random);
      DecodeRequest request = random_request(random, loaded.model->config().vocab_size);
      const Trace expected = test.plain(request);
      SpeculativeOptions options;
      const Trace speculative = test.speculative(request, expected, options);
      ASSERT_EQ(difference(expected, speculative), "") << "depth " << options.depth;
      if (options.capture) {
        ASSERT_EQ(speculative.stats.recomputed_tokens, 0);
      }
      coverage.add(speculative);
    }
  }
  if (!test::usual_cases()) return;
  for (std::size_t i = 0; i < kMaxDepth; ++i) {
    EXPECT_GT(coverage.accepted[i], 30) << "depth " << i + 1;
    EXPECT_GT(coverage.drafted[i], coverage.accepted[i] + 100) << "depth " << i + 1;
  }
  EXPECT_GT(coverage.stops, 50);
  EXPECT_GT(coverage.single, 10);
  EXPECT_GT(coverage.logprobs, 300);
}

/// A request that goes on from where another one ended, drafts and all, is the cold request.
TEST(RandomModels, ContinuedRequestsEqualColdOnesIncludingTheDraftCache) {
  for (unsigned seed = 0; seed < test::cases(25); ++seed) {
    const model::Loaded loaded =
        model::load(test::random_model(seed + 500, {.draft = true, .vocabulary = {}}), backend::StateType::BF16);
    const std::int64_t vocabulary = loaded.model->config().vocab_size;
    model::Runner runner = model::Runner::create(*loaded.model, 64).value();
    for (unsigned index = 0; index < 8; ++index) {
      SCOPED_TRACE("model " + std::to_string(seed + 500) + ", request " + std::to_string(index));
      std::mt19937 random(seed * 1000 + index);
      SpeculativeOptions options;
      options.depth = static_cast<std::int64_t>(random() % kMaxDepth + 1);
      const DecodeRequest first = random_request(random, vocabulary);
      const auto earlier = must(make_speculative_generation(*loaded.model, options, first, std::nullopt));
      testing::finish(*earlier, runner, 64);
      DecodeRequest second = random_request(random, vocabulary);
      const std::vector<TokenId>& have = earlier->sequence().tokens();
      second.prompt.insert(second.prompt.begin(), have.begin(), have.end());
      second.vocab = vocabulary;
      const auto warm = must(make_speculative_generation(*loaded.model, options, second, earlier->take().value()));
      const auto cold = must(make_speculative_generation(*loaded.model, options, second, std::nullopt));
      const Trace continued = testing::trace(*warm, runner, 1 + static_cast<std::int64_t>(random() % 20));
      const Trace fresh = testing::trace(*cold, runner, 64);
      ASSERT_EQ(difference(fresh, continued), "");
      ASSERT_EQ(continued.stats.accepted, fresh.stats.accepted);
      ASSERT_EQ(test::part_difference(warm->sequence().save_parts(), cold->sequence().save_parts()), "");
    }
  }
}

/// A checkpoint that has been through bytes: the sequence, the residuals that the draft layer has not seen, the logits.
Checkpoint through_bytes(const model::Model& model, Checkpoint& from) {
  auto sequence = model::Sequence::create(model).value();
  EXPECT_TRUE(sequence.restore(from.sequence.save()));
  EXPECT_EQ(test::part_difference(sequence.save_parts(), from.sequence.save_parts()), "");
  backend::BufferPtr hidden;
  if (from.hidden) {
    std::vector<std::byte> bytes(from.hidden->size());
    model.backend().read(bytes.data(), from.hidden->data(), bytes.size());
    hidden = model.backend().allocate(bytes.size()).value();
    model.backend().write(hidden->data(), bytes.data(), bytes.size());
  }
  return {std::move(sequence), std::move(hidden), from.logits};
}

/// At every rest of a speculative run the state is saved, restored and gone on from, draft layer's cache and all.
TEST(RandomModels, EveryRestOfASpeculativeRunIsSavedAndRestored) {
  std::int64_t rests = 0, drafted = 0;
  for (unsigned seed = 0; seed < test::cases(10); ++seed) {
    const model::Loaded loaded = model::load(test::random_model(seed + 700, {.draft = true, .vocabulary = {}}),
                                             seed % 3 == 0 ? backend::StateType::F32 : backend::StateType::BF16);
    const model::Model& model = *loaded.model;
    model::Runner runner = model::Runner::create(model, 64).value();
    model::Runner other = model::Runner::create(model, 64).value();
    for (unsigned index = 0; index < 3; ++index) {
      SCOPED_TRACE("model " + std::to_string(seed + 700) + ", request " + std::to_string(index));
      std::mt19937 random(seed * 1000 + index);
      SpeculativeOptions options;
      options.depth = static_cast<std::int64_t>(random() % kMaxDepth + 1);
      const DecodeRequest request = random_request(random, model.config().vocab_size);
      const auto run = must(make_speculative_generation(model, options, request, std::nullopt));
      const auto chunk = static_cast<std::int64_t>(random() % 20 + 1);
      while (run->need() != Generation::Need::Nothing) {
        ASSERT_TRUE(run_need(*run, runner, chunk));
        if (!run->at_rest() || run->sequence().length() == 0) continue;
        ++rests;
        Checkpoint direct = run->checkpoint().value();
        Checkpoint restored = through_bytes(model, direct);
        DecodeRequest next = random_request(random, model.config().vocab_size);
        next.max_tokens = 6;
        next.vocab = model.config().vocab_size;
        next.prompt.resize(std::min<std::size_t>(next.prompt.size(), 4));
        const std::vector<TokenId>& have = run->sequence().tokens();
        next.prompt.insert(next.prompt.begin(), have.begin(), have.end());
        const auto one = must(make_speculative_generation(model, options, next, std::move(direct)));
        const auto two = must(make_speculative_generation(model, options, next, std::move(restored)));
        const Trace expected = testing::trace(*one, other, 64), found = testing::trace(*two, other, 64);
        ASSERT_EQ(difference(expected, found), "");
        ASSERT_EQ(expected.stats.accepted, found.stats.accepted);
        ASSERT_EQ(test::part_difference(one->sequence().save_parts(), two->sequence().save_parts()), "");
        for (const std::int64_t n : found.stats.drafted) drafted += n;
      }
    }
  }
  if (!test::usual_cases()) return;
  EXPECT_GT(rests, 200);
  EXPECT_GT(drafted, 200);
}

}  // namespace
}  // namespace lockstep::decode
