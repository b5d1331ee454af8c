// What happens to requests on their way: refusals, waiting, pausing, ends of every kind, fairness.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/fixture.hpp"
#include "engine/memory_plan.hpp"
#include "support/cases.hpp"

namespace lockstep::engine {
namespace {

const model::Model& toy() {
  return shared_model(kToyPack);
}

Request greedy(std::vector<TokenId> prompt, std::int64_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampler.temperature = 0;
  request.max_tokens = max_tokens;
  return request;
}

/// A sink that holds its request until it is let go, as a full connection does.
struct Gate {
  std::atomic<bool> closed{true};
  std::shared_ptr<Recorder> sink = std::make_shared<Recorder>();
  Gate() {
    sink->hold = [this] { return closed.load(); };
  }
  void open(Engine& engine) {
    closed = false;
    engine.wake();
  }
};

/// Stops the model thread inside a callback until it is let go, so that what is submitted meanwhile stays in the queue.
class Blocker final : public Recorder {
 public:
  void on_start(const Start& start) override {
    Recorder::on_start(start);
    std::unique_lock lock(mutex_);
    let_go_.wait(lock, [&] { return free_; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    free_ = true;
    let_go_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable let_go_;
  bool free_ = false;
};

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

TEST(EngineSinks, MayEndTheirAnswer) {
  const auto engine = engine_for(toy());
  const Request request = greedy({5, 6, 7}, 40);
  const Answer whole = alone(toy(), request);
  for (std::size_t at = 0; at < 8; ++at) {
    const auto sink = std::make_shared<Recorder>();
    auto seen = std::make_shared<std::size_t>(0);
    sink->token_seen = [seen, at](std::int64_t, const Token&) {
      return (*seen)++ == at ? Sink::Flow::Finish : Sink::Flow::Continue;
    };
    ASSERT_TRUE(engine->submit(request, sink));
    sink->wait();
    const Recorder::Choice got = sink->choice();
    EXPECT_EQ(got.answer.reason, FinishReason::Sink);
    EXPECT_EQ(got.summary.tokens, static_cast<std::int64_t>(at) + 1);
    EXPECT_EQ(got.answer.ids,
              std::vector<TokenId>(whole.ids.begin(), whole.ids.begin() + static_cast<std::ptrdiff_t>(at) + 1));
  }
}

TEST(EngineSinks, AFullOneIsPausedAlone) {
  Options options;
  options.parallel = 2;
  const auto engine = engine_for(toy(), options);
  const Request request = greedy({8, 9, 10}, 60);
  const Answer expected = alone(toy(), request);
  Gate gate;
  ASSERT_TRUE(engine->submit(request, gate.sink));
  const auto other = std::make_shared<Recorder>();
  ASSERT_TRUE(engine->submit(request, other));
  other->wait();
  EXPECT_EQ(other->choice().answer, expected);
  EXPECT_TRUE(gate.sink->choice().answer.ids.empty());
  while (engine->stats().running > 1) std::this_thread::yield();  // counted at the end of a step
  EXPECT_EQ(engine->stats().running, 1);
  gate.open(*engine);
  gate.sink->wait();
  EXPECT_EQ(gate.sink->choice().answer, expected);
}

TEST(EngineSinks, FullOnesDoNotTakeThePlacesOfOthers) {
  Options options;
  options.parallel = 2;
  const auto engine = engine_for(toy(), options);
  const Request request = greedy({8, 9, 10}, 30);
  const Answer expected = alone(toy(), request);
  std::array<Gate, 5> gates;
  for (Gate& gate : gates) {
    ASSERT_TRUE(engine->submit(request, gate.sink));
    gate.sink->wait_start();
  }
  for (int i = 0; i < 3; ++i) {
    const auto sink = std::make_shared<Recorder>();
    ASSERT_TRUE(engine->submit(request, sink));
    sink->wait();
    EXPECT_EQ(sink->choice().answer, expected);
  }
  for (Gate& gate : gates) gate.closed = false;
  engine->wake();
  for (Gate& gate : gates) {
    gate.sink->wait();
    EXPECT_EQ(gate.sink->choice().answer, expected);
  }
}

TEST(EngineQueue, HigherPriorityStartsFirst) {
  Options options;
  options.parallel = 1;
  const auto engine = engine_for(toy(), options);
  const auto blocker = std::make_shared<Blocker>();
  ASSERT_TRUE(engine->submit(greedy({1}, 2), blocker));
  blocker->wait_start();
  std::mutex mutex;
  std::vector<int> order;
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (const int priority : {0, 5, -1, 5}) {
    Request request = greedy({2, 3}, 2);
    request.priority = priority;
    const auto sink = std::make_shared<Recorder>();
    const int name = priority * 10 + static_cast<int>(sinks.size());
    sink->prefill = [&, name](std::int64_t, std::int64_t) {
      const std::lock_guard lock(mutex);
      order.push_back(name);
    };
    sinks.push_back(sink);
    ASSERT_TRUE(engine->submit(request, sink));
  }
  blocker->release();
  for (const auto& sink : sinks) sink->wait();
  EXPECT_EQ(order, (std::vector<int>{51, 53, 0, -8}));
}

TEST(EngineFairness, ALongPromptDoesNotStopRunningAnswers) {
  std::mt19937 random(4);
  Options options;
  options.mixed_chunk = 16;
  options.bank.enabled = false;
  const auto engine = engine_for(toy(), options);
  // All events in one order: the model thread's.
  std::vector<int> events;  // 0..2: a token of a stream; 100: a chunk of the prompt
  std::vector<std::int64_t> chunks;
  std::vector<std::shared_ptr<Recorder>> streams;
  for (int i = 0; i < 3; ++i) {
    streams.push_back(std::make_shared<Recorder>());
    streams.back()->token_seen = [&events, i](std::int64_t, const Token&) {
      events.push_back(i);
      return Sink::Flow::Continue;
    };
    ASSERT_TRUE(engine->submit(greedy(random_tokens(random, 5, 512), test::usual_cases() ? 700 : 300), streams.back()));
  }
  for (const auto& stream : streams) stream->wait_tokens(3);
  const auto sink = std::make_shared<Recorder>();
  std::int64_t before = 0;
  sink->prefill = [&](std::int64_t done, std::int64_t) {
    events.push_back(100);
    chunks.push_back(done - before);
    before = done;
  };
  ASSERT_TRUE(engine->submit(greedy(random_tokens(random, 1000, 512), 1), sink));
  sink->wait();
  for (const auto& stream : streams) stream->wait();
  std::array<bool, 3> heard{};
  std::array<std::size_t, 3> last{};
  for (std::size_t at = 0; at < events.size(); ++at) {
    if (events[at] < 3) last[static_cast<std::size_t>(events[at])] = at;
  }
  std::int64_t beside = 0;
  bool first = true;
  for (std::size_t at = 0; at < events.size(); ++at) {
    if (events[at] < 3) {
      heard[static_cast<std::size_t>(events[at])] = true;
      continue;
    }
    for (std::size_t i = 0; i < 3 && !first; ++i) {
      if (last[i] > at) {
        EXPECT_TRUE(heard[i]) << "stream " << i << " had no token between two chunks";
        ++beside;
      }
    }
    first = false;
    heard = {};
  }
  EXPECT_GT(beside, 20);
  const auto size = static_cast<std::int64_t>(chunks.size());
  EXPECT_GE(size, 1000 / 256);
  std::int64_t small = 0;
  for (const std::int64_t chunk : chunks) small += chunk <= options.mixed_chunk ? 1 : 0;
  EXPECT_GT(small, 10);
}

TEST(EngineDrain, FinishesWhatItTookAndRefusesTheRest) {
  const auto engine = engine_for(toy());
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (int i = 0; i < 10; ++i) {
    sinks.push_back(std::make_shared<Recorder>());
    ASSERT_TRUE(engine->submit(greedy({static_cast<TokenId>(i + 1)}, 20), sinks.back()));
  }
  engine->drain();
  const auto refused = engine->submit(greedy({1}, 1), std::make_shared<Recorder>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, RefusalReason::Draining);
  EXPECT_GT(refused.error().retry_after_seconds, 0);
  EXPECT_TRUE(engine->wait_idle(60));
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->choice().ends, 1);
    EXPECT_FALSE(sink->choice().error);
  }
  EXPECT_TRUE(engine->stats().draining);
}

TEST(EngineStop, EndsEverythingOnce) {
  const auto engine = engine_for(toy());
  std::vector<std::shared_ptr<Recorder>> sinks;
  for (int i = 0; i < 12; ++i) {
    sinks.push_back(std::make_shared<Recorder>());
    ASSERT_TRUE(engine->submit(greedy({static_cast<TokenId>(i + 1)}, 3000), sinks.back()));
  }
  sinks[0]->wait_tokens(1);
  engine->stop();
  engine->stop();
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->choice().ends, 1);
    ASSERT_TRUE(sink->choice().error);
    EXPECT_EQ(sink->choice().error->kind, ErrorKind::Cancelled);
  }
  EXPECT_FALSE(engine->submit(greedy({1}, 1), std::make_shared<Recorder>()));
  EXPECT_TRUE(engine->wait_idle(0));
}

TEST(EngineThreads, SubmitCancelAndStatisticsFromMany) {
  const auto engine = engine_for(toy());
  std::vector<std::thread> threads;
  std::atomic<int> ends{0};
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int i = 0; i < 12; ++i) {
        const auto sink = std::make_shared<Recorder>();
        const auto ticket = engine->submit(random_request(random, 512, 20), sink);
        if (!ticket) continue;  // the queue may be full
        if (random() % 3 == 0) engine->cancel(*ticket);
        if (random() % 3 == 0) engine->wake();
        (void)engine->stats();
        sink->wait();
        ends += sink->choice().ends;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(engine->wait_idle(60));
  const Statistics stats = engine->stats();
  EXPECT_EQ(static_cast<std::uint64_t>(ends), stats.accepted);
  EXPECT_EQ(stats.accepted, stats.finished + stats.cancelled + stats.failed);
  EXPECT_EQ(stats.failed, 0U);
  EXPECT_EQ(stats.queued + stats.running, 0);
}

}  // namespace
}  // namespace lockstep::engine
