// Plain decoding: the reference's tokens, the same tokens whatever the machine does, and every way to end.
#include "decode/decoder.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "model/fixture.hpp"
#include "support/cases.hpp"
#include "support/scratch.hpp"

namespace lockstep::decode {
namespace {

using backend::StateType;

const std::string kData = LOCKSTEP_TEST_DATA;
constexpr std::int64_t kVocabulary = 512;
constexpr std::int64_t kContext = 4096;

struct Outcome {
  std::vector<TokenId> ids;
  std::vector<double> probabilities;
  Finish finish = Finish::None;
};

/// All tokens of a request whose start() has succeeded.
Outcome finish(Decoder& decoder) {
  Outcome outcome;
  while (decoder.finish() == Finish::None) {
    const auto tokens = decoder.step();
    if (!tokens) {
      ADD_FAILURE() << tokens.error().message;
      return outcome;
    }
    for (const Choice& token : *tokens) {
      outcome.ids.push_back(token.id);
      outcome.probabilities.push_back(token.probability);
    }
  }
  outcome.finish = decoder.finish();
  return outcome;
}

Outcome decode(Decoder& decoder, const DecodeRequest& request) {
  const Status started = decoder.start(request, {});
  if (!started) {
    ADD_FAILURE() << started.error().message;
    return {};
  }
  return finish(decoder);
}

std::vector<TokenId> random_tokens(std::mt19937& random, std::size_t count) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random() % kVocabulary);
  return tokens;
}

DecodeRequest greedy_request(std::vector<TokenId> prompt, std::int64_t max_tokens) {
  DecodeRequest request;
  request.prompt = std::move(prompt);
  request.sampler.temperature = 0;
  request.max_tokens = max_tokens;
  request.vocab = kVocabulary;
  return request;
}

/// Replaces the context size in a config.json.
void set_context(const std::filesystem::path& path, const std::string& positions) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::string config = text.str();
  const std::string field = "\"max_position_embeddings\": 4096";
  const std::size_t at = config.find(field);
  ASSERT_NE(at, std::string::npos);
  config.replace(at, field.size(), "\"max_position_embeddings\": " + positions);
  std::filesystem::remove(path);
  std::ofstream(path) << config;
}

class DecoderTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { loaded_ = new model::Loaded(model::load(kData + "/toy-pack", StateType::BF16)); }
  static void TearDownTestSuite() {
    delete loaded_;
    loaded_ = nullptr;
  }
  [[nodiscard]] static std::unique_ptr<Decoder> cold(std::int64_t chunk = kPrefillChunk) {
    return make_plain_decoder(*loaded_->model, chunk).value();
  }

  static model::Loaded* loaded_;
  std::unique_ptr<Decoder> decoder_ = cold();
};
model::Loaded* DecoderTest::loaded_ = nullptr;

TEST(Decoder, GreedyTokensAreThoseOfTheReference) {
  for (const std::string name : {"toy-pack", "toy-hf"}) {
    const model::Loaded loaded = model::load(kData + "/" + name, StateType::F32);
    const auto golden = artifact::SafetensorsFile::open(kData + "/" + name + "/golden.safetensors").value();
    const auto expected = model::golden_ids(golden, "greedy.ids");
    const auto decoder = make_plain_decoder(*loaded.model).value();
    const DecodeRequest request =
        greedy_request(model::golden_ids(golden, "greedy.prompt"), static_cast<std::int64_t>(expected.size()));
    const Outcome outcome = decode(*decoder, request);
    EXPECT_EQ(outcome.ids, expected) << name;
    EXPECT_EQ(outcome.finish, Finish::Length);
    EXPECT_EQ(outcome.probabilities, std::vector<double>(expected.size(), 1.0));
    EXPECT_EQ(decoder->stats().prompt_tokens, static_cast<std::int64_t>(request.prompt.size()));
    EXPECT_EQ(decoder->stats().reused_tokens, 0);
    EXPECT_EQ(decoder->stats().tokens, request.max_tokens);
  }
}

DecodeRequest sampled_request(unsigned seed) {
  std::mt19937 random(seed);
  DecodeRequest request = greedy_request(random_tokens(random, random() % 70 + 1), 12);
  request.sampler.temperature = 0.9;
  request.sampler.top_k = seed % 3 == 0 ? 0 : 40;
  request.sampler.top_p = 0.95;
  request.sampler.seed = seed;
  request.sampler.draw_rule = seed % 2 == 0 ? DrawRule::Pcg64 : DrawRule::Race;
  request.sampler.frequency_penalty = seed % 4 == 0 ? 0.5 : 0.0;
  return request;
}

TEST_F(DecoderTest, TheSeedDecidesWhateverTheMachine) {
  constexpr unsigned kRequests = 4;
  std::vector<Outcome> expected;
  for (unsigned seed = 0; seed < kRequests; ++seed) expected.push_back(decode(*decoder_, sampled_request(seed)));
  EXPECT_NE(expected[0].ids, expected[1].ids);
  const auto check = [&](Decoder& decoder, const std::string& what) {
    for (unsigned seed = 0; seed < kRequests; ++seed) {
      const Outcome outcome = decode(decoder, sampled_request(seed));
      EXPECT_EQ(outcome.ids, expected[seed].ids) << what << ", seed " << seed;
      EXPECT_EQ(outcome.probabilities, expected[seed].probabilities) << what << ", seed " << seed;
    }
  };
  for (const std::int64_t chunk : {1, 7, 64}) check(*cold(chunk), "chunk " + std::to_string(chunk));
  std::size_t threads = 1;
  for (const kernels::Kernels* table : kernels::available_kernels()) {
    backend::CpuOptions options;
    options.isa = std::string(table->name);
    options.threads = ++threads;
    options.min_work = 8192;
    const model::Loaded other = model::load(kData + "/toy-pack", StateType::BF16, options);
    check(*make_plain_decoder(*other.model).value(), options.isa + ", " + std::to_string(threads) + " threads");
  }
}

TEST_F(DecoderTest, OtherSeedsGiveOtherTokens) {
  DecodeRequest request = sampled_request(1);
  const Outcome first = decode(*decoder_, request);
  request.sampler.seed += 1;
  EXPECT_NE(decode(*decoder_, request).ids, first.ids);
  for (const double p : first.probabilities) {
    EXPECT_GT(p, 0.0);
    EXPECT_LE(p, 1.0);
  }
}

TEST_F(DecoderTest, MaxTokensIsTheMost) {
  for (const std::int64_t most : {1, 2, 9}) {
    const Outcome outcome = decode(*decoder_, greedy_request({5, 6, 7}, most));
    EXPECT_EQ(outcome.ids.size(), static_cast<std::size_t>(most));
    EXPECT_EQ(outcome.finish, Finish::Length);
    const auto after = decoder_->step();
    ASSERT_TRUE(after);
    EXPECT_TRUE(after->empty());
  }
}

TEST_F(DecoderTest, AStopTokenEndsAndIsNotEmitted) {
  const DecodeRequest base = greedy_request({11, 12, 13, 14}, 12);
  const std::vector<TokenId> ids = decode(*decoder_, base).ids;
  for (std::size_t at = 0; at < ids.size(); ++at) {
    DecodeRequest request = base;
    request.stop_ids = {ids[at]};
    const auto first = std::find(ids.begin(), ids.end(), ids[at]);
    const Outcome outcome = decode(*decoder_, request);
    EXPECT_EQ(outcome.ids, std::vector<TokenId>(ids.begin(), first)) << at;
    EXPECT_EQ(outcome.finish, Finish::Stop);
    EXPECT_EQ(decoder_->stats().tokens, first - ids.begin());
  }
  // The budget is used up before the stop token is drawn.
  DecodeRequest request = base;
  request.max_tokens = 3;
  request.stop_ids = {std::min(ids[3], ids[4]), std::max(ids[3], ids[4])};
  if (std::find(ids.begin(), ids.begin() + 3, ids[3]) == ids.begin() + 3 &&
      std::find(ids.begin(), ids.begin() + 3, ids[4]) == ids.begin() + 3) {
    EXPECT_EQ(decode(*decoder_, request).finish, Finish::Length);
  }
}

TEST_F(DecoderTest, UnusablePromptsAreErrorsAndHarmNothing) {
  const DecodeRequest good = greedy_request({3, 4, 5}, 6);
  const Outcome expected = decode(*decoder_, good);
  const auto expect_error = [&](const DecodeRequest& request, ErrorKind kind, const std::string& part) {
    const Status status = decoder_->start(request, {});
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().kind, kind);
    EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
    EXPECT_EQ(decode(*decoder_, good).ids, expected.ids);
  };
  expect_error(greedy_request({}, 4), ErrorKind::Invalid, "empty");
  expect_error(greedy_request({1, static_cast<TokenId>(kVocabulary)}, 4), ErrorKind::Invalid, "512");
  expect_error(greedy_request({-1}, 4), ErrorKind::Invalid, "-1");
  expect_error(greedy_request(std::vector<TokenId>(kContext, 1), 4), ErrorKind::Limit, "4096");
  DecodeRequest bad = good;
  bad.sampler.temperature = -1;
  expect_error(bad, ErrorKind::Invalid, "temperature");
}

TEST_F(DecoderTest, AVocabularyThatDoesNotFitTheLogitsIsAnError) {
  for (const std::int64_t vocabulary : {std::int64_t{0}, std::int64_t{-5}, kVocabulary + 1}) {
    DecodeRequest request = greedy_request({1, 2}, 4);
    request.vocab = vocabulary;
    const Status started = decoder_->start(request, {});
    if (!started) continue;
    const auto tokens = decoder_->step();
    ASSERT_FALSE(tokens) << vocabulary;
    EXPECT_EQ(tokens.error().kind, ErrorKind::Internal);
  }
  // A smaller usable vocabulary hides the padding rows behind it.
  DecodeRequest request = greedy_request({1, 2}, 30);
  request.vocab = 40;
  request.sampler.temperature = 5;
  for (const TokenId id : decode(*decoder_, request).ids) EXPECT_LT(id, 40);
}

TEST_F(DecoderTest, TheContextEndsTheRequest) {
  constexpr std::size_t kSmall = 70;
  const test::ScratchDirectory scratch;
  std::filesystem::copy(kData + "/toy-pack", scratch / "pack");
  set_context(scratch / "pack" / "config.json", std::to_string(kSmall));
  const model::Loaded loaded = model::load((scratch / "pack").string(), StateType::BF16);
  const auto decoder = make_plain_decoder(*loaded.model).value();
  std::mt19937 random(4);
  DecodeRequest request = greedy_request(random_tokens(random, kSmall), 0);
  const Status status = decoder->start(request, {});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::Limit);
  EXPECT_NE(status.error().message.find("context of 70"), std::string::npos) << status.error().message;
  for (const std::size_t room : {1U, 2U, 6U}) {
    for (const std::int64_t most : {0, 100}) {
      request.prompt.resize(kSmall - room);
      request.max_tokens = most;
      const Outcome outcome = decode(*decoder, request);
      EXPECT_EQ(outcome.ids.size(), room);
      EXPECT_EQ(outcome.finish, Finish::Length);
      // A longer context has the same tokens there.
      request.max_tokens = static_cast<std::int64_t>(room);
      EXPECT_EQ(outcome.ids, decode(*decoder_, request).ids);
    }
  }
}

TEST_F(DecoderTest, CancelEndsThePromptAndTheAnswer) {
  std::mt19937 random(5);
  const DecodeRequest request = greedy_request(random_tokens(random, 50), 8);
  const Outcome expected = decode(*decoder_, request);
  const auto decoder = cold(8);
  std::vector<std::int64_t> seen;
  const Status status = decoder->start(request, [&](std::int64_t done, std::int64_t total) {
    seen.push_back(done);
    EXPECT_EQ(total, 50);
    if (done >= 16) decoder->cancel();
  });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::Cancelled);
  EXPECT_EQ(seen, (std::vector<std::int64_t>{8, 16}));
  EXPECT_EQ(decode(*decoder, request).ids, expected.ids);  // nothing of it is left

  ASSERT_TRUE(decoder->start(request, {}));
  ASSERT_TRUE(decoder->step());
  decoder->cancel();
  EXPECT_TRUE(decoder->cancelled());
  for (int i = 0; i < 2; ++i) {
    const auto tokens = decoder->step();
    ASSERT_FALSE(tokens);
    EXPECT_EQ(tokens.error().kind, ErrorKind::Cancelled);
  }
  EXPECT_EQ(decode(*decoder, request).ids, expected.ids);
}

TEST_F(DecoderTest, StepsWithoutARequestAreErrors) {
  const auto decoder = cold(8);
  EXPECT_FALSE(decoder->step());  // before any request
  EXPECT_EQ(decoder->sequence(), nullptr);
  const DecodeRequest request = greedy_request(std::vector<TokenId>(20, 3), 8);
  ASSERT_FALSE(decoder->start(request, [&](std::int64_t, std::int64_t) { decoder->cancel(); }));
  EXPECT_FALSE(decoder->step());
  EXPECT_EQ(decoder->sequence(), nullptr);
}

// E2: a request that continues the sequence gives the tokens and the state of a cold one.
TEST_F(DecoderTest, ContinuedPromptsEqualColdOnes) {
  int continued = 0;
  for (unsigned seed = 0; seed < test::cases(8); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto decoder = cold(static_cast<std::int64_t>(random() % 30 + 1));
    DecodeRequest request = sampled_request(seed);
    for (int turn = 0; turn < 4; ++turn) {
      request.max_tokens = static_cast<std::int64_t>(random() % 9 + 1);
      request.sampler.seed = random();
      const Outcome warm = decode(*decoder, request);
      if (decoder->stats().reused_tokens > 0) ++continued;
      const auto other = cold();
      const Outcome fresh = decode(*other, request);
      ASSERT_EQ(warm.ids, fresh.ids) << "turn " << turn;
      ASSERT_EQ(warm.probabilities, fresh.probabilities) << "turn " << turn;
      ASSERT_EQ(decoder->sequence()->tokens(), other->sequence()->tokens());
      ASSERT_EQ(decoder->sequence()->save(), other->sequence()->save()) << "turn " << turn;
      const std::vector<TokenId> have = decoder->sequence()->tokens();
      // Continue the conversation, leave it in the middle, or ask for exactly what is there.
      const unsigned kind = random() % 6;
      request.prompt = have;
      if (kind == 0) request.prompt.resize(random() % have.size() + 1);
      if (kind != 1) {
        const auto more = random_tokens(random, random() % 40 + 1);
        request.prompt.insert(request.prompt.end(), more.begin(), more.end());
      }
    }
  }
  if (test::usual_cases()) {
    EXPECT_GT(continued, 6);
  }
}

TEST_F(DecoderTest, OnlyTheNewPartOfAContinuedPromptRuns) {
  DecodeRequest request = greedy_request({1, 2, 3, 4, 5}, 4);
  const Outcome first = decode(*decoder_, request);
  request.prompt.insert(request.prompt.end(), first.ids.begin(), first.ids.end());
  request.prompt.push_back(9);
  decode(*decoder_, request);
  EXPECT_EQ(decoder_->stats().prompt_tokens, 10);
  EXPECT_EQ(decoder_->stats().reused_tokens, 8);  // the last emitted token has not been through the model
  request.prompt[0] = 77;
  decode(*decoder_, request);
  EXPECT_EQ(decoder_->stats().reused_tokens, 0);
}

/// Greedy decoding by hand: raw logits of the runner, the penalties of docs/sampling.md, argmax.
std::vector<TokenId> greedy_by_hand(const model::Model& model, const DecodeRequest& request) {
  auto runner = model::Runner::create(model, 64).value();
  auto sequence = model::Sequence::create(model).value();
  std::vector<TokenId> next = request.prompt;
  std::vector<TokenId> out;
  std::vector<double> counts(kVocabulary, 0.0);
  while (static_cast<std::int64_t>(out.size()) < request.max_tokens) {
    const model::Segment segment{&sequence, next, model::LogitsWanted::Last, false};
    EXPECT_TRUE(runner.forward({&segment, 1}));
    std::vector<float> row(runner.logits().begin(), runner.logits().end());
    for (std::size_t id = 0; id < row.size(); ++id) {
      double logit = row[id];
      const auto bias = request.sampler.logit_bias.find(static_cast<TokenId>(id));
      if (bias != request.sampler.logit_bias.end()) logit += bias->second;
      if (counts[id] > 0) {
        logit -= request.sampler.frequency_penalty * counts[id] + request.sampler.presence_penalty;
      }
      row[id] = static_cast<float>(logit);
    }
    const TokenId id = model::argmax(row);
    counts[static_cast<std::size_t>(id)] += 1;
    out.push_back(id);
    next = {id};
  }
  return out;
}

TEST_F(DecoderTest, PenaltiesCountTheCompletionOnly) {
  for (unsigned seed = 0; seed < test::cases(6); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    DecodeRequest request = greedy_request(random_tokens(random, 30), 24);
    EXPECT_EQ(decode(*decoder_, request).ids, greedy_by_hand(*loaded_->model, request));
    request.sampler.presence_penalty = seed % 2 == 0 ? 1.5 : 0.0;
    request.sampler.frequency_penalty = seed % 3 == 0 ? -0.7 : 0.9;
    request.sampler.logit_bias[static_cast<TokenId>(random() % kVocabulary)] = 2.0;
    EXPECT_EQ(decode(*decoder_, request).ids, greedy_by_hand(*loaded_->model, request));
  }
  DecodeRequest request = greedy_request({1, 2, 3}, 5);
  request.sampler.logit_bias[7] = 100.0;
  EXPECT_EQ(decode(*decoder_, request).ids, (std::vector<TokenId>(5, 7)));
}

// Large bf16 numbers that are accepted when a model is loaded: the largest bias, and a scale that gives finite weights
// with no bias. Together they overflow.
constexpr std::uint16_t kHuge = 0x7f7f;
constexpr std::uint16_t kMinusHuge = 0xff7f;
constexpr std::uint16_t kLargeScale = 0x7b7f;

/// A copy of toy-pack with first scales or biases of rows of quantised matrices replaced (bfloat16).
class DamagedPack {
 public:
  DamagedPack(const std::string& module, std::int64_t row, std::uint16_t bias) {
    std::filesystem::copy(kData + "/toy-pack", scratch_ / "pack");
    damage(module + ".biases", row, bias);
    damage(module + ".scales", row, kLargeScale);
  }
  [[nodiscard]] model::Loaded load() const { return model::load((scratch_ / "pack").string(), StateType::BF16); }

 private:
  void damage(const std::string& tensor, std::int64_t row, std::uint16_t bits) {
    bool damaged = false;
    const auto artifact = artifact::Artifact::open(scratch_ / "pack").value();
    for (const artifact::TensorRecord& record : artifact.inventory()) {
      if (record.name != tensor) continue;
      const std::uint64_t row_bytes = record.bytes / static_cast<std::uint64_t>(record.shape[0]);
      const auto path = scratch_ / "pack" / record.file;
      std::filesystem::permissions(path, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(record.offset + static_cast<std::uint64_t>(row) * row_bytes));
      file.put(static_cast<char>(bits & 0xff)).put(static_cast<char>(bits >> 8));
      damaged = static_cast<bool>(file);
    }
    EXPECT_TRUE(damaged) << tensor;
  }

  test::ScratchDirectory scratch_;
};

TEST_F(DecoderTest, NonFiniteLogitsStopTheRequestAtOnce) {
  for (const std::uint16_t bits : {kHuge, kMinusHuge}) {
    const DamagedPack pack("language_model.lm_head", 37, bits);
    const model::Loaded loaded = pack.load();
    const auto decoder = make_plain_decoder(*loaded.model).value();
    for (const double temperature : {0.0, 1.0}) {
      DecodeRequest request = greedy_request({1, 2, 3}, 8);
      request.sampler.temperature = temperature;
      ASSERT_TRUE(decoder->start(request, {}));
      const auto tokens = decoder->step();
      ASSERT_FALSE(tokens);
      EXPECT_EQ(tokens.error().kind, ErrorKind::Internal);
      EXPECT_NE(tokens.error().message.find("token 0"), std::string::npos) << tokens.error().message;
      EXPECT_NE(tokens.error().message.find("id 37"), std::string::npos) << tokens.error().message;
      EXPECT_FALSE(decoder->step());
    }
  }
}

TEST_F(DecoderTest, NonFiniteStateStopsTheRequestAtTheToken) {
  const DecodeRequest request = greedy_request({21, 22, 23, 24}, 12);
  const std::vector<TokenId> ids = decode(*decoder_, request).ids;
  // The embedding of the token that is emitted third is broken, so the fourth cannot be computed.
  const std::vector<TokenId> before{21, 22, 23, 24, ids[0], ids[1]};
  ASSERT_EQ(std::count(before.begin(), before.end(), ids[2]), 0) << "choose another prompt";
  const DamagedPack pack("language_model.model.embed_tokens", ids[2], kHuge);
  const model::Loaded loaded = pack.load();
  const auto decoder = make_plain_decoder(*loaded.model).value();
  ASSERT_TRUE(decoder->start(request, {}));
  for (std::size_t i = 0; i < 3; ++i) {
    const auto tokens = decoder->step();
    ASSERT_TRUE(tokens);
    ASSERT_EQ(tokens->size(), 1U);
    EXPECT_EQ((*tokens)[0].id, ids[i]);
  }
  const auto tokens = decoder->step();
  ASSERT_FALSE(tokens);
  EXPECT_EQ(tokens.error().kind, ErrorKind::Internal);
  EXPECT_NE(tokens.error().message.find("token 3"), std::string::npos) << tokens.error().message;
  // Nothing of the broken state reaches the next request.
  DecodeRequest next = greedy_request({21, 22, 23, 24, ids[0]}, 2);
  EXPECT_EQ(decode(*decoder, next).ids, (std::vector<TokenId>{ids[1], ids[2]}));
}

// Drafts change nothing of a request that ends so: what was accepted before the broken row is delivered first.
TEST_F(DecoderTest, NonFiniteRowsBehindKeptDraftsStopTheRequestAtTheSameToken) {
  DecodeRequest request = greedy_request({21, 22, 23, 24}, 12);
  const std::vector<TokenId> ids = decode(*decoder_, request).ids;
  const DamagedPack pack("language_model.model.embed_tokens", ids[2], kHuge);
  const model::Loaded loaded = pack.load();
  for (const std::int64_t depth : {1, 2, 3, 4}) {
    for (const AcceptanceRule rule : {AcceptanceRule::Stream, AcceptanceRule::Rejection}) {
      for (const bool capture : {true, false}) {
        SCOPED_TRACE(testing::Message() << "depth " << depth << ", capture " << capture);
        request.sampler.acceptance = rule;
        SpeculativeOptions options;
        options.depth = depth;
        options.capture = capture;
        options.script = [&](std::uint64_t number, TokenId) { return ids[number]; };
        const auto decoder = make_speculative_decoder(*loaded.model, options).value();
        ASSERT_TRUE(decoder->start(request, {}));
        std::vector<TokenId> emitted;
        auto tokens = decoder->step();
        for (; tokens && emitted.size() < ids.size(); tokens = decoder->step()) {
          for (const auto& token : *tokens) emitted.push_back(token.id);
        }
        ASSERT_FALSE(tokens);
        EXPECT_EQ(emitted, std::vector<TokenId>(ids.begin(), ids.begin() + 3));
        EXPECT_NE(tokens.error().message.find("token 3"), std::string::npos) << tokens.error().message;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::decode
