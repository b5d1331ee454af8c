// Steps that a CUDA device begins before their token is known, with the n-gram table in every place. Skipped without a
// device.
#include <gtest/gtest.h>

#include <cstdlib>

#include "backend/cuda/cuda_backend.hpp"
#include "decode/ahead_cases.hpp"
#include "model/fixture.hpp"
#include "support/cases.hpp"
#include "support/random_model.hpp"

namespace lockstep::decode {
namespace {

using backend::NgramMode;

class CudaDrawAhead : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto made = backend::create_cuda_backend({});
    if (!made) GTEST_SKIP() << "no CUDA device: " << made.error().message;
    if ((*made)->draw_vocabulary() == 0) GTEST_SKIP() << "LOCKSTEP_CUDA_SAMPLE=0";
  }

  static std::unique_ptr<model::Model> on_device(const artifact::Artifact& artifact, NgramMode place, bool graphs) {
    backend::CudaOptions options;
    options.ngram.mode = place;
    options.graphs = graphs;
    return model::Model::load(artifact, backend::create_cuda_backend(options).value(), {}).value();
  }
};

std::string data_root() {
  const char* moved = std::getenv("LOCKSTEP_ROOT");
  return moved != nullptr ? moved : LOCKSTEP_SOURCE_DIR;
}

TEST_F(CudaDrawAhead, RequestsGiveTheProcessorsAnswersAndStates) {
  testing::AheadCount count;
  for (const char* name : {"/tests/data/toy-pack", "/tests/data/toy-hf"}) {
    const model::Loaded cpu = model::load(data_root() + name, backend::StateType::BF16);
    const auto artifact = artifact::Artifact::open(data_root() + name).value();
    for (const NgramMode place : {NgramMode::Device, NgramMode::Pinned, NgramMode::Resident, NgramMode::Streamed}) {
      for (const bool graphs : {true, false}) {
        SCOPED_TRACE(std::string(name) + ", table " + std::string(backend::ngram_mode_name(place)) +
                     (graphs ? ", graphs" : ""));
        const auto cuda = on_device(artifact, place, graphs);
        testing::expect_equal_turns(*cpu.model, *cuda, static_cast<unsigned>(place) * 2 + (graphs ? 1 : 0), 10, count);
        if (HasFatalFailure()) return;
      }
    }
  }
  EXPECT_GT(count.launched, 1000);
  EXPECT_GT(count.stopped, 10);
}

TEST_F(CudaDrawAhead, RandomModelsGiveTheProcessorsAnswersAndStates) {
  testing::AheadCount count;
  for (unsigned seed = 0; seed < test::cases(8); ++seed) {
    SCOPED_TRACE("model " + std::to_string(seed + 700));
    const auto make = [&] { return test::random_model(seed + 700, {.draft = false, .vocabulary = {}}); };
    const model::Loaded cpu = model::load(make(), backend::StateType::BF16);
    const artifact::Artifact artifact = make();
    const auto cuda = on_device(artifact, seed % 2 == 0 ? NgramMode::Device : NgramMode::Resident, true);
    testing::expect_equal_turns(*cpu.model, *cuda, seed, 6, count);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(count.launched, 200);
}

TEST_F(CudaDrawAhead, NoStepStandsStill) {
  const auto artifact = artifact::Artifact::open(data_root() + "/tests/data/toy-pack").value();
  DecodeRequest request;
  request.prompt = {9, 4, 77};
  request.max_tokens = 150;
  request.vocab = artifact.config().vocab_size;
  request.sampler.top_k = 20;
  for (const NgramMode place : {NgramMode::Device, NgramMode::Pinned, NgramMode::Resident}) {
    SCOPED_TRACE(std::string(backend::ngram_mode_name(place)));
    const auto cuda = on_device(artifact, place, true);
    const auto waits = [&](Driver& driver) {
      const auto decoder = make_plain_decoder(*cuda).value();
      const Status started = decoder->start(request, {});
      if (!started) throw std::runtime_error(started.error().message);
      const std::uint64_t before = cuda->backend().waits();
      const Status ran = driver.run(
          *decoder, [](std::span<const Choice>) -> Result<bool> { return true; }, [] {});
      if (!ran) throw std::runtime_error(ran.error().message);
      EXPECT_EQ(decoder->stats().steps, 149);
      return cuda->backend().waits() - before;
    };
    EXPECT_GE(waits(*make_plain_driver()), 149U);
    EXPECT_EQ(waits(*make_pipelined_driver().value()), 0U);
  }
}

}  // namespace
}  // namespace lockstep::decode
