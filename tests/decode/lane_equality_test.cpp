// Lanes on and off, in random pairs over random requests: the same ids, probabilities and target state; and what the
// driver of ar_pipeline does when the sink has enough, fails, or the request is cancelled.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "decode/lanes.hpp"
#include "decode/lanes/ar_pipeline.hpp"
#include "model/fixture.hpp"
#include "statistics.hpp"
#include "support/cases.hpp"
#include "support/random_model.hpp"
#include "support/runs.hpp"

namespace lockstep::decode {
namespace {

const std::string kData = LOCKSTEP_TEST_DATA;
constexpr std::int64_t kVocabulary = 512;

using testing::decode;
using testing::difference;
using testing::Trace;

DecodeRequest random_request(std::mt19937& random, unsigned vocabulary = kVocabulary) {
  DecodeRequest request;
  const std::size_t length = random() % 3 == 0 ? random() % 3 + 1 : random() % 90 + 1;
  const unsigned range = random() % 2 == 0 ? vocabulary : 5;  // few tokens: repeated n-grams
  for (std::size_t i = 0; i < length; ++i) request.prompt.push_back(static_cast<TokenId>(random() % range));
  request.sampler.temperature = std::array{0.0, 0.6, 1.0, 1.4}[random() % 4];
  request.sampler.top_k = std::array<std::int64_t, 3>{0, 2, 20}[random() % 3];
  request.sampler.top_p = random() % 2 == 0 ? 1.0 : 0.9;
  request.sampler.min_p = random() % 4 == 0 ? 0.05 : 0.0;
  request.sampler.presence_penalty = random() % 3 == 0 ? 0.8 : 0.0;
  if (random() % 4 == 0) request.sampler.logit_bias[static_cast<TokenId>(random() % vocabulary)] = 2.5;
  request.sampler.seed = random();
  request.sampler.draw_rule = random() % 2 == 0 ? DrawRule::Pcg64 : DrawRule::Race;
  request.max_tokens = static_cast<std::int64_t>(random() % 16 + 1);
  request.vocab = vocabulary;
  if (random() % 3 == 0) {
    for (TokenId id = static_cast<TokenId>(random() % 24); id < static_cast<TokenId>(vocabulary); id += 24)
      request.stop_ids.push_back(id);
  }
  return request;
}

/// A random choice of lanes, and what runs with it.
struct Choices {
  std::array<bool, kLanes> on{};
  std::unique_ptr<artifact::Artifact> artifact;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<Decoder> decoder;
  std::unique_ptr<Driver> driver;
  Lanes lanes;

  [[nodiscard]] std::string text() const {
    std::string names;
    for (const LaneInfo& lane : known_lanes()) {
      if (on[static_cast<std::size_t>(lane.id)]) names += std::string(lane.name) + " ";
    }
    return names.empty() ? "nothing" : names;
  }
};

/// `bits` says which lanes are on; everything else is random. `streamed`: the n-gram table may lie in a file.
Choices choose(artifact::Artifact artifact, unsigned bits, bool streamed, std::mt19937& random) {
  std::vector<std::string> off;
  Choices made;
  for (const LaneInfo& lane : known_lanes()) {
    made.on[static_cast<std::size_t>(lane.id)] = ((bits >> static_cast<unsigned>(lane.id)) & 1U) != 0;
    if (!made.on[static_cast<std::size_t>(lane.id)]) off.emplace_back(lane.name);
  }
  made.lanes = Lanes::from_user(off).value();
  backend::CpuOptions cpu = model::one_thread();
  cpu.lanes = made.lanes.for_backend();
  if (streamed && random() % 2 == 0) cpu.ngram.mode = backend::NgramMode::Streamed;
  cpu.ngram.cache_bytes = random() % 2 == 0 ? 3000 : 1 << 20;
  made.artifact = std::make_unique<artifact::Artifact>(std::move(artifact));
  model::ModelOptions options;
  if (made.lanes.armed(LaneId::Frspec) && made.artifact->view().draft) {
    const auto vocabulary = static_cast<std::int32_t>(made.artifact->config().vocab_size);
    for (auto id = static_cast<std::int32_t>(random() % 3); id < vocabulary; id += 3)
      options.draft_tokens.push_back(id);
  }
  made.model = model::Model::load(*made.artifact, backend::CpuBackend::create(cpu).value(), options).value();
  made.lanes.install(*made.model);
  made.driver = make_plain_driver();
  if (made.lanes.armed(LaneId::ArPipeline)) made.driver = make_pipelined_driver().value();
  const std::int64_t chunk = random() % 2 == 0 ? kPrefillChunk : static_cast<std::int64_t>(random() % 20 + 1);
  if (!made.lanes.armed(LaneId::Mtp)) {
    made.decoder = make_plain_decoder(*made.model, chunk).value();
    return made;
  }
  SpeculativeOptions speculative;
  speculative.depth = static_cast<std::int64_t>(random() % kMaxDepth + 1);
  speculative.capture = made.lanes.armed(LaneId::GdnCapture);
  speculative.short_head = made.lanes.armed(LaneId::Frspec);
  speculative.prefill_chunk = chunk;
  made.decoder = make_speculative_decoder(*made.model, speculative).value();
  return made;
}

/// How often each lane took effect. One that is not armed must not have.
struct Engagement {
  std::array<std::uint64_t, kLanes> times{};

  void add(const Choices& choices, const Trace& trace) {
    for (const LaneReport& report : lane_report(choices.lanes, *choices.model, trace.stats)) {
      times[static_cast<std::size_t>(report.lane->id)] += report.run.engaged;
      if (report.verdict.state == LaneVerdict::State::Armed) continue;
      EXPECT_EQ(report.run.engaged, 0U) << report.lane->name << " ran although it is " << verdict_text(report.verdict);
    }
  }
  void expect_all(std::uint64_t least) const {
    for (const LaneInfo& lane : known_lanes()) EXPECT_GT(times[static_cast<std::size_t>(lane.id)], least) << lane.name;
  }
};

/// Every pair of lanes in all four settings, the other lanes at random, on random geometries.
TEST(LanePairs, OnRandomModelsEveryPairGivesThePlainAnswers) {
  Engagement engagement;
  unsigned requests = 0;
  for (unsigned round = 0; round < test::cases(1); ++round) {
    for (unsigned pair = 0; pair < kLanes * kLanes; ++pair) {
      const unsigned first = pair / kLanes, second = pair % kLanes;
      if (first >= second) continue;
      for (unsigned setting = 0; setting < 4; ++setting) {
        const unsigned seed = (round * kLanes * kLanes + pair) * 4 + setting;
        std::mt19937 random(seed);
        unsigned bits = static_cast<unsigned>(random()) & ~(1U << first) & ~(1U << second);
        bits |= (setting & 1U) << first | (setting >> 1U) << second;
        const test::RandomModelWishes wishes{.draft = true, .vocabulary = {}, .thin = random() % 2 == 0};
        const Choices plain = choose(test::random_model(seed + 9000, wishes), 0, false, random);
        const Choices lanes = choose(test::random_model(seed + 9000, wishes), bits, false, random);
        SCOPED_TRACE("seed " + std::to_string(seed) + ": " + lanes.text());
        for (int i = 0; i < 4; ++i, ++requests) {
          const auto vocabulary = static_cast<unsigned>(plain.model->config().vocab_size);
          const DecodeRequest request = random_request(random, vocabulary);
          const Trace expected = decode(*plain.decoder, *plain.driver, request);
          const Trace outcome = decode(*lanes.decoder, *lanes.driver, request);
          ASSERT_EQ(difference(expected, outcome), "") << "request " << i;
          engagement.add(plain, expected);
          engagement.add(lanes, outcome);
        }
      }
    }
  }
  EXPECT_GE(requests, 200U);
  engagement.expect_all(30);
}

class LaneEquality : public ::testing::TestWithParam<const char*> {
 protected:
  [[nodiscard]] static std::string directory() { return kData + "/" + GetParam(); }
};

TEST_P(LaneEquality, RandomPairsOfChoicesGiveTheSameAnswers) {
  Engagement engagement;
  for (unsigned seed = 0; seed < test::cases(40); ++seed) {
    std::mt19937 random(seed);
    // Every lane comes alone and every lane comes with all others; the rest is random.
    const unsigned all = (1U << kLanes) - 1;
    const unsigned first = seed < kLanes
                               ? 1U << seed
                               : (seed < 2 * kLanes ? all & ~(1U << (seed - kLanes)) : static_cast<unsigned>(random()));
    const unsigned second = seed % 4 == 0 ? 0 : static_cast<unsigned>(random());
    Choices a = choose(artifact::Artifact::open(directory()).value(), first, true, random);
    Choices b = choose(artifact::Artifact::open(directory()).value(), second, true, random);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + a.text() + "against " + b.text());
    for (int i = 0; i < 5; ++i) {
      const DecodeRequest request = random_request(random);
      const Trace of_a = decode(*a.decoder, *a.driver, request);
      const Trace of_b = decode(*b.decoder, *b.driver, request);
      ASSERT_EQ(difference(of_a, of_b), "") << "request " << i;
      engagement.add(a, of_a);
      engagement.add(b, of_b);
    }
  }
  engagement.expect_all(30);
}

TEST(ArPipeline, LikelyTokensAreTheBestByLogit) {
  for (unsigned seed = 0; seed < test::cases(100); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    DecodeRequest request;
    std::vector<float> logits(random() % 40 + 1);
    for (float& logit : logits) logit = static_cast<float>(random() % 60) - 30.0F;
    request.vocab = static_cast<std::int64_t>(logits.size() - random() % std::min<std::size_t>(logits.size(), 3));
    request.sampler.temperature = random() % 2 == 0 ? 0.0 : 0.8;
    std::vector<TokenId> expected(static_cast<std::size_t>(request.vocab)), likely{1, 2, 3};
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = static_cast<TokenId>(i);
    std::stable_sort(expected.begin(), expected.end(), [&](TokenId a, TokenId b) {
      return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    expected.resize(std::min(expected.size(), request.sampler.greedy() ? std::size_t{1} : kLikelyTokens));
    likely_tokens(logits, request, likely);
    ASSERT_EQ(likely, expected);
  }
}

TEST_P(LaneEquality, TheNextStepIsPreparedWhileATokenIsDrawn) {
  backend::CpuOptions options = model::one_thread();
  options.ngram.mode = backend::NgramMode::Streamed;
  const model::Loaded loaded = model::load(directory(), backend::StateType::BF16, options);
  const auto decoder = make_plain_decoder(*loaded.model).value();
  const auto driver = make_pipelined_driver().value();
  DecodeRequest request;
  request.prompt = {9, 4, 77};
  request.max_tokens = 140;  // over two borders of pages
  request.vocab = kVocabulary;
  request.sampler.temperature = 0;
  const Trace plain = decode(*decoder, request);
  EXPECT_EQ(plain.stats.prepared_steps, 0);
  request.prompt.push_back(5);
  const Trace greedy = decode(*decoder, *driver, request);
  // The first token is drawn from the prompt's logits, without a step to prepare beside; the last one has no step.
  EXPECT_EQ(greedy.stats.steps_ahead, 139);
  EXPECT_EQ(greedy.stats.prepared_steps, 138);
  EXPECT_EQ(greedy.stats.foreseen_tokens, 138);  // nothing but the best logit can be drawn
  request.sampler.temperature = 0.8;
  request.prompt.push_back(6);
  const Trace sampled = decode(*decoder, *driver, request);
  EXPECT_EQ(sampled.stats.prepared_steps, 138);
  EXPECT_LE(sampled.stats.foreseen_tokens, 138);
  const auto other = make_plain_decoder(*loaded.model).value();
  EXPECT_EQ(difference(decode(*other, request), sampled), "");
}

TEST_P(LaneEquality, RejectionModeStaysExactWithAShortHead) {
  // Two tokens after a fixed prompt, against their joint distribution from plain logits.
  const auto artifact = artifact::Artifact::open(directory()).value();
  DecodeRequest request;
  request.prompt = {5, 300, 41, 7};
  request.sampler.temperature = 1.3;
  request.sampler.top_k = 4;
  request.sampler.acceptance = AcceptanceRule::Rejection;
  request.max_tokens = 2;
  request.vocab = kVocabulary;

  const auto row_after = [&](const model::Model& model, std::vector<TokenId> tokens) {
    const model::Forward forward = model::run_all(model, tokens, 0);
    RowScratch scratch;
    Distribution row;
    const std::span<const float> last = std::span(forward.logits).last(kVocabulary);
    EXPECT_TRUE(make_distribution(last, request.sampler, {0, kVocabulary, nullptr, {}}, scratch, row));
    return row;
  };
  std::map<std::pair<TokenId, TokenId>, double> expected;
  std::vector<std::int32_t> list;
  {
    model::Loaded plain = model::load(directory(), backend::StateType::BF16);
    const Distribution first = row_after(*plain.model, request.prompt);
    for (std::size_t i = 0; i < first.ids.size(); ++i) {
      std::vector<TokenId> more = request.prompt;
      more.push_back(first.ids[i]);
      const Distribution second = row_after(*plain.model, more);
      for (std::size_t j = 0; j < second.ids.size(); ++j) {
        expected[{first.ids[i], second.ids[j]}] = first.probabilities[i] * second.probabilities[j];
        // Half of the possible second tokens, so that acceptance and replacement both occur.
        if (j % 2 == 0 && std::find(list.begin(), list.end(), second.ids[j]) == list.end())
          list.push_back(second.ids[j]);
      }
    }
  }
  model::ModelOptions options;
  options.draft_tokens = list;
  const auto model =
      model::Model::load(artifact, backend::CpuBackend::create(model::one_thread()).value(), options).value();
  SpeculativeOptions speculative;
  speculative.depth = 1;
  speculative.short_head = true;
  const auto decoder = make_speculative_decoder(*model, speculative).value();
  const auto driver = make_plain_driver();
  std::map<std::pair<TokenId, TokenId>, long> seen;
  std::int64_t accepted = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    request.sampler.seed = seed;
    const Trace outcome = decode(*decoder, *driver, request);
    ASSERT_EQ(outcome.ids.size(), 2U);
    ++seen[{outcome.ids[0], outcome.ids[1]}];
    accepted += outcome.stats.accepted[0];
    ASSERT_EQ(outcome.stats.short_head_rows, outcome.stats.drafted[0]);
  }
  const auto fit = testing::chi_square(expected, seen, std::string("short head, rejection, ") + GetParam());
  EXPECT_FALSE(fit.impossible);
  EXPECT_GT(fit.p_value, testing::kLeastPValue);
  EXPECT_LT(accepted, 3000);
}

TEST_P(LaneEquality, TheSinkEndsAnAnswerAsInThePlainLoop) {
  const model::Loaded loaded = model::load(directory(), backend::StateType::BF16);
  const auto plain = make_plain_driver();
  const auto pipelined = make_pipelined_driver().value();
  for (unsigned seed = 0; seed < test::cases(30); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    DecodeRequest request = random_request(random);
    request.stop_ids.clear();
    request.max_tokens = 12;
    const std::size_t enough = random() % 12 + 1;
    const bool fails = random() % 3 == 0;
    std::vector<TokenId> got[2];
    std::string errors[2];
    std::vector<TokenId> sequences[2];
    std::vector<TokenId> next[2];
    for (int i = 0; i < 2; ++i) {
      const auto decoder = make_plain_decoder(*loaded.model).value();
      Driver& driver = i == 0 ? *plain : *pipelined;
      ASSERT_TRUE(decoder->start(request, {}));
      const Status ran = driver.run(
          *decoder,
          [&](std::span<const Choice> tokens) -> Result<bool> {
            for (const Choice& token : tokens) got[i].push_back(token.id);
            if (got[i].size() < enough) return true;
            if (fails) return fail(ErrorKind::Io, "the reader has gone");
            return false;
          },
          [] {});
      errors[i] = ran ? "" : ran.error().message;
      sequences[i] = decoder->sequence()->tokens();
      // The next turn continues the answer.
      DecodeRequest more = request;
      more.prompt.insert(more.prompt.end(), got[i].begin(), got[i].end());
      more.prompt.push_back(9);
      next[i] = decode(*decoder, driver, more).ids;
      EXPECT_GE(decoder->stats().reused_tokens, static_cast<std::int64_t>(request.prompt.size()));
    }
    EXPECT_EQ(got[0], got[1]);
    EXPECT_EQ(errors[0], errors[1]);
    EXPECT_EQ(next[0], next[1]);
    // One forward pass was under way: the sequence may hold the last token too, and nothing else.
    if (enough < 12) sequences[0].push_back(got[0].back());
    EXPECT_EQ(sequences[0], sequences[1]);
  }
}

TEST_P(LaneEquality, CancellingEndsThePipelineToo) {
  const model::Loaded loaded = model::load(directory(), backend::StateType::BF16);
  const auto decoder = make_plain_decoder(*loaded.model).value();
  const auto driver = make_pipelined_driver().value();
  DecodeRequest request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 50;
  request.vocab = kVocabulary;
  ASSERT_TRUE(decoder->start(request, {}));
  std::size_t tokens = 0;
  const Status ran = driver->run(
      *decoder,
      [&](std::span<const Choice> some) -> Result<bool> {
        tokens += some.size();
        return true;
      },
      [&] {
        if (decoder->stats().tokens == 4) decoder->cancel();
      });
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.error().kind, ErrorKind::Cancelled);
  EXPECT_EQ(tokens, 4U);
  EXPECT_EQ(decode(*decoder, *driver, request).ids.size(), 50U);
}

INSTANTIATE_TEST_SUITE_P(Toys, LaneEquality, ::testing::Values("toy-hf", "toy-pack"), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace lockstep::decode
