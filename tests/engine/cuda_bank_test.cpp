// The prefix bank with states of a CUDA device: kept, forked, written to disk and read back by either device, with the
// answers that the processor gives from nothing. Skipped without a device.
#include <cstdlib>

#include "backend/cuda/cuda_backend.hpp"
#include "engine/fixture.hpp"
#include "support/scratch.hpp"

namespace lockstep::engine {
namespace {

/// A model of the test data on both devices. The repository is LOCKSTEP_ROOT where the program runs elsewhere than it
/// was built (scripts/gpu_check).
struct Both {
  artifact::Artifact artifact;
  std::unique_ptr<model::Model> cpu, cuda;
};

Both load_both(const std::string& name) {
  const char* moved = std::getenv("LOCKSTEP_ROOT");
  const std::string root = moved != nullptr ? moved : LOCKSTEP_SOURCE_DIR;
  auto artifact = artifact::Artifact::open(root + name).value();
  auto cpu = model::Model::load(artifact, backend::CpuBackend::create(model::one_thread()).value(), {}).value();
  auto cuda = model::Model::load(artifact, backend::create_cuda_backend({}).value(), {}).value();
  return {std::move(artifact), std::move(cpu), std::move(cuda)};
}

class CudaBank : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto tried = backend::create_cuda_backend({});
    if (!tried) GTEST_SKIP() << "no CUDA device: " << tried.error().message;
  }

  /// A prompt of its own, or one that begins as an earlier conversation did.
  static Request next_request(std::mt19937& random, std::int64_t vocab,
                              const std::vector<std::vector<TokenId>>& known) {
    Request request = random_request(random, vocab, 90);
    request.sampler.acceptance = decode::AcceptanceRule::Stream;
    request.n = static_cast<std::int64_t>(random() % 3 + 1);
    if (known.empty() || random() % 4 == 0) return request;
    std::vector<TokenId> prompt = known[random() % known.size()];
    if (random() % 4 == 0) prompt.resize(random() % prompt.size() + 1);
    prompt.insert(prompt.end(), request.prompt.begin(), request.prompt.end());
    request.prompt = std::move(prompt);
    request.boundaries.clear();
    return request;
  }
};

TEST_P(CudaBank, RestoredAndForkedStatesGiveTheProcessorsAnswers) {
  const Both models = load_both(GetParam());
  const std::int64_t vocab = models.cpu->config().vocab_size;
  for (unsigned seed = 0; seed < 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const test::ScratchDirectory directory;
    Options options;
    options.depth = seed % 2 == 0 ? 3 : 0;
    options.ahead = true;
    options.prefill_chunk = static_cast<std::int64_t>(random() % 60 + 1);
    options.bank.interval = std::array<std::int64_t, 3>{0, 7, 32}[random() % 3];
    options.bank.directory = directory.path();
    options.identity = "the same weights";
    auto engine = engine_for(*models.cuda, options);
    bool on_device = true;
    std::vector<std::vector<TokenId>> known;
    std::int64_t reused = 0, from_disk = 0;
    for (int turn = 0; turn < 14; ++turn) {
      SCOPED_TRACE("turn " + std::to_string(turn) + (on_device ? ", on the device" : ", on the processor"));
      const Request request = next_request(random, vocab, known);
      const auto sink = std::make_shared<Recorder>(request.n);
      ASSERT_TRUE(engine->submit(request, sink));
      sink->wait();
      ASSERT_TRUE(engine->wait_idle(60));  // the states are in the bank
      for (std::int64_t i = 0; i < request.n; ++i) {
        const auto choice = sink->choice(static_cast<std::size_t>(i));
        ASSERT_FALSE(choice.error) << choice.error->message;
        EXPECT_EQ(choice.answer, alone(*models.cpu, request, static_cast<std::uint64_t>(i))) << "choice " << i;
      }
      ASSERT_TRUE(sink->started());
      reused += sink->started()->cached_tokens;
      from_disk += sink->started()->from_disk ? 1 : 0;
      known.push_back(request.prompt);
      const std::vector<TokenId> ids = sink->choice().answer.ids;
      known.back().insert(known.back().end(), ids.begin(), ids.end());
      if (turn % 4 != 3) continue;
      engine.reset();  // a restart: memory is gone, files stay, and the other device may read them
      if (random() % 2 == 0) on_device = !on_device;
      engine = engine_for(on_device ? *models.cuda : *models.cpu, options);
    }
    EXPECT_GT(reused, 0);
    EXPECT_GT(from_disk, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaBank, testing::Values("/tests/data/toy-pack", "/tests/data/toy-hf"),
                         [](const auto& test) { return std::string(test.param).ends_with("pack") ? "Pack" : "Hf"; });

}  // namespace
}  // namespace lockstep::engine
