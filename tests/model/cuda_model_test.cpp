// Whole models on the CUDA backend against the CPU: equal logits and equal saved states. Skipped without a device.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "artifact/synth.hpp"
#include "artifact/synth_geometry.hpp"
#include "backend/cuda/cuda_backend.hpp"
#include "backend/ngram/ngram_store.hpp"
#include "model/fixture.hpp"
#include "numerics/bits.hpp"

namespace lockstep::model {
namespace {

using backend::NgramMode;
using backend::StateType;

/// The repository: LOCKSTEP_ROOT where the program runs elsewhere than it was built (scripts/gpu_check).
std::string root() {
  const char* moved = std::getenv("LOCKSTEP_ROOT");
  return moved != nullptr ? moved : LOCKSTEP_SOURCE_DIR;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

class CudaModel : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const auto tried = backend::create_cuda_backend({});
    if (!tried) GTEST_SKIP() << "no CUDA device: " << tried.error().message;
  }
  [[nodiscard]] static std::string directory() {
    return root() + (GetParam() == "demo" ? "/models/demo" : "/tests/data/" + GetParam());
  }
  [[nodiscard]] static Loaded on_cpu(StateType state) { return load(directory(), state); }
  [[nodiscard]] static Loaded on_cuda(StateType state, NgramMode place = NgramMode::Auto) {
    auto artifact = artifact::Artifact::open(directory()).value();
    ModelOptions options;
    options.state = state;
    backend::CudaOptions cuda;
    cuda.ngram.mode = place;
    auto model = Model::load(artifact, backend::create_cuda_backend(cuda).value(), options);
    if (!model) throw std::runtime_error(model.error().message);
    return {std::move(artifact), std::move(*model)};
  }
  /// Long enough for the indexer to select.
  [[nodiscard]] static std::vector<std::int32_t> tokens(const Model& model, unsigned seed) {
    const artifact::ModelConfig& c = model.config();
    std::mt19937 random(seed);
    std::vector<std::int32_t> out(static_cast<std::size_t>(2 * c.indexer_budget + 41));
    for (std::int32_t& token : out) token = static_cast<std::int32_t>(random() % static_cast<unsigned>(c.vocab_size));
    return out;
  }
};

TEST_P(CudaModel, LogitsAndStatesEqualTheProcessorsForAnyChunking) {
  for (const StateType state : {StateType::BF16, StateType::F32}) {
    const Loaded cpu = on_cpu(state);
    const Loaded cuda = on_cuda(state);
    const auto ids = tokens(*cpu.model, 3);
    auto expected_state = Sequence::create(*cpu.model).value();
    const Forward expected = run_all(*cpu.model, ids, 64, &expected_state);
    for (const std::int64_t chunk :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{3}, std::int64_t{4}, std::int64_t{8}, std::int64_t{50}}) {
      auto got_state = Sequence::create(*cuda.model).value();
      const Forward got = run_all(*cuda.model, ids, chunk, &got_state);
      EXPECT_TRUE(same_bits(expected.logits, got.logits)) << "chunk " << chunk;
      EXPECT_EQ(expected_state.save(), got_state.save()) << "chunk " << chunk;
    }
  }
}

/// The place of the n-gram table changes no bit, and a step stands still for the device once: for its results.
TEST_P(CudaModel, EveryPlaceOfTheTableGivesTheSameLogitsWithOneWaitAStep) {
  const Loaded cpu = on_cpu(StateType::BF16);
  const auto ids = tokens(*cpu.model, 6);
  const Forward expected = run_all(*cpu.model, ids, 64);
  for (const NgramMode place : {NgramMode::Device, NgramMode::Pinned, NgramMode::Resident, NgramMode::Streamed}) {
    SCOPED_TRACE(backend::ngram_mode_name(place));
    const Loaded cuda = on_cuda(StateType::BF16, place);
    EXPECT_TRUE(same_bits(expected.logits, run_all(*cuda.model, ids, 0).logits));
    auto runner = Runner::create(*cuda.model, 64).value();
    auto sequence = Sequence::create(*cuda.model).value();
    const auto step = [&](std::size_t at) {
      const Segment segment{&sequence, std::span(ids).subspan(at, 1), LogitsWanted::All, false};
      return runner.forward({&segment, 1});
    };
    constexpr std::size_t kFirst = 8;  // buffers have found their size
    for (std::size_t i = 0; i < kFirst; ++i) ASSERT_TRUE(step(i));
    const std::uint64_t before = cuda.model->backend().waits();
    for (std::size_t i = kFirst; i < ids.size(); ++i) ASSERT_TRUE(step(i));
    EXPECT_EQ(cuda.model->backend().waits() - before, ids.size() - kFirst);
  }
}

TEST_P(CudaModel, CapturedRowsAndDraftsEqualTheProcessors) {
  const Loaded models[2] = {on_cpu(StateType::BF16), on_cuda(StateType::BF16)};
  const auto ids = tokens(*models[0].model, 4);
  const std::int64_t vocabulary = models[0].model->config().vocab_size;
  std::vector<float> logits[2];
  std::vector<std::byte> saved[2];
  for (std::size_t side = 0; side < 2; ++side) {
    const Model& model = *models[side].model;
    auto runner = Runner::create(model, 64).value();
    auto sequence = Sequence::create(model).value();
    std::mt19937 random(9);
    std::size_t at = 0;
    const auto collect = [&] {
      logits[side].insert(logits[side].end(), runner.logits().begin(), runner.logits().end());
    };
    while (at + 16 < ids.size()) {
      const bool capture = random() % 2 == 0;
      const std::size_t rows = capture ? 1 + random() % 5 : 1 + random() % 15;
      const std::size_t keep = capture ? random() % (rows + 1) : rows;
      const Segment segment{&sequence, std::span(ids).subspan(at, rows), LogitsWanted::All, capture};
      ASSERT_TRUE(runner.forward({&segment, 1}));
      collect();
      if (capture) sequence.commit(static_cast<std::int64_t>(rows), static_cast<std::int64_t>(keep));
      if (model.has_draft() && keep > 0) {
        const DraftSegment draft{&sequence, std::span(ids).subspan(at + 1, keep), runner.wide(0), LogitsWanted::Last};
        ASSERT_TRUE(random() % 2 == 0 ? runner.draft({&draft, 1}) : runner.draft_fill({&draft, 1}));
        collect();
        const std::int32_t next = ids[at + keep];
        const DraftSegment again{&sequence, {&next, 1}, runner.draft_wide(0), LogitsWanted::Last};
        if (random() % 2 == 0) {
          ASSERT_TRUE(runner.draft({&again, 1}));
          collect();
          sequence.truncate_draft(sequence.draft_length() - 1);
        }
      }
      at += keep;
    }
    saved[side] = sequence.save();
  }
  ASSERT_EQ(logits[0].size(), logits[1].size());
  for (std::size_t i = 0; i < logits[0].size(); ++i) {
    ASSERT_EQ(numerics::float_bits(logits[0][i]), numerics::float_bits(logits[1][i]))
        << "row " << static_cast<std::int64_t>(i) / vocabulary << ", id " << static_cast<std::int64_t>(i) % vocabulary;
  }
  EXPECT_EQ(saved[0], saved[1]);
}

TEST_P(CudaModel, BatchedSequencesEqualTheProcessorsAlone) {
  const Loaded cpu = on_cpu(StateType::BF16);
  const Loaded cuda = on_cuda(StateType::BF16);
  const auto ids = tokens(*cpu.model, 5);
  constexpr std::size_t kSequences = 18;
  const auto vocabulary = static_cast<std::size_t>(cpu.model->config().vocab_size);
  auto runner = Runner::create(*cuda.model, 256).value();
  auto alone = Runner::create(*cpu.model, 256).value();
  std::vector<Sequence> together;
  std::vector<Sequence> single;
  for (std::size_t i = 0; i < kSequences; ++i) {
    together.push_back(Sequence::create(*cuda.model).value());
    single.push_back(Sequence::create(*cpu.model).value());
  }
  for (std::size_t step = 0; step < 4; ++step) {
    std::vector<Segment> segments;
    for (std::size_t i = 0; i < kSequences; ++i) {
      const std::size_t rows = step == 0 ? 1 + i % 14 : 1 + (i + step) % 3;
      segments.push_back({&together[i], std::span(ids).subspan(i + 5 * step, rows), LogitsWanted::Last, false});
    }
    ASSERT_TRUE(runner.forward(segments));
    const std::vector<float> batched(runner.logits().begin(), runner.logits().end());
    for (std::size_t i = 0; i < kSequences; ++i) {
      const Segment segment{&single[i], segments[i].tokens, LogitsWanted::Last, false};
      ASSERT_TRUE(alone.forward({&segment, 1}));
      EXPECT_TRUE(same_bits(std::span(batched).subspan(i * vocabulary, vocabulary), alone.logits()))
          << "step " << step << ", sequence " << i;
    }
  }
  for (std::size_t i = 0; i < kSequences; ++i) EXPECT_EQ(together[i].save(), single[i].save()) << "sequence " << i;
}

INSTANTIATE_TEST_SUITE_P(Models, CudaModel, testing::Values("toy-hf", "toy-pack", "demo"), [](const auto& test) {
  std::string name = test.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

/// The published layers, four of them, with few experts, a small vocabulary and a small n-gram table.
artifact::SynthModel published_layers(const std::string& recipe) {
  artifact::SynthModel synth{*artifact::synth_geometry("flash-next"), *artifact::find_recipe(recipe), 11};
  OrderedJson& text = synth.config["text_config"];
  text["num_hidden_layers"] = 4;
  text["layer_types"] = OrderedJson(text["layer_types"].begin(), text["layer_types"].begin() + 4);
  text["vocab_size"] = 6000;
  text["eos_token_id"] = text["bos_token_id"] = 5999;
  text["num_experts"] = 24;
  text["ngram_vocab_size_base"] = 5000;
  return synth;
}

TEST(CudaModelSynth, AModelMadeOnTheDeviceEqualsOneMadeOnTheProcessor) {
  if (const auto tried = backend::create_cuda_backend({}); !tried) {
    GTEST_SKIP() << "no CUDA device: " << tried.error().message;
  }
  for (const char* recipe : {"bare", "quality"}) {
    SCOPED_TRACE(recipe);
    const artifact::SynthModel synth = published_layers(recipe);
    artifact::Artifact shapes = artifact::make_synthetic_on_demand(synth).value();
    shapes.make_ready();  // the n-gram table
    const auto made = Model::load(shapes, backend::create_cuda_backend({}).value(), {}).value();
    const Loaded sent = load(artifact::make_synthetic(synth).value(), StateType::BF16, backend::CpuOptions{});
    std::vector<std::int32_t> ids(90);
    std::mt19937 random(6);
    for (std::int32_t& id : ids) id = static_cast<std::int32_t>(random() % 6000);
    for (const std::int64_t chunk : {std::int64_t{1}, std::int64_t{40}}) {
      auto expected_state = Sequence::create(*sent.model).value();
      auto got_state = Sequence::create(*made).value();
      const Forward expected = run_all(*sent.model, ids, 40, &expected_state);
      const Forward got = run_all(*made, ids, chunk, &got_state);
      EXPECT_TRUE(same_bits(expected.logits, got.logits)) << "chunk " << chunk;
      EXPECT_EQ(expected_state.save(), got_state.save()) << "chunk " << chunk;
    }
  }
}

}  // namespace
}  // namespace lockstep::model
