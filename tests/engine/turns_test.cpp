// Who gets a turn: sinks that pause, priorities, long prompts, drain and stop, many threads.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/held_requests.hpp"
#include "support/cases.hpp"

namespace lockstep::engine {
namespace {

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
