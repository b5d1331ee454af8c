// What choices and the engine say they used, against what ran.
#include <gtest/gtest.h>

#include <numeric>

#include "backend/ngram/ngram_store.hpp"
#include "engine/held_requests.hpp"
#include "engine/memory_plan.hpp"
#include "engine/scheduler.hpp"

namespace lockstep::engine {
namespace {

using Recorders = std::vector<std::shared_ptr<Recorder>>;

/// Runs the request `count` times at once: none starts before all are there.
Recorders run_at_once(Engine& engine, const Request& request, std::size_t count) {
  const auto first = std::make_shared<Blocker>();
  Recorders sinks{first};
  EXPECT_TRUE(engine.submit(request, first));
  first->wait_start();
  while (sinks.size() < count) {
    sinks.push_back(std::make_shared<Recorder>(request.n));
    EXPECT_TRUE(engine.submit(request, sinks.back()));
  }
  first->release();
  for (const auto& sink : sinks) sink->wait();
  EXPECT_TRUE(engine.wait_idle(60));
  return sinks;
}

TEST(EngineCounts, TableRowsAreCountedOnceHoweverManyShareAStep) {
  std::mt19937 random(21);
  const Request request = greedy(random_tokens(random, 50, 512), 12);
  for (const auto mode : {backend::NgramMode::Resident, backend::NgramMode::Streamed}) {
    for (const std::int64_t depth : {0, 3}) {
      SCOPED_TRACE(fmt::format("mode {}, depth {}", static_cast<int>(mode), depth));
      backend::CpuOptions cpu = model::one_thread();
      cpu.ngram.mode = mode;
      cpu.ngram.cache_bytes = 3000;
      const model::Loaded loaded = model::load(kToyPack, backend::StateType::BF16, cpu);
      const backend::NgramStore& store = *loaded.model->backend().ngram_store();
      Options options;
      options.parallel = 4;
      options.depth = options.busy_depth = depth;
      options.bank.enabled = false;
      const auto engine = engine_for(*loaded.model, options);
      const Summary alone = run_at_once(*engine, request, 1)[0]->choice().summary;
      std::uint64_t hits = alone.ple_hits;
      std::uint64_t misses = alone.ple_misses;
      EXPECT_EQ(hits, store.counters().hits);
      EXPECT_EQ(misses, store.counters().misses);
      EXPECT_GT(hits + misses, 0U);
      for (const auto& sink : run_at_once(*engine, request, 4)) {
        const Summary& summary = sink->choice().summary;
        hits += summary.ple_hits;
        misses += summary.ple_misses;
        if (mode == backend::NgramMode::Resident) {
          EXPECT_EQ(summary.ple_hits, alone.ple_hits);
        }
      }
      EXPECT_GT(engine->stats().mixed_steps, 0U);
      EXPECT_EQ(hits + misses, 5 * (alone.ple_hits + alone.ple_misses));
      EXPECT_EQ(hits, store.counters().hits);
      EXPECT_EQ(misses, store.counters().misses);
      EXPECT_EQ(engine->stats().ple_hits, hits);
      EXPECT_EQ(engine->stats().ple_misses, misses);
    }
  }
}

TEST(EngineCounts, ThePromptOfSeveralChoicesIsCountedOnce) {
  std::mt19937 random(4);
  Options options;
  options.parallel = 3;
  const auto engine = engine_for(toy(), options);
  Request request = greedy(random_tokens(random, 90, 512), 6);
  request.n = 5;
  const auto prefilled = [&] {
    const auto sink = std::make_shared<Recorder>(5);
    EXPECT_TRUE(engine->submit(request, sink));
    sink->wait();
    EXPECT_TRUE(engine->wait_idle(60));
    std::vector<std::int64_t> tokens;
    for (std::size_t i = 0; i < 5; ++i) {
      tokens.push_back(sink->choice(i).summary.prefill_tokens);
      EXPECT_EQ(sink->choice(i).summary.cached_tokens, sink->started()->cached_tokens);
    }
    return tokens;
  };
  EXPECT_EQ(prefilled(), (std::vector<std::int64_t>{90, 0, 0, 0, 0}));
  EXPECT_EQ(engine->stats().prompt_tokens, 90U);
  EXPECT_EQ(engine->stats().cached_tokens, 0U);
  // From the bank, which has all of it.
  EXPECT_EQ(prefilled(), (std::vector<std::int64_t>{0, 0, 0, 0, 0}));
  EXPECT_EQ(engine->stats().prompt_tokens, 90U);
  EXPECT_EQ(engine->stats().cached_tokens, 90U);
}

/// A toy model whose short head has every third token.
std::unique_ptr<model::Model> model_with_short_head(const artifact::Artifact& artifact) {
  model::ModelOptions options;
  for (std::int32_t id = 0; id < 512; id += 3) options.draft_tokens.push_back(id);
  return model::Model::load(artifact, backend::CpuBackend::create(model::one_thread()).value(), options).value();
}

TEST(StepperCounts, DraftsOfTheShortHeadAreThoseThatItProposed) {
  const auto artifact = artifact::Artifact::open(kToyPack).value();
  const auto model = model_with_short_head(artifact);
  for (const bool short_head : {false, true}) {
    SCOPED_TRACE(short_head);
    std::mt19937 random(8);
    Stepper stepper = Stepper::create(*model, 200, short_head).value();
    std::vector<std::unique_ptr<decode::Generation>> generations;
    std::vector<Part> parts;
    for (const std::int64_t tokens : {1, 9, 20}) {  // no drafts for one token
      decode::DecodeRequest request = decode_request(greedy(random_tokens(random, 30, 512), tokens), 512);
      generations.push_back(decode::make_speculative_generation(*model, {}, std::move(request), std::nullopt).value());
      parts.push_back({generations.back().get(), 30});
    }
    while (generations.back()->need() != decode::Generation::Need::Nothing) {
      stepper.run(parts);
      stepper.first(parts);
      for (const Part& part : parts) ASSERT_TRUE(part.status) << part.status.error().message;
    }
    std::int64_t all = 0;
    for (const auto& generation : generations) {
      const decode::DecodeStats& stats = generation->stats();
      const auto drafted = std::accumulate(stats.drafted.begin(), stats.drafted.end(), std::int64_t{0});
      EXPECT_EQ(drafted > 0, stats.prompt_tokens > 0 && generation->request().max_tokens > 1);
      EXPECT_EQ(stats.short_head_rows, short_head ? drafted : 0);
      all += stats.short_head_rows;
    }
    EXPECT_EQ(stepper.short_head_rows(), all);
  }
}

TEST(EngineCounts, TheShortHeadIsReportedForWhatItRan) {
  const auto artifact = artifact::Artifact::open(kToyPack).value();
  const auto model = model_with_short_head(artifact);
  Options options;
  options.short_head = true;
  options.vocab = 512;
  options.bank.enabled = false;
  const MemoryPlan plan(*model, options, std::uint64_t{256} << 20);
  Limits limits;
  limits.context = limits.plan_tokens = 512;
  limits.queue = limits.max_choices = 4;
  limits.vocab = 512;
  limits.memory_bytes = plan.total();
  // The same options; only what the stepper drafts with is different.
  for (const bool short_head : {false, true}) {
    SCOPED_TRACE(short_head);
    Scheduler engine(*model, options, limits, plan, Bank::create(*model, options.bank, true, options.identity).value(),
                     Stepper::create(*model, 600, short_head).value());
    ASSERT_TRUE(engine.start());
    const auto sink = std::make_shared<Recorder>();
    ASSERT_TRUE(engine.submit(greedy({5, 6, 7}, 20), sink));
    sink->wait();
    ASSERT_FALSE(sink->choice().error);
    const Summary summary = sink->choice().summary;
    EXPECT_GT(summary.drafted[0], 0);
    EXPECT_EQ(std::ranges::count(summary.lanes, "frspec"), short_head ? 1 : 0);
  }
}

}  // namespace
}  // namespace lockstep::engine
