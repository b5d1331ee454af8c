// A choice that decodes alone, a step ahead of its tokens: neighbours come and go, sinks pause, requests are cancelled,
// and every answer is what the request gives alone, where the host draws.
#include <gtest/gtest.h>

#include "engine/device_requests.hpp"
#include "engine/fixture.hpp"
#include "engine/stepper.hpp"
#include "support/ahead_backend.hpp"
#include "support/state_parts.hpp"

namespace lockstep::engine {
namespace {

using decode::Generation;

model::Loaded on_device(const std::string& directory, bool finds_rows) {
  auto artifact = artifact::Artifact::open(directory).value();
  auto cpu = backend::CpuBackend::create(model::one_thread()).value();
  auto backend = std::make_unique<test::AheadBackend>(std::move(cpu), finds_rows);
  auto model = model::Model::load(artifact, std::move(backend), {}).value();
  return {std::move(artifact), std::move(model)};
}

/// Mostly one that the device draws.
Request mostly_devices(std::mt19937& random, std::int64_t vocab) {
  Request request = random_request(random, vocab, 60);
  request.sampler.acceptance = decode::AcceptanceRule::Stream;
  if (random() % 5 == 0) return request;
  let_device_draw(request);
  return request;
}

class StepsAhead : public testing::TestWithParam<std::string> {};

/// Random members in every step, often one of them alone.
TEST_P(StepsAhead, WhoIsAloneChangesNoAnswerAndNoState) {
  const model::Model& host = shared_model(GetParam());
  std::int64_t launched = 0;
  for (unsigned seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const model::Loaded device = on_device(GetParam(), seed % 2 == 0);
    Stepper stepper = Stepper::create(*device.model, 400, false, true).value();
    std::vector<Request> requests(4);
    std::vector<std::unique_ptr<Generation>> generations;
    for (Request& request : requests) {
      request = mostly_devices(random, host.config().vocab_size);
      generations.push_back(
          decode::make_plain_generation(*device.model, decode_request(request, host.config().vocab_size), std::nullopt)
              .value());
    }
    std::size_t alone_for = 0, who = 0;
    for (bool busy = true; busy;) {
      std::vector<Part> parts;
      busy = false;
      if (alone_for == 0) {
        alone_for = random() % 6;
        who = random() % generations.size();
      } else {
        --alone_for;
      }
      for (std::size_t i = 0; i < generations.size(); ++i) {
        if (generations[i]->need() == Generation::Need::Nothing) continue;
        busy = true;
        if (alone_for > 0 ? i == who : random() % 2 == 0) {
          parts.push_back({generations[i].get(), static_cast<std::int64_t>(random() % 40 + 1)});
        }
      }
      stepper.run(parts);
      stepper.first(parts);
      for (const Part& part : parts) ASSERT_TRUE(part.status) << part.status.error().message;
    }
    for (std::size_t i = 0; i < requests.size(); ++i) {
      Answer answer;
      const Generation& generation = *generations[i];
      for (std::size_t t = 0; t < generation.emitted().size(); ++t) {
        answer.ids.push_back(generation.emitted()[t].id);
        answer.bits.push_back(std::bit_cast<std::uint64_t>(generation.emitted()[t].probability));
        if (requests[i].logprobs) add_logprobs(answer.bits, generation.logprobs()[t]);
      }
      answer.reason = generation.finish() == decode::Finish::Stop ? FinishReason::Stop : FinishReason::Length;
      ASSERT_EQ(answer, alone(host, requests[i]));
      launched += generation.stats().launched_steps;
      // The state is that of the tokens which the sequence names.
      model::Sequence cold = model::Sequence::create(host).value();
      model::Runner runner = model::Runner::create(host, 512).value();
      const model::Segment segment{&cold, generation.sequence().tokens(), model::LogitsWanted::None};
      ASSERT_TRUE(runner.forward({&segment, 1}));
      ASSERT_EQ(test::part_difference(cold.save_parts(false), generation.sequence().save_parts(false)), "");
      stepper.forget(generation);
    }
  }
  EXPECT_GT(launched, 100);
}

TEST_P(StepsAhead, AnEngineGivesWhatRequestsGiveAlone) {
  const model::Model& host = shared_model(GetParam());
  const model::Loaded device = on_device(GetParam(), true);
  std::uint64_t reused = 0;
  for (unsigned seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Options options;
    options.depth = 0;
    options.ahead = true;
    options.parallel = static_cast<std::int64_t>(random() % 3 + 1);
    const auto engine = engine_for(*device.model, options);
    std::vector<TokenId> before;
    for (int round = 0; round < 6; ++round) {
      std::vector<Request> requests(random() % 3 + 1);
      std::vector<std::shared_ptr<Recorder>> sinks;
      std::vector<Ticket> tickets;
      for (Request& request : requests) {
        request = mostly_devices(random, host.config().vocab_size);
        if (!before.empty() && random() % 2 == 0) {
          request.prompt.insert(request.prompt.begin(), before.begin(), before.end());
          request.boundaries.clear();
        }
        sinks.push_back(std::make_shared<Recorder>());
        if (random() % 3 == 0) {
          sinks.back()->hold = [held = 0]() mutable { return ++held % 3 == 0; };
        }
        tickets.push_back(engine->submit(request, sinks.back()).value());
        sinks.back()->wait_tokens(random() % 8);  // the next one arrives in the middle
      }
      const bool cancels = random() % 4 == 0;
      if (cancels) engine->cancel(tickets.front());
      for (std::size_t i = 0; i < requests.size(); ++i) {
        sinks[i]->wait();
        const Recorder::Choice choice = sinks[i]->choice();
        if (choice.error && cancels && i == 0) continue;
        ASSERT_FALSE(choice.error) << choice.error->message;
        ASSERT_EQ(choice.answer, alone(host, requests[i]));
        before = requests[i].prompt;
        before.insert(before.end(), choice.answer.ids.begin(), choice.answer.ids.end());
        if (before.size() > 300) before.clear();
      }
    }
    ASSERT_TRUE(engine->wait_idle(60));
    reused += engine->stats().cached_tokens;
  }
  EXPECT_GT(reused, 0U);
}

INSTANTIATE_TEST_SUITE_P(Models, StepsAhead, testing::Values(kToyPack, kToyHf), test_name);

}  // namespace
}  // namespace lockstep::engine
