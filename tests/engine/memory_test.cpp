// The memory plan against what is really allocated, and what happens when there is less than the plan thinks.
#include <gtest/gtest.h>

#include <cerrno>

#include "engine/fixture.hpp"
#include "engine/memory_plan.hpp"
#include "engine/metered_backend.hpp"
#include "support/cases.hpp"
#include "support/scratch.hpp"

namespace lockstep::engine {
namespace {

struct MeteredModel {
  std::unique_ptr<artifact::Artifact> artifact;
  std::shared_ptr<Meter> meter = std::make_shared<Meter>();
  std::unique_ptr<model::Model> model;

  explicit MeteredModel(const std::string& directory) {
    artifact = std::make_unique<artifact::Artifact>(artifact::Artifact::open(directory).value());
    auto backend = std::make_unique<MeteredBackend>(backend::CpuBackend::create(model::one_thread()).value(), meter);
    model = model::Model::load(*artifact, std::move(backend), {}).value();
  }
};

Request long_request(std::mt19937& random, std::int64_t prompt, std::int64_t max_tokens) {
  Request request;
  request.prompt = random_tokens(random, static_cast<std::size_t>(prompt), 512);
  request.sampler.temperature = 1;
  request.sampler.seed = random();
  request.max_tokens = max_tokens;
  return request;
}

class Memory : public testing::TestWithParam<std::string> {};

TEST_P(Memory, WhatIsAllocatedStaysWithinThePlan) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    MeteredModel metered(GetParam());
    Options options;
    options.depth = seed % 3 == 0 ? 0 : static_cast<std::int64_t>(random() % 4 + 1);
    options.capture = seed != 2;
    options.parallel = 3;
    options.bank.interval = 16;
    const MemoryPlan plan(*metered.model, options, 0);
    options.memory_bytes = plan.choice(250) * 3;
    const auto engine = engine_for(*metered.model, options);
    // Rows of the runner are made at the start; logits grow with the rows of a step and belong to the plan's choices.
    const std::uint64_t before = metered.meter->used;
    metered.meter->peak = before;
    std::vector<std::shared_ptr<Recorder>> sinks;
    for (int i = 0; i < 8; ++i) {
      const auto prompt = static_cast<std::int64_t>(random() % 150 + 1);
      Request request = long_request(random, prompt, static_cast<std::int64_t>(random() % 60 + 1));
      request.n = static_cast<std::int64_t>(random() % 3 + 1);
      sinks.push_back(std::make_shared<Recorder>(request.n));
      ASSERT_TRUE(engine->submit(request, sinks.back()));
    }
    for (const auto& sink : sinks) {
      sink->wait();
      EXPECT_FALSE(sink->choice().error);
    }
    EXPECT_LE(metered.meter->peak - before, options.memory_bytes);
    EXPECT_GT(metered.meter->peak, before);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Memory, testing::Values(kToyPack, kToyHf), test_name);

TEST(OutOfMemory, InsideAStepFailsThatRequestOnly) {
  int failed = 0;
  int finished = 0;
  for (unsigned seed = 0; seed < test::cases(12); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    MeteredModel metered(kToyPack);
    Options options;
    options.bank.enabled = seed % 2 == 0;
    options.depth = seed % 3 == 0 ? 0 : 3;
    const auto engine = engine_for(*metered.model, options);
    // A small request that has all its pages, and then a device that is nearly full.
    const Request small = long_request(random, 3, 50);
    const Answer expected = alone(*metered.model, small);
    const auto beside = std::make_shared<Recorder>();
    const std::uint64_t left = random() % 400000;
    beside->token_seen = [&metered, once = true, left](std::int64_t, const Token&) mutable {
      if (std::exchange(once, false)) metered.meter->limit = metered.meter->used + left;
      return Sink::Flow::Continue;
    };
    ASSERT_TRUE(engine->submit(small, beside));
    beside->wait_tokens(1);
    std::vector<std::shared_ptr<Recorder>> sinks;
    std::vector<Request> requests;
    for (int i = 0; i < 3; ++i) {
      requests.push_back(long_request(random, 400, 200));
      sinks.push_back(std::make_shared<Recorder>());
      ASSERT_TRUE(engine->submit(requests.back(), sinks.back()));
    }
    for (std::size_t i = 0; i < sinks.size(); ++i) {
      sinks[i]->wait();
      const Recorder::Choice got = sinks[i]->choice();
      EXPECT_EQ(got.ends, 1);
      if (got.error) {
        EXPECT_EQ(got.error->kind, ErrorKind::Limit) << got.error->message;
        ++failed;
      } else {
        ++finished;
      }
    }
    beside->wait();
    if (!beside->choice().error) {
      EXPECT_EQ(beside->choice().answer, expected);
    }
    // Afterwards everything works again.
    metered.meter->limit = UINT64_MAX;
    const auto again = std::make_shared<Recorder>();
    ASSERT_TRUE(engine->submit(small, again));
    again->wait();
    EXPECT_EQ(again->choice().answer, expected);
    ASSERT_TRUE(engine->wait_idle(60));
    EXPECT_EQ(engine->stats().reserved_bytes, 0U);
  }
  if (test::usual_cases()) {
    EXPECT_GT(failed, 0);
  }
  std::printf("%d failed, %d finished\n", failed, finished);
}

/// Looks at the engine's statistics when it hears of the failure.
class Asking final : public Recorder {
 public:
  explicit Asking(const Engine& engine) : engine_(engine) {}
  void on_error(std::int64_t choice, const Error& error) override {
    told = engine_.stats().poisoned;
    Recorder::on_error(choice, error);
  }
  std::string told;

 private:
  const Engine& engine_;
};

TEST(Poisoned, ATableThatCannotBeReadEndsEverythingClearly) {
  auto artifact = artifact::Artifact::open(kToyPack).value();
  std::atomic<bool> broken{false};
  backend::CpuOptions cpu = model::one_thread();
  cpu.ngram.mode = backend::NgramMode::Streamed;
  cpu.ngram.cache_bytes = 64 << 10;
  cpu.ngram.intercept = [&](std::uint64_t, std::int64_t result) { return broken ? -EIO : result; };
  const auto model = model::Model::load(artifact, backend::CpuBackend::create(cpu).value(), {}).value();
  const auto engine = engine_for(*model);
  std::mt19937 random(1);
  std::vector<std::shared_ptr<Asking>> sinks;
  for (int i = 0; i < 6; ++i) {
    sinks.push_back(std::make_shared<Asking>(*engine));
    ASSERT_TRUE(engine->submit(long_request(random, 30, 3000), sinks.back()));
  }
  sinks[0]->wait_tokens(1);
  broken = true;
  for (const auto& sink : sinks) {
    sink->wait();
    EXPECT_EQ(sink->choice().ends, 1);
    ASSERT_TRUE(sink->choice().error);
    EXPECT_EQ(sink->choice().error->kind, ErrorKind::Io);
    EXPECT_NE(sink->told, "");
  }
  EXPECT_TRUE(engine->wait_idle(60));
  EXPECT_FALSE(engine->stats().poisoned.empty());
  const auto refused = engine->submit(long_request(random, 3, 3), std::make_shared<Recorder>());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, RefusalReason::Poisoned);
}

TEST(Poisoned, AMappedFileThatShrinksEndsEverythingClearly) {
  const test::ScratchDirectory scratch;
  for (const char* name : {"ngram-table.safetensors", "model-00001-of-00002.safetensors"}) {
    SCOPED_TRACE(name);
    std::filesystem::remove_all(scratch / "model");
    std::filesystem::copy(kToyPack, scratch / "model");
    auto artifact = artifact::Artifact::open(scratch / "model").value();
    backend::CpuOptions cpu = model::one_thread();
    cpu.ngram.mode = backend::NgramMode::Resident;
    const auto model = model::Model::load(artifact, backend::CpuBackend::create(cpu).value(), {}).value();
    const auto engine = engine_for(*model);
    std::mt19937 random(1);
    std::vector<std::shared_ptr<Recorder>> sinks;
    for (int i = 0; i < 3; ++i) {
      sinks.push_back(std::make_shared<Recorder>());
      ASSERT_TRUE(engine->submit(long_request(random, 30, 3000), sinks.back()));
    }
    sinks[0]->wait_tokens(1);
    const std::filesystem::path file = scratch / "model" / name;
    std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
    for (const auto& sink : sinks) {
      sink->wait();
      EXPECT_EQ(sink->choice().ends, 1);
      ASSERT_TRUE(sink->choice().error);
      EXPECT_EQ(sink->choice().error->kind, ErrorKind::Io);
      EXPECT_NE(sink->choice().error->message.find(file.string() + ": shrank"), std::string::npos)
          << sink->choice().error->message;
    }
    EXPECT_TRUE(engine->wait_idle(60));
    EXPECT_NE(engine->stats().poisoned.find(name), std::string::npos);
    const auto refused = engine->submit(long_request(random, 3, 3), std::make_shared<Recorder>());
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().reason, RefusalReason::Poisoned);
  }
}

}  // namespace
}  // namespace lockstep::engine
