// What happens to requests on their way: refusals, waiting, cancelling, choices.
#include <gtest/gtest.h>

#include "engine/held_requests.hpp"
#include "engine/memory_plan.hpp"
#include "support/cases.hpp"

namespace lockstep::engine {
namespace {

TEST(EngineOptions, OutOfRangeIsAnError) {
  const auto bad = [](auto change) {
    Options options;
    options.memory_bytes = std::uint64_t{64} << 20;
    change(options);
    const auto engine = make_engine(toy(), options);
    return !engine && !engine.error().message.empty();
  };
  EXPECT_TRUE(bad([](Options& o) { o.parallel = 0; }));
  EXPECT_TRUE(bad([](Options& o) { o.parallel = 257; }));
  EXPECT_TRUE(bad([](Options& o) { o.queue = -1; }));
  EXPECT_TRUE(bad([](Options& o) { o.prefill_chunk = 0; }));
  EXPECT_TRUE(bad([](Options& o) { o.mixed_chunk = 1 << 20; }));
  EXPECT_TRUE(bad([](Options& o) { o.depth = 5; }));
  EXPECT_TRUE(bad([](Options& o) { o.default_max_tokens = 0; }));
  EXPECT_TRUE(bad([](Options& o) { o.bank.interval = -1; }));
  EXPECT_TRUE(bad([](Options& o) { o.vocab = 1 << 20; }));
  EXPECT_TRUE(bad([](Options& o) { o.memory_bytes = 1000; }));
  EXPECT_TRUE(bad([](Options& o) { o.bank.directory = "/dev/null/bank"; }));
}

TEST(EngineRefusals, MalformedRequestsSayWhat) {
  const auto engine = engine_for(toy());
  const auto reason = [&](auto change) {
    Request request = greedy({1, 2, 3}, 4);
    change(request);
    const auto sink = std::make_shared<Recorder>(4);
    const auto ticket = engine->submit(request, sink);
    EXPECT_FALSE(ticket);
    EXPECT_EQ(sink->choice().ends, 0);
    return ticket ? std::string() : ticket.error().message;
  };
  EXPECT_NE(reason([](Request& r) { r.prompt.clear(); }).find("empty"), std::string::npos);
  EXPECT_NE(reason([](Request& r) { r.prompt[1] = -4; }).find("token id -4"), std::string::npos);
  EXPECT_NE(reason([](Request& r) { r.prompt[1] = 1 << 20; }).find("vocabulary"), std::string::npos);
  EXPECT_NE(reason([](Request& r) { r.n = 0; }).find("n is 0"), std::string::npos);
  EXPECT_NE(reason([](Request& r) { r.n = 1000; }).find("n is 1000"), std::string::npos);
  EXPECT_NE(reason([](Request& r) { r.max_tokens = -1; }).find("max_tokens"), std::string::npos);
  EXPECT_NE(reason([](Request& r) { r.sampler.top_p = 2; }).find("top_p"), std::string::npos);
  EXPECT_NE(reason([](Request& r) { r.top_logprobs = 21; }).find("top_logprobs"), std::string::npos);
  EXPECT_NE(reason([](Request& r) { r.boundaries = {2, 1}; }).find("boundary 1"), std::string::npos);
  EXPECT_NE(reason([](Request& r) { r.boundaries = {4}; }).find("boundary 4"), std::string::npos);
  EXPECT_NE(reason([](Request& r) { r.stop_ids = {-1}; }).find("stop tokens"), std::string::npos);
  EXPECT_EQ(engine->stats().accepted, 0U);
  EXPECT_GT(engine->stats().refused, 10U);
}

TEST(EngineRefusals, RejectionModeNeedsDrafts) {
  Options options;
  options.depth = 0;
  const auto engine = engine_for(toy(), options);
  Request request = greedy({1, 2}, 3);
  request.sampler.acceptance = decode::AcceptanceRule::Rejection;
  const auto ticket = engine->submit(request, std::make_shared<Recorder>());
  ASSERT_FALSE(ticket);
  EXPECT_EQ(ticket.error().reason, RefusalReason::Invalid);
}

TEST(EngineRefusals, WhatCanNeverFitIsTooLargeWithNumbers) {
  Options options;
  options.memory_bytes = std::uint64_t{3} << 20;
  const auto engine = engine_for(toy(), options);
  const Limits& limits = engine->limits();
  ASSERT_GT(limits.plan_tokens, 64);
  ASSERT_LT(limits.plan_tokens, limits.context);
  std::mt19937 random(1);
  const auto sink = std::make_shared<Recorder>();
  auto ticket = engine->submit(greedy({1}, limits.plan_tokens), sink);
  ASSERT_FALSE(ticket);
  EXPECT_EQ(ticket.error().reason, RefusalReason::TooLarge);
  EXPECT_GT(ticket.error().needed, ticket.error().available);
  EXPECT_EQ(ticket.error().available, limits.memory_bytes);
  const auto size = static_cast<std::size_t>(limits.context);
  ticket = engine->submit(greedy(random_tokens(random, size, limits.vocab), 1), sink);
  ASSERT_FALSE(ticket);
  EXPECT_EQ(ticket.error().reason, RefusalReason::TooLarge);
  // The largest that the limits promise runs; most of it is the prompt where steps are slow.
  const std::int64_t tokens = test::usual_cases() ? limits.plan_tokens - 1 : 8;
  const auto prompt = static_cast<std::size_t>(limits.plan_tokens - tokens);
  EXPECT_TRUE(engine->submit(greedy(random_tokens(random, prompt, limits.vocab), tokens), sink));
  sink->wait();
  EXPECT_FALSE(sink->choice().error);
  EXPECT_EQ(sink->choice().answer.ids.size(), static_cast<std::size_t>(tokens));
}

TEST(EngineRefusals, AFullQueueSaysSoAndWhenToComeBack) {
  Options options;
  options.parallel = 1;
  options.queue = 2;
  const auto engine = engine_for(toy(), options);
  const auto blocker = std::make_shared<Blocker>();
  ASSERT_TRUE(engine->submit(greedy({1, 2}, 3), blocker));
  blocker->wait_start();
  std::vector<std::shared_ptr<Recorder>> waiting;
  for (int i = 0; i < 2; ++i) {
    waiting.push_back(std::make_shared<Recorder>());
    ASSERT_TRUE(engine->submit(greedy({3, 4}, 3), waiting.back()));
  }
  const auto refused = engine->submit(greedy({5}, 3), std::make_shared<Recorder>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, RefusalReason::QueueFull);
  EXPECT_EQ(refused.error().needed, 1U);
  EXPECT_EQ(refused.error().available, 0U);
  EXPECT_GE(refused.error().retry_after_seconds, 1);
  blocker->release();
  for (const auto& sink : waiting) {
    sink->wait();
    EXPECT_FALSE(sink->choice().error);
  }
}

/// Counts requests between start and end; both are told by the model thread.
class Counted final : public Recorder {
 public:
  Counted(int& active, int& most) : active_(active), most_(most) {}
  void on_start(const Start& start) override {
    most_ = std::max(most_, ++active_);
    Recorder::on_start(start);
  }
  void on_finish(std::int64_t choice, const Summary& summary) override {
    --active_;
    Recorder::on_finish(choice, summary);
  }

 private:
  int& active_;
  int& most_;
};

TEST(EngineAdmission, RequestsWaitForMemoryAndThenRun) {
  Options options;
  options.parallel = 8;
  options.bank.enabled = false;
  const MemoryPlan plan(toy(), options, 0);
  options.memory_bytes = plan.choice(300) * 2 + 1000;  // two at a time
  const auto engine = engine_for(toy(), options);
  int active = 0;
  int most = 0;
  std::vector<std::shared_ptr<Counted>> sinks;
  for (int i = 0; i < (test::usual_cases() ? 7 : 3); ++i) {
    sinks.push_back(std::make_shared<Counted>(active, most));
    ASSERT_TRUE(engine->submit(greedy({1, 2, static_cast<TokenId>(i)}, 290), sinks.back()));
  }
  for (const auto& sink : sinks) {
    sink->wait();
    EXPECT_FALSE(sink->choice().error);
    EXPECT_EQ(sink->choice().answer.ids.size(), 290U);
  }
  EXPECT_EQ(most, 2);
}

TEST(EngineCancel, EveryPhaseEndsAndNeighboursDoNotNotice) {
  std::mt19937 random(5);
  Options options;
  options.parallel = 2;
  options.prefill_chunk = options.mixed_chunk = 8;
  const auto engine = engine_for(toy(), options);
  const Request neighbour = greedy(random_tokens(random, 30, 512), 150);
  const Answer expected = alone(toy(), neighbour);
  const auto beside = std::make_shared<Recorder>();
  ASSERT_TRUE(engine->submit(neighbour, beside));
  const auto cancelled = [&](Recorder& sink) {
    sink.wait();
    ASSERT_TRUE(sink.choice().error);
    EXPECT_EQ(sink.choice().error->kind, ErrorKind::Cancelled);
    EXPECT_EQ(sink.choice().ends, 1);
  };
  // In the prompt: from its own progress report, so that no step can follow unseen.
  Ticket ticket = 0;
  std::mutex known;
  const auto prompt = std::make_shared<Recorder>();
  std::vector<std::int64_t> progress;
  prompt->prefill = [&](std::int64_t done, std::int64_t) {
    const std::lock_guard lock(known);
    progress.push_back(done);
    engine->cancel(ticket);
  };
  {
    const std::lock_guard lock(known);
    ticket = engine->submit(greedy(random_tokens(random, 400, 512), 5), prompt).value();
  }
  cancelled(*prompt);
  EXPECT_EQ(progress.size(), 1U);  // within one step
  EXPECT_TRUE(prompt->choice().answer.ids.empty());
  // While decoding: at most the tokens of the step that reported the first one.
  const auto decoding = std::make_shared<Recorder>();
  decoding->token_seen = [&](std::int64_t, const Token&) {
    const std::lock_guard lock(known);
    engine->cancel(ticket);
    return Sink::Flow::Continue;
  };
  {
    const std::lock_guard lock(known);
    ticket = engine->submit(greedy({9, 8, 7}, 300), decoding).value();
  }
  cancelled(*decoding);
  EXPECT_EQ(decoding->choice().answer.ids.size(), 1U);  // the first token ends its step
  // Paused, in the queue, and twice.
  Gate gate;
  const Ticket held = engine->submit(greedy({4, 4}, 5), gate.sink).value();
  gate.sink->wait_start();
  engine->cancel(held);
  cancelled(*gate.sink);
  const auto blocker = std::make_shared<Blocker>();
  ASSERT_TRUE(engine->submit(greedy({4, 5}, 300), blocker));
  blocker->wait_start();
  const auto queued = std::make_shared<Recorder>();
  const Ticket behind = engine->submit(greedy({1}, 5), queued).value();
  engine->cancel(behind);
  engine->cancel(behind);
  blocker->release();
  cancelled(*queued);
  EXPECT_FALSE(queued->started());
  engine->cancel(held);
  engine->cancel(12345);
  beside->wait();
  EXPECT_EQ(beside->choice().answer, expected);
}

TEST(EngineChoices, ShareThePromptAndDrawWithTheirOwnSeeds) {
  std::mt19937 random(3);
  for (const std::int64_t parallel : {1, 3, 8}) {
    SCOPED_TRACE("parallel " + std::to_string(parallel));
    Options options;
    options.parallel = parallel;
    const auto engine = engine_for(toy(), options);
    Request request = greedy(random_tokens(random, 90, 512), 12);
    request.sampler.temperature = 1;
    request.sampler.seed = 77;
    request.n = 5;
    const auto sink = std::make_shared<Recorder>(5);
    ASSERT_TRUE(engine->submit(request, sink));
    sink->wait();
    for (std::uint64_t i = 0; i < 5; ++i) {
      Request single = request;
      single.n = 1;
      single.sampler.seed = choice_seed(77, i);
      EXPECT_EQ(sink->choice(i).answer, alone(toy(), single)) << i;
    }
    EXPECT_NE(sink->choice(0).answer.ids, sink->choice(1).answer.ids);
    ASSERT_TRUE(engine->wait_idle(60));
    EXPECT_EQ(engine->stats().prompt_tokens, 90U);  // run once
    EXPECT_EQ(engine->stats().reserved_bytes, 0U);
  }
}

TEST(EngineChoices, CancellingTheLeaderCancelsAll) {
  const auto engine = engine_for(toy());
  Request request = greedy({1, 2, 3}, 200);
  request.n = 6;
  const auto sink = std::make_shared<Recorder>(6);
  const auto ticket = engine->submit(request, sink);
  ASSERT_TRUE(ticket);
  engine->cancel(*ticket);
  sink->wait();
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(sink->choice(i).ends, 1);
  EXPECT_TRUE(engine->wait_idle(60));
  EXPECT_EQ(engine->stats().reserved_bytes, 0U);
}

TEST(EngineEcho, PromptLogprobsAreThoseOfEveryPosition) {
  std::mt19937 random(11);
  const auto engine = engine_for(toy());
  Request request = greedy(random_tokens(random, 75, 512), 0);
  request.prompt_logprobs = true;
  request.top_logprobs = 3;
  const auto sink = std::make_shared<Recorder>();
  ASSERT_TRUE(engine->submit(request, sink));
  sink->wait();
  EXPECT_FALSE(sink->choice().error);
  EXPECT_TRUE(sink->choice().answer.ids.empty());
  EXPECT_EQ(sink->choice().answer.reason, FinishReason::Length);
  EXPECT_EQ(sink->prompt_ids(), request.prompt);
  // Against logits of all rows in one pass.
  const model::Forward all = model::run_all(toy(), request.prompt, 0);
  std::vector<std::uint64_t> expected;
  decode::RowScratch scratch;
  for (std::size_t i = 1; i < request.prompt.size(); ++i) {
    decode::Logprobs logprobs;
    const std::span row = std::span(all.logits).subspan((i - 1) * 512, 512);
    ASSERT_TRUE(decode::read_logprobs(row, request.prompt[i], 3, {i, 512, nullptr, {}}, scratch, logprobs));
    add_logprobs(expected, logprobs);
  }
  EXPECT_EQ(sink->prompt_bits(), expected);
  ASSERT_TRUE(sink->started());
  EXPECT_EQ(sink->started()->miss, Miss::Bypass);
}

}  // namespace
}  // namespace lockstep::engine
