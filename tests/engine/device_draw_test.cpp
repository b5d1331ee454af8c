// Batches in which some rows are drawn from on the device and some on the host: every request gets what it gets alone,
// where the host draws everything.
#include <gtest/gtest.h>

#include "engine/device_requests.hpp"
#include "engine/fixture.hpp"
#include "engine/stepper.hpp"
#include "support/drawing_backend.hpp"

namespace lockstep::engine {
namespace {

using decode::Generation;

model::Loaded on_device(const std::string& directory) {
  auto artifact = artifact::Artifact::open(directory).value();
  auto cpu = backend::CpuBackend::create(model::one_thread()).value();
  auto model = model::Model::load(artifact, std::make_unique<test::DrawingBackend>(std::move(cpu)), {}).value();
  return {std::move(artifact), std::move(model)};
}

Request half_devices(std::mt19937& random, std::int64_t vocab) {
  Request request = random_request(random, vocab, 60);
  if (random() % 2 == 0) return request;
  let_device_draw(request);
  return request;
}

class BatchedDraws : public testing::TestWithParam<std::string> {};

TEST_P(BatchedDraws, AnswersAreThoseOfTheHost) {
  const model::Model& host = shared_model(GetParam());
  const model::Loaded device = on_device(GetParam());
  std::int64_t mixed = 0;
  for (unsigned seed = 0; seed < 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const bool drafts = random() % 2 == 0;
    Stepper stepper = Stepper::create(*device.model, 400).value();
    std::vector<Request> requests(5);
    std::vector<std::unique_ptr<Generation>> generations;
    std::vector<Answer> answers(requests.size());
    for (Request& request : requests) {
      request = half_devices(random, host.config().vocab_size);
      if (!drafts) request.sampler.acceptance = decode::AcceptanceRule::Stream;
      decode::DecodeRequest decode = decode_request(request, host.config().vocab_size);
      generations.push_back(
          drafts ? decode::make_speculative_generation(*device.model, {}, std::move(decode), std::nullopt).value()
                 : decode::make_plain_generation(*device.model, std::move(decode), std::nullopt).value());
    }
    for (bool busy = true; busy;) {
      std::vector<Part> parts;
      for (const auto& generation : generations) {
        if (generation->need() == Generation::Need::Nothing) continue;
        parts.push_back({generation.get(), static_cast<std::int64_t>(random() % 40 + 1)});
      }
      busy = !parts.empty();
      stepper.run(parts);
      stepper.first(parts);
      for (const Part& part : parts) ASSERT_TRUE(part.status) << part.status.error().message;
    }
    std::int64_t device_rows = 0;
    std::int64_t host_rows = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      Answer& answer = answers[i];
      const Generation& generation = *generations[i];
      for (std::size_t t = 0; t < generation.emitted().size(); ++t) {
        answer.ids.push_back(generation.emitted()[t].id);
        answer.bits.push_back(std::bit_cast<std::uint64_t>(generation.emitted()[t].probability));
        if (requests[i].logprobs) add_logprobs(answer.bits, generation.logprobs()[t]);
      }
      answer.reason = generation.finish() == decode::Finish::Stop ? FinishReason::Stop : FinishReason::Length;
      ASSERT_EQ(answer, alone(host, requests[i]));
      device_rows += generation.stats().device_rows;
      host_rows += generation.stats().host_rows;
    }
    if (device_rows > 10 && host_rows > 10) ++mixed;
  }
  EXPECT_GE(mixed, 4);
}

INSTANTIATE_TEST_SUITE_P(Models, BatchedDraws, testing::Values(kToyPack, kToyHf), test_name);

TEST(DeviceDraws, TheEngineCountsThem) {
  const model::Loaded device = on_device(kToyPack);
  const auto engine = engine_for(*device.model);
  Request request;
  request.prompt = {3, 4, 5};
  request.sampler.top_k = 20;
  request.max_tokens = 12;
  const auto sink = std::make_shared<Recorder>();
  ASSERT_TRUE(engine->submit(request, sink));
  sink->wait();
  ASSERT_EQ(sink->choice().answer, alone(shared_model(kToyPack), request));
  ASSERT_TRUE(engine->wait_idle(60));
  const Statistics stats = engine->stats();
  EXPECT_GT(stats.device_rows, 0U);
  EXPECT_GT(stats.host_rows, 0U);
}

}  // namespace
}  // namespace lockstep::engine
