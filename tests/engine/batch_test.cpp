// E4: what a request emits does not depend on its neighbours, whenever they come and go.
#include <gtest/gtest.h>

#include <thread>

#include "engine/fixture.hpp"
#include "engine/logits_watch.hpp"

namespace lockstep::engine {
namespace {

Options random_options(std::mt19937& random) {
  Options options;
  options.parallel = static_cast<std::int64_t>(random() % 6 + 1);
  options.queue = 1000;
  options.prefill_chunk = static_cast<std::int64_t>(random() % 100 + 1);
  options.mixed_chunk = static_cast<std::int64_t>(random() % 20 + 1);
  options.depth = random() % 4 == 0 ? 0 : static_cast<std::int64_t>(random() % 4 + 1);
  options.capture = random() % 4 != 0;
  options.busy_above = static_cast<std::int64_t>(random() % 4);
  options.busy_depth = static_cast<std::int64_t>(random() % 2);
  options.bank.interval = static_cast<std::int64_t>(random() % 50);
  options.bank.enabled = random() % 4 != 0;
  return options;
}

class Batch : public testing::TestWithParam<std::string> {
 protected:
  Batch() : artifact_(artifact::Artifact::open(GetParam()).value()) {
    auto backend = std::make_unique<WatchedBackend>(backend::CpuBackend::create(model::one_thread()).value(), watch_);
    model_ = model::Model::load(artifact_, std::move(backend), {}).value();
  }
  [[nodiscard]] const model::Model& model() const { return *model_; }
  [[nodiscard]] std::int64_t vocab() const { return model().config().vocab_size; }
  [[nodiscard]] LogitsWatch& watch() { return *watch_; }

 private:
  artifact::Artifact artifact_;
  std::shared_ptr<LogitsWatch> watch_ = std::make_shared<LogitsWatch>();
  std::unique_ptr<model::Model> model_;
};

/// A request with what should come of it.
struct Case {
  Request request;
  std::vector<Answer> expected;
  std::vector<std::vector<std::size_t>> logits;  ///< of each choice: digest of the row that each token was drawn from
  std::shared_ptr<Recorder> sink;
  bool cancelled = false;
};

void answer_alone(const model::Model& model, const LogitsWatch& watch, Case& c) {
  for (std::int64_t i = 0; i < c.request.n; ++i) {
    std::vector<std::size_t>& logits = c.logits.emplace_back();
    c.expected.push_back(alone(model, c.request, static_cast<std::uint64_t>(i), "", [&](std::size_t emitted) {
      ASSERT_LE(emitted, watch.pass.size());
      logits.insert(logits.end(), watch.pass.begin(), watch.pass.begin() + static_cast<std::ptrdiff_t>(emitted));
    }));
  }
}

/// Every token is drawn from the same row of logits as alone, bit for bit: one of the pass that it came from. That of
/// the first token comes from the end of the prompt, which may have run before for another choice or for the bank.
void expect_rows_of_alone(const LogitsWatch& watch, Case& c) {
  c.sink->token_seen = [&, at = std::vector<std::size_t>(c.expected.size())](std::int64_t choice,
                                                                             const Token&) mutable {
    const std::size_t token = at[static_cast<std::size_t>(choice)]++;
    const std::vector<std::size_t>& logits = c.logits[static_cast<std::size_t>(choice)];
    const bool same = token < logits.size() &&
                      (token == 0 ? watch.all.contains(logits[0])
                                  : std::find(watch.pass.begin(), watch.pass.end(), logits[token]) != watch.pass.end());
    EXPECT_TRUE(same) << "other logits for token " << token << " of choice " << choice << " of the request with seed "
                      << c.request.sampler.seed;
    return Sink::Flow::Continue;
  };
}

TEST_P(Batch, AnswersAndLogitsAreThoseGivenAlone) {
  const bool demo = GetParam() == kDemo;
  for (unsigned seed = 0; seed < (demo ? 2U : 6U); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Options options = random_options(random);
    std::vector<Case> cases(demo ? 8 : 24);
    for (Case& c : cases) {
      c.request = random_request(random, vocab());
      if (options.depth != 3) c.request.sampler.acceptance = decode::AcceptanceRule::Stream;
      c.request.n = random() % 4 == 0 ? static_cast<std::int64_t>(random() % 4 + 1) : 1;
      if (&c != &cases[0] && random() % 3 == 0) {  // a shared beginning
        const auto& other = cases[random() % static_cast<std::size_t>(&c - cases.data())].request;
        c.request.prompt.insert(c.request.prompt.begin(), other.prompt.begin(), other.prompt.end());
      }
      answer_alone(model(), watch(), c);
      c.sink = std::make_shared<Recorder>(c.request.n);
      expect_rows_of_alone(watch(), c);
      c.cancelled = random() % 5 == 0;
    }
    watch() = {};
    const auto engine = engine_for(model(), options);
    // Arrivals in the middle of others: each request waits for some tokens of an earlier one.
    for (Case& c : cases) {
      if (&c != &cases[0] && random() % 2 == 0) {
        const Case& earlier = cases[random() % static_cast<std::size_t>(&c - cases.data())];
        if (!earlier.cancelled) earlier.sink->wait_tokens(random() % 4);
      }
      const auto ticket = engine->submit(c.request, c.sink);
      ASSERT_TRUE(ticket) << ticket.error().message;
      if (c.cancelled) {
        if (random() % 2 == 0) c.sink->wait_tokens(random() % 4);
        engine->cancel(*ticket);
      }
    }
    for (Case& c : cases) {
      c.sink->wait();
      for (std::size_t i = 0; i < c.expected.size(); ++i) {
        const Recorder::Choice got = c.sink->choice(i);
        EXPECT_EQ(got.ends, 1);
        if (got.error) {
          EXPECT_TRUE(c.cancelled) << got.error->message;
          EXPECT_EQ(got.error->kind, ErrorKind::Cancelled);
          // What came before the end is the beginning of the answer.
          ASSERT_LE(got.answer.ids.size(), c.expected[i].ids.size());
          EXPECT_TRUE(std::equal(got.answer.ids.begin(), got.answer.ids.end(), c.expected[i].ids.begin()));
          continue;
        }
        ASSERT_EQ(got.answer, c.expected[i]) << "choice " << i;
        EXPECT_EQ(got.summary.seed, choice_seed(c.request.sampler.seed, i));
        EXPECT_EQ(got.summary.tokens, static_cast<std::int64_t>(got.answer.ids.size()));
      }
    }
    ASSERT_TRUE(engine->wait_idle(60));
    const Statistics stats = engine->stats();
    EXPECT_EQ(stats.failed, 0U);
    EXPECT_EQ(stats.accepted, stats.finished + stats.cancelled);
    EXPECT_EQ(stats.reserved_bytes, 0U);
    if (options.parallel > 1) {
      EXPECT_GT(stats.mixed_steps, 0U);
      EXPECT_GT(watch().widest, 1U);
    }
    if (options.capture || options.depth == 0) {
      EXPECT_EQ(stats.recomputed_tokens, 0U);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Batch, testing::Values(kToyPack, kToyHf, kDemo), test_name);

}  // namespace
}  // namespace lockstep::engine
