// E4: what a request emits does not depend on its neighbours, whenever they come and go.
#include <gtest/gtest.h>

#include <thread>

#include "engine/fixture.hpp"

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
  [[nodiscard]] const model::Model& model() const { return shared_model(GetParam()); }
  [[nodiscard]] std::int64_t vocab() const { return model().config().vocab_size; }
};

/// A request with what should come of it.
struct Case {
  Request request;
  std::vector<Answer> expected;
  std::shared_ptr<Recorder> sink;
  bool cancelled = false;
};

TEST_P(Batch, AnswersAreThoseGivenAlone) {
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
      for (std::int64_t i = 0; i < c.request.n; ++i) {
        c.expected.push_back(alone(model(), c.request, static_cast<std::uint64_t>(i)));
      }
      c.sink = std::make_shared<Recorder>(c.request.n);
      c.cancelled = random() % 5 == 0;
    }
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
    }
    if (options.capture || options.depth == 0) {
      EXPECT_EQ(stats.recomputed_tokens, 0U);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Batch, testing::Values(kToyPack, kToyHf, kDemo), test_name);

}  // namespace
}  // namespace lockstep::engine
