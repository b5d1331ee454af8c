// Steps that a device begins before their token is known: the tokens, probabilities, states and errors of plain
// decoding, and the order in which steps are begun and tokens are waited for.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "decode/ahead_cases.hpp"
#include "model/fixture.hpp"
#include "model/limited_backend.hpp"
#include "support/ahead_backend.hpp"
#include "support/cases.hpp"
#include "support/random_model.hpp"

namespace lockstep::decode {
namespace {

using testing::decode;
using testing::Trace;

std::unique_ptr<backend::Backend> cpu() {
  return std::move(backend::CpuBackend::create(model::one_thread()).value());
}

struct Ahead {
  test::AheadBackend* backend = nullptr;
  model::Loaded loaded;
};

model::Loaded load(artifact::Artifact artifact, std::unique_ptr<backend::Backend> backend) {
  auto model = model::Model::load(artifact, std::move(backend), {});
  if (!model) throw std::runtime_error(model.error().message);
  return {std::move(artifact), std::move(*model)};
}

Ahead load_ahead(artifact::Artifact artifact, bool finds_rows, std::unique_ptr<backend::Backend> inner = cpu()) {
  auto backend = std::make_unique<test::AheadBackend>(std::move(inner), finds_rows);
  test::AheadBackend* kept = backend.get();
  return {kept, load(std::move(artifact), std::move(backend))};
}

TEST(Ahead, RequestsGiveThePlainAnswersAndStates) {
  testing::AheadCount count;
  for (unsigned seed = 0; seed < test::cases(24); ++seed) {
    SCOPED_TRACE("model " + std::to_string(seed + 300));
    const auto make = [&] { return test::random_model(seed + 300, {.draft = seed % 3 == 0, .vocabulary = {}}); };
    const model::Loaded host = load(make(), cpu());
    const Ahead device = load_ahead(make(), seed % 2 == 0);
    testing::expect_equal_turns(*host.model, *device.loaded.model, seed, 6, count);
    if (HasFatalFailure()) return;
  }
  if (!test::usual_cases()) return;
  EXPECT_GT(count.launched, 1000);
  EXPECT_GT(count.stopped, 30);
  EXPECT_GT(count.reused, 1000);
}

/// A model with a table in front of its second layer, so that there is a layer in front of the rows.
artifact::Artifact table_model() {
  for (unsigned seed = 0;; ++seed) {
    artifact::Artifact made = test::random_model(seed, {.draft = false, .vocabulary = 120});
    const auto& layers = made.view().layers;
    if (layers.size() > 1 && std::any_of(layers.begin() + 1, layers.end(), [](const auto& l) { return l.ple; })) {
      return made;
    }
  }
}

DecodeRequest long_request(std::int64_t tokens) {
  DecodeRequest request;
  request.prompt = {9, 4, 77};
  request.max_tokens = tokens;
  request.vocab = 120;
  request.sampler.top_k = 20;
  return request;
}

TEST(Ahead, AStepIsBegunBeforeItsTokenIsWaitedFor) {
  for (const bool finds_rows : {true, false}) {
    const Ahead device = load_ahead(table_model(), finds_rows);
    const auto decoder = make_plain_decoder(*device.loaded.model).value();
    const Trace got = decode(*decoder, *make_pipelined_driver().value(), long_request(30));
    EXPECT_EQ(got.stats.steps, 29);
    EXPECT_EQ(got.stats.launched_steps, 28);
    EXPECT_EQ(got.stats.steps_ahead, 29);
    const auto& calls = device.backend->calls;
    const auto position = [&](char what, int number) {
      for (std::size_t i = 0; i < calls.size(); ++i) {
        if (calls[i].first == what && number-- == 0) return i;
      }
      return calls.size();
    };
    for (int step = 1; step < 29; ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      const std::size_t wait = position('w', step - 1);
      ASSERT_LT(wait, calls.size());
      EXPECT_LT(position('b', step), wait);
      EXPECT_LT(position('e', step - 1), wait);
      // With a table that the host reads the rest of the step needs the token.
      EXPECT_EQ(position('d', step) < wait, finds_rows);
    }
    EXPECT_EQ(std::count_if(calls.begin(), calls.end(), [](const auto& call) { return call.first == 'w'; }), 29);
  }
}

TEST(Ahead, OffItWaitsForEveryToken) {
  const Ahead device = load_ahead(table_model(), true);
  const auto decoder = make_plain_decoder(*device.loaded.model).value();
  EXPECT_EQ(decode(*decoder, long_request(30)).stats.launched_steps, 0);
  EXPECT_TRUE(device.backend->calls.empty());
}

TEST(Ahead, RequestsThatNeedTheHostAreNotForIt) {
  const Ahead device = load_ahead(table_model(), true);
  const auto decoder = make_plain_decoder(*device.loaded.model).value();
  const auto driver = make_pipelined_driver().value();
  const auto launched = [&](auto change) {
    DecodeRequest request = long_request(12);
    change(request);
    return decode(*decoder, *driver, request).stats.launched_steps;
  };
  EXPECT_EQ(launched([](DecodeRequest&) {}), 10);
  EXPECT_EQ(launched([](DecodeRequest& r) { r.sampler.presence_penalty = 0.5; }), 0);
  EXPECT_EQ(launched([](DecodeRequest& r) { r.sampler.logit_bias[3] = 1; }), 0);
  EXPECT_EQ(launched([](DecodeRequest& r) { r.logprobs = true; }), 0);
  EXPECT_EQ(launched([](DecodeRequest& r) { r.sampler.top_k = 65; }), 0);
  EXPECT_EQ(launched([](DecodeRequest& r) { r.sampler.draw_rule = DrawRule::Race; }), 0);
  EXPECT_EQ(launched([](DecodeRequest& r) { r.max_tokens = 2; }), 0);
  EXPECT_EQ(launched([](DecodeRequest& r) { r.max_tokens = 3; }), 1);
}

TEST(Ahead, TheSinkAndCancellingEndAnAnswerAnywhere) {
  const model::Loaded host = load(table_model(), cpu());
  for (const bool finds_rows : {true, false}) {
    const Ahead device = load_ahead(table_model(), finds_rows);
    const auto decoder = make_plain_decoder(*device.loaded.model).value();
    const auto driver = make_pipelined_driver().value();
    const auto plain = make_plain_decoder(*host.model).value();
    for (std::size_t enough = 1; enough < 9; ++enough) {
      for (const bool cancel : {false, true}) {
        SCOPED_TRACE(std::to_string(enough) + (cancel ? " cancelled" : ""));
        DecodeRequest request = long_request(9);
        request.sampler.seed = enough;
        ASSERT_TRUE(decoder->start(request, {}));
        std::vector<TokenId> ids;
        const Status ran = driver->run(
            *decoder,
            [&](std::span<const Choice> tokens) -> Result<bool> {
              for (const Choice& token : tokens) ids.push_back(token.id);
              return cancel || ids.size() < enough;
            },
            [&] {
              if (cancel && ids.size() == enough) decoder->cancel();
            });
        ASSERT_EQ(static_cast<bool>(ran), !cancel);
        ASSERT_EQ(ids.size(), enough);
        std::vector<TokenId> all = request.prompt;
        all.insert(all.end(), ids.begin(), ids.end());
        ASSERT_EQ(decoder->sequence()->tokens(), all);
        ASSERT_EQ(test::part_difference(testing::state_after(*host.model, all), decoder->sequence()->save_parts(false)),
                  "");
        request.prompt = all;
        request.prompt.push_back(5);
        const Trace more = decode(*decoder, *driver, request);
        ASSERT_EQ(more.stats.reused_tokens, static_cast<std::int64_t>(all.size()));
        testing::expect_plain(decode(*plain, request), more, *host.model);
      }
    }
  }
}

TEST(Ahead, TheContextEndsAsInPlainDecoding) {
  const auto make = [] { return test::random_model(5, {.draft = false, .vocabulary = 60, .thin = true}); };
  const model::Loaded host = load(make(), cpu());
  const Ahead device = load_ahead(make(), true);
  const auto plain = make_plain_decoder(*host.model).value();
  const auto ahead = make_plain_decoder(*device.loaded.model).value();
  const auto driver = make_pipelined_driver().value();
  const auto context = static_cast<std::size_t>(host.model->config().max_positions);
  for (std::size_t left = 1; left < 7; ++left) {
    SCOPED_TRACE("room for " + std::to_string(left));
    DecodeRequest request;
    request.vocab = 60;
    request.sampler.top_k = 10;
    for (std::size_t i = 0; i < context - left; ++i) request.prompt.push_back(static_cast<TokenId>(i * i % 50));
    const Trace got = decode(*ahead, *driver, request);
    testing::expect_plain(decode(*plain, request), got, *host.model);
    ASSERT_EQ(got.ids.size(), left);
  }
}

/// Spoils a logit of every row of the passes from number `from` on.
class SpoiledBackend final : public test::ForwardingBackend {
 public:
  SpoiledBackend(std::unique_ptr<backend::Backend> inner, int from)
      : ForwardingBackend(std::move(inner)), from_(from) {}

  void project(const backend::Matrix& matrix, const float* u, std::int64_t rows, float* out) override {
    inner_->project(matrix, u, rows, out);
    if (matrix.rows() != 120 || passes_++ < from_) return;
    for (std::int64_t row = 0; row < rows; ++row) out[row * 120 + 17] = std::numeric_limits<float>::infinity();
  }

 private:
  int from_, passes_ = 0;
};

/// A table whose rows cannot be read from lookup number `from` on, for good.
class LostTable final : public test::ForwardingBackend {
 public:
  LostTable(std::unique_ptr<backend::Backend> inner, int from) : ForwardingBackend(std::move(inner)), from_(from) {}

  Status status() override {
    return lost_ ? Status(fail(ErrorKind::Io, "the table is lost")) : ForwardingBackend::status();
  }
  Status ngram_lookup(std::span<const std::int64_t> ids, float* e) override {
    lost_ = lost_ || lookups_++ >= from_;
    if (lost_) return fail(ErrorKind::Io, "the table is lost");
    return inner_->ngram_lookup(ids, e);
  }

 private:
  int from_, lookups_ = 0;
  bool lost_ = false;
};

struct End {
  std::vector<TokenId> ids;
  std::string error;
};

End run_to_error(const model::Model& model, Driver& driver) {
  End end;
  const auto decoder = make_plain_decoder(model).value();
  const Status started = decoder->start(long_request(12), {});
  if (!started) throw std::runtime_error(started.error().message);
  const Status ran = driver.run(
      *decoder,
      [&](std::span<const Choice> tokens) -> Result<bool> {
        for (const Choice& token : tokens) end.ids.push_back(token.id);
        return true;
      },
      [] {});
  end.error = ran ? "" : ran.error().message;
  return end;
}

TEST(Ahead, ErrorsComeAtTheSameTokenAsInPlainDecoding) {
  const auto plain = make_plain_driver();
  const auto pipelined = make_pipelined_driver().value();
  for (int from = 1; from < 12; ++from) {
    for (const bool finds_rows : {true, false}) {
      SCOPED_TRACE(std::to_string(from) + (finds_rows ? " found by the device" : ""));
      const model::Loaded host = load(table_model(), std::make_unique<SpoiledBackend>(cpu(), from));
      const Ahead device = load_ahead(table_model(), finds_rows, std::make_unique<SpoiledBackend>(cpu(), from));
      const End expected = run_to_error(*host.model, *plain);
      const End got = run_to_error(*device.loaded.model, *pipelined);
      EXPECT_EQ(expected.ids, got.ids);
      EXPECT_EQ(expected.error, got.error);
      EXPECT_NE(got.error.find("non-finite logit"), std::string::npos) << got.error;
    }
    SCOPED_TRACE("table lost at " + std::to_string(from));
    const model::Loaded host = load(table_model(), std::make_unique<LostTable>(cpu(), from));
    const Ahead device = load_ahead(table_model(), false, std::make_unique<LostTable>(cpu(), from));
    const End expected = run_to_error(*host.model, *plain);
    const End got = run_to_error(*device.loaded.model, *pipelined);
    EXPECT_EQ(expected.ids, got.ids);
    EXPECT_EQ(expected.error, got.error);
    EXPECT_EQ(got.error, "the table is lost");
  }
}

TEST(Ahead, WithoutMemoryForAPageTheAnswerEndsWhereItDoesInPlainDecoding) {
  std::array<End, 2> ends;
  for (const bool ahead : {false, true}) {
    auto refusing = std::make_shared<bool>(false);
    auto limited = std::make_unique<model::LimitedBackend>(cpu(), [refusing](std::size_t) { return *refusing; });
    model::Loaded loaded =
        ahead ? load_ahead(table_model(), true, std::move(limited)).loaded : load(table_model(), std::move(limited));
    const auto decoder = make_plain_decoder(*loaded.model).value();
    const auto driver = ahead ? make_pipelined_driver().value() : make_plain_driver();
    ASSERT_TRUE(decoder->start(long_request(100), {}));
    End& end = ends.at(ahead ? 1 : 0);
    const Status ran = driver->run(
        *decoder,
        [&](std::span<const Choice> tokens) -> Result<bool> {
          for (const Choice& token : tokens) end.ids.push_back(token.id);
          return true;
        },
        [&] { *refusing = end.ids.size() > 20; });
    ASSERT_FALSE(ran);
    end.error = ran.error().message;
  }
  EXPECT_EQ(ends[0].ids, ends[1].ids);
  EXPECT_EQ(ends[0].ids.size(), 62U);
  EXPECT_EQ(ends[0].error, ends[1].error);
}

}  // namespace
}  // namespace lockstep::decode
