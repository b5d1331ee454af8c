// Tokens drawn on a CUDA device against the host's. Skipped without a device.
#include <gtest/gtest.h>

#include <cstdlib>

#include "backend/cuda/cuda_backend.hpp"
#include "decode/draw_cases.hpp"
#include "model/fixture.hpp"
#include "support/cases.hpp"
#include "support/runs.hpp"

namespace lockstep::decode {
namespace {

class CudaDraw : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = backend::create_cuda_backend({});
    if (!made) GTEST_SKIP() << "no CUDA device: " << made.error().message;
    backend_ = std::move(*made);
    if (backend_->draw_vocabulary() == 0) GTEST_SKIP() << "LOCKSTEP_CUDA_SAMPLE=0";
  }

  std::unique_ptr<backend::Backend> backend_;
};

TEST_F(CudaDraw, EqualsTheHostsDraw) {
  for (unsigned seed = 0; seed < test::cases(1400); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    testing::expect_host_draws(*backend_, testing::draw_case(seed, testing::draw_vocab(seed), 1 + seed % 3));
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaDraw, EqualsTheHostsDrawOnLargeRows) {
  for (unsigned seed = 0; seed < test::cases(12); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const std::size_t vocab = seed % 4 == 3 ? std::size_t{1} << 19 : 248'077;
    testing::expect_host_draws(*backend_, testing::draw_case(10'000 + seed, vocab, seed == 0 ? 40 : 5));
    if (HasFatalFailure()) return;
  }
}

/// Rows may be drawn from in any order, more than once, and by their number.
TEST_F(CudaDraw, RequestsNameTheirRows) {
  testing::DrawCase test = testing::draw_case(77, 1000, 20);
  testing::DrawCase some{test.width, test.logits, {}, {}};
  for (std::size_t i = 0; i < 50; ++i) {
    some.requests.push_back(test.requests[(7 * i) % 20]);
    some.expected.push_back(test.expected[(7 * i) % 20]);
  }
  testing::expect_host_draws(*backend_, some);
}

TEST_F(CudaDraw, RequestsLeaveWhatTheyLeaveOnTheProcessor) {
  const char* moved = std::getenv("LOCKSTEP_ROOT");
  const std::string root = moved != nullptr ? moved : LOCKSTEP_SOURCE_DIR;
  const model::Loaded cpu = model::load(root + "/tests/data/toy-pack", backend::StateType::BF16);
  auto artifact = artifact::Artifact::open(root + "/tests/data/toy-pack").value();
  const auto cuda = model::Model::load(artifact, std::move(backend_), {}).value();
  model::Runner on_cpu = model::Runner::create(*cpu.model, 64).value();
  model::Runner on_cuda = model::Runner::create(*cuda, 64).value();
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    DecodeRequest request;
    request.prompt = {3, static_cast<TokenId>(random() % 500), 9};
    request.sampler = testing::draw_params(random);
    request.vocab = cpu.model->config().vocab_size;
    request.max_tokens = 20;
    const auto expected = testing::must(make_plain_generation(*cpu.model, request, std::nullopt));
    const testing::Trace want = testing::trace(*expected, on_cpu, 64);
    const auto plain = testing::must(make_plain_generation(*cuda, request, std::nullopt));
    const testing::Trace got = testing::trace(*plain, on_cuda, 64);
    ASSERT_EQ(testing::difference(want, got), "");
    ASSERT_EQ(got.stats.device_rows, got.stats.steps);
    const auto drafting = testing::must(make_speculative_generation(*cuda, {}, request, std::nullopt));
    ASSERT_EQ(testing::difference(want, testing::trace(*drafting, on_cuda, 64)), "");
  }
}

}  // namespace
}  // namespace lockstep::decode
