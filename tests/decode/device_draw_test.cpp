// Tokens drawn by the backend: the same tokens, probabilities and states as when the host draws them, and the same
// errors where nothing can be drawn.
#include <gtest/gtest.h>

#include <random>

#include "decode/draw_cases.hpp"
#include "model/fixture.hpp"
#include "support/cases.hpp"
#include "support/drawing_backend.hpp"
#include "support/random_model.hpp"
#include "support/runs.hpp"

namespace lockstep::decode {
namespace {

using testing::difference;
using testing::must;
using testing::pick;
using testing::Trace;

std::unique_ptr<backend::Backend> cpu() {
  return std::move(backend::CpuBackend::create(model::one_thread()).value());
}

TEST(DeviceDraw, EqualsTheHosts) {
  test::DrawingBackend backend(cpu());
  std::size_t faulty = 0;
  for (unsigned seed = 0; seed < test::cases(1400); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const testing::DrawCase test = testing::draw_case(seed, testing::draw_vocab(seed), 1 + seed % 3);
    testing::expect_host_draws(backend, test);
    if (HasFatalFailure()) return;
    for (const backend::Drawn& drawn : test.expected) faulty += drawn.id < 0 ? 1 : 0;
  }
  if (!test::usual_cases()) return;
  EXPECT_GT(faulty, 50U);
}

model::Loaded load(artifact::Artifact artifact, std::unique_ptr<backend::Backend> backend) {
  auto model = model::Model::load(artifact, std::move(backend), {});
  if (!model) throw std::runtime_error(model.error().message);
  return {std::move(artifact), std::move(*model)};
}

DecodeRequest random_request(std::mt19937_64& random, std::int64_t vocabulary) {
  DecodeRequest request;
  for (std::size_t i = random() % 30 + 1; i > 0; --i) {
    request.prompt.push_back(static_cast<TokenId>(random() % static_cast<unsigned>(vocabulary - 4)));
  }
  request.sampler = testing::draw_params(random);
  request.max_tokens = static_cast<std::int64_t>(random() % 20 + 1);
  request.vocab = vocabulary - static_cast<std::int64_t>(random() % 5);
  return request;
}

/// Makes the host draw, for one of the reasons that there are.
void make_hosts(std::mt19937_64& random, DecodeRequest& request) {
  const bool greedy = request.sampler.greedy();
  switch (random() % (greedy ? 3 : 6)) {
    case 0:
      request.sampler.presence_penalty = 0.5;
      return;
    case 1:
      request.sampler.logit_bias[3] = 1.0;
      return;
    case 2:
      request.logprobs = true;
      return;
    case 3:
      request.sampler.top_k = 65;
      return;
    case 4:
      request.sampler.top_k = 0;
      return;
    default:
      request.sampler.draw_rule = DrawRule::Race;
      return;
  }
}

Trace run(const model::Model& model, const DecodeRequest& request, std::optional<SpeculativeOptions> options) {
  model::Runner runner = model::Runner::create(model, 64).value();
  const auto generation = options ? must(make_speculative_generation(model, *options, request, std::nullopt))
                                  : must(make_plain_generation(model, request, std::nullopt));
  return testing::trace(*generation, runner, 64);
}

TEST(DeviceDraw, RequestsLeaveWhatTheyLeaveOnTheHost) {
  std::int64_t device_rows = 0;
  std::int64_t accepted = 0;
  for (unsigned seed = 0; seed < test::cases(12); ++seed) {
    const auto make = [&] { return test::random_model(seed + 900, {.draft = true, .vocabulary = {}}); };
    const model::Loaded host = load(make(), cpu());
    const model::Loaded device = load(make(), std::make_unique<test::DrawingBackend>(cpu()));
    for (unsigned index = 0; index < 10; ++index) {
      SCOPED_TRACE("model " + std::to_string(seed + 900) + ", request " + std::to_string(index));
      std::mt19937_64 random(seed * 1000 + index);
      DecodeRequest request = random_request(random, host.model->config().vocab_size);
      const bool hosts = index % 3 == 0;
      if (hosts) make_hosts(random, request);
      const Trace expected = run(*host.model, request, std::nullopt);
      ASSERT_EQ(expected.stats.device_rows, 0);
      const Trace plain = run(*device.model, request, std::nullopt);
      ASSERT_EQ(difference(expected, plain), "");
      // The first token comes from the logits of the prompt, which the host keeps.
      ASSERT_EQ(plain.stats.device_rows, hosts ? 0 : plain.stats.steps);
      ASSERT_EQ(plain.stats.host_rows, expected.stats.host_rows - plain.stats.device_rows);

      SpeculativeOptions options;
      options.depth = static_cast<std::int64_t>(random() % kMaxDepth + 1);
      options.capture = random() % 4 != 0;
      const bool right = random() % 2 == 0;
      options.script = [&](std::uint64_t number, TokenId proposed) {
        return right && number < expected.ids.size() ? expected.ids[number] : proposed;
      };
      const Trace drafted_on_host = run(*host.model, request, options);
      const Trace drafted = run(*device.model, request, options);
      ASSERT_EQ(difference(expected, drafted), "");
      ASSERT_EQ(drafted.stats.drafted, drafted_on_host.stats.drafted);
      ASSERT_EQ(drafted.stats.accepted, drafted_on_host.stats.accepted);
      ASSERT_EQ(drafted.stats.host_rows + drafted.stats.device_rows, drafted_on_host.stats.host_rows);
      ASSERT_EQ(drafted.stats.device_rows > 0, !hosts && drafted.stats.steps > 0);
      device_rows += drafted.stats.device_rows;
      accepted += drafted.stats.accepted[0];

      request.sampler.acceptance = AcceptanceRule::Rejection;
      if (request.sampler.draw_rule == DrawRule::Race) continue;
      options.script = nullptr;
      const Trace judged = run(*device.model, request, options);
      ASSERT_EQ(judged.stats.device_rows, 0);
      ASSERT_EQ(difference(run(*host.model, request, options), judged), "");
    }
  }
  EXPECT_GT(device_rows, 100);
  EXPECT_GT(accepted, 30);
}

TEST(DeviceDraw, AVocabularyThatTheDeviceDoesNotTakeIsTheHosts) {
  const auto make = [] { return test::random_model(7, {.draft = true, .vocabulary = 100}); };
  const model::Loaded narrow = load(make(), std::make_unique<test::DrawingBackend>(cpu(), 99));
  DecodeRequest request;
  request.prompt = {1, 5};
  request.max_tokens = 5;
  for (const std::int64_t vocab : {99, 100}) {
    request.vocab = vocab;
    EXPECT_EQ(run(*narrow.model, request, std::nullopt).stats.device_rows > 0, false);
    request.sampler.temperature = 0;
    EXPECT_EQ(run(*narrow.model, request, std::nullopt).stats.device_rows > 0, vocab == 99);
    request.sampler.temperature = 1;
  }
}

TEST(DeviceDraw, ThePipelinedLoopGivesTheSame) {
  const auto make = [] { return test::random_model(21, {.draft = false, .vocabulary = 200}); };
  const model::Loaded host = load(make(), cpu());
  const model::Loaded device = load(make(), std::make_unique<test::DrawingBackend>(cpu()));
  const auto on_host = make_plain_decoder(*host.model).value();
  const auto on_device = make_plain_decoder(*device.model).value();
  const auto pipelined = make_pipelined_driver().value();
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const DecodeRequest request = random_request(random, 200);
    const Trace expected = testing::decode(*on_host, request);
    const Trace got = testing::decode(*on_device, *pipelined, request);
    ASSERT_EQ(expected.ids, got.ids);
    ASSERT_EQ(expected.probabilities, got.probabilities);
    ASSERT_EQ(got.stats.device_rows + 1, static_cast<std::int64_t>(got.ids.size()));
    ASSERT_EQ(got.stats.prepared_steps, 0);
  }
}

/// Spoils a logit of every row of the passes from number `from` on.
class SpoiledBackend final : public test::ForwardingBackend {
 public:
  SpoiledBackend(std::unique_ptr<backend::Backend> inner, int from, std::int64_t vocabulary)
      : ForwardingBackend(std::move(inner)), from_(from), vocabulary_(vocabulary) {}

  void project(const backend::Matrix& matrix, const float* u, std::int64_t rows, float* out) override {
    inner_->project(matrix, u, rows, out);
    if (matrix.rows() != vocabulary_ || passes_++ < from_) return;
    for (std::int64_t row = 0; row < rows; ++row) out[row * vocabulary_ + 17] = std::numeric_limits<float>::infinity();
  }

 private:
  int from_, passes_ = 0;
  std::int64_t vocabulary_;
};

TEST(DeviceDraw, LogitsThatAreNotFiniteEndARequestAsOnTheHost) {
  constexpr std::int64_t kVocabulary = 120;
  for (const bool drafts : {false, true}) {
    for (int from = 1; from < 9; ++from) {
      SCOPED_TRACE(std::to_string(from) + (drafts ? " drafted" : " plain"));
      std::array<std::vector<TokenId>, 2> ids;
      std::array<std::string, 2> errors;
      std::array<std::int64_t, 2> failures{};
      for (const bool device : {false, true}) {
        std::unique_ptr<backend::Backend> backend = std::make_unique<SpoiledBackend>(cpu(), from, kVocabulary);
        if (device) backend = std::make_unique<test::DrawingBackend>(std::move(backend));
        const model::Loaded loaded =
            load(test::random_model(33, {.draft = true, .vocabulary = kVocabulary}), std::move(backend));
        DecodeRequest request;
        request.prompt = {3, 4, 5};
        request.vocab = kVocabulary;
        request.sampler.top_k = 20;
        request.max_tokens = 12;
        model::Runner runner = model::Runner::create(*loaded.model, 64).value();
        const auto generation = drafts ? must(make_speculative_generation(*loaded.model, {}, request, std::nullopt))
                                       : must(make_plain_generation(*loaded.model, request, std::nullopt));
        Status status;
        while (status && generation->need() != Generation::Need::Nothing) status = run_need(*generation, runner, 64);
        ASSERT_FALSE(status);
        for (const Choice& choice : generation->emitted()) ids.at(device ? 1 : 0).push_back(choice.id);
        errors.at(device ? 1 : 0) = status.error().message;
        failures.at(device ? 1 : 0) = generation->stats().draft_failures;
      }
      EXPECT_EQ(ids[0], ids[1]);
      EXPECT_EQ(errors[0], errors[1]);
      EXPECT_EQ(failures[0], failures[1]);
      EXPECT_NE(errors[0].find("non-finite logit (inf for id 17)"), std::string::npos) << errors[0];
    }
  }
}

}  // namespace
}  // namespace lockstep::decode
