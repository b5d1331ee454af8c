// The plan of a load against what loading and running really take.
#include "engine/load_plan.hpp"

#include <gtest/gtest.h>
#include <malloc.h>

#include "artifact/model_walk.hpp"
#include "artifact/synth.hpp"
#include "artifact/synth_geometry.hpp"
#include "engine/fixture.hpp"
#include "support/cases.hpp"
#include "support/random_model.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHeapIsCounted = false;
#else
constexpr bool kHeapIsCounted = true;
#endif

namespace lockstep::engine {
namespace {

/// Bytes that the program has taken from the heap.
std::uint64_t heap() {
  const struct mallinfo2 info = ::mallinfo2();
  return info.uordblks + info.hblkhd;
}

LoadSetup setup_of(unsigned seed) {
  LoadSetup setup;
  setup.cpu = model::one_thread();
  if (seed % 3 == 0) setup.cpu.isa = "scalar";
  setup.state = seed % 2 == 0 ? backend::StateType::BF16 : backend::StateType::F32;
  setup.draft = seed % 5 != 0;
  setup.rows = 64;
  setup.tokens = 300;
  setup.cpu.ngram.mode = backend::NgramMode::Resident;
  setup.options.depth = 0;
  return setup;
}

void run_tokens(const model::Model& model, model::Runner& runner, model::Sequence& sequence, std::size_t count) {
  std::mt19937 random(1);
  const auto tokens = random_tokens(random, count, model.config().vocab_size);
  for (std::size_t first = 0; first < count;) {
    const std::size_t rows = std::min<std::size_t>(static_cast<std::size_t>(runner.max_rows()), count - first);
    const model::Segment segment{&sequence, std::span(tokens).subspan(first, rows), model::LogitsWanted::Last, false};
    ASSERT_TRUE(runner.forward({&segment, 1}));
    first += rows;
  }
}

TEST(LoadPlan, IsWhatRandomModelsTake) {
  if (!kHeapIsCounted) GTEST_SKIP() << "a sanitizer's heap does not count";
  for (unsigned seed = 0; seed < test::cases(16); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const artifact::Artifact artifact = test::random_model(seed);
    const LoadSetup setup = setup_of(seed);
    const LoadPlan plan = plan_load(artifact, setup).value();
    std::uint64_t vectors = 0;  // the artifact's own copies of everything are there already
    const artifact::ModelParts parts = artifact::walk_model(artifact.view());
    for (const artifact::VectorPart& part : parts.vectors) vectors += part.values->size() * sizeof(float);
    const std::uint64_t before = heap();
    auto backend = backend::CpuBackend::create(setup.cpu).value();
    model::ModelOptions options;
    options.state = setup.state;
    options.draft = setup.draft;
    const auto model = model::Model::load(artifact, std::move(backend), options).value();
    const std::uint64_t loaded = heap();
    // Weights and vectors, a line of 64 bytes for the end of each, and what describes them.
    const std::uint64_t weights = plan.packed + plan.copied - vectors;
    const std::uint64_t objects = (parts.vectors.size() + parts.matrices.size() + 8) * 768 + (std::uint64_t{64} << 10);
    EXPECT_GE(loaded - before + 1, weights);
    EXPECT_LE(loaded - before, weights + weights / 100 + objects);

    model::Runner runner = model::Runner::create(*model, setup.rows).value();
    model::Sequence sequence = model::Sequence::create(*model).value();
    run_tokens(*model, runner, sequence, static_cast<std::size_t>(setup.tokens));
    const std::uint64_t used = heap() - loaded;
    // States are upper bounds that count the sampler too; scratch grows by quarters.
    EXPECT_LE(used, plan.states + plan.scratch + plan.scratch / 4 + (std::uint64_t{64} << 10));
    std::printf("seed %u: scratch and state %.2f of the plan\n", seed,
                static_cast<double>(used) / static_cast<double>(plan.scratch + sequence.bytes()));
    EXPECT_GE(used + (std::uint64_t{64} << 10), (plan.scratch + sequence.bytes()) * 7 / 10);
  }
}

TEST(LoadPlan, WeightsMadeOnDemandAreInMemoryOnce) {
  if (!kHeapIsCounted) GTEST_SKIP() << "a sanitizer's heap does not count";
  for (const std::string isa : {"", "scalar"}) {
    SCOPED_TRACE(isa);
    const artifact::SynthModel description{artifact::synth_geometry("toy").value(),
                                           artifact::find_recipe("bare").value(), 1};
    LoadSetup setup = setup_of(1);
    setup.cpu.isa = isa;
    setup.on_demand = true;
    const std::uint64_t before = heap();
    artifact::Artifact artifact = artifact::make_synthetic_on_demand(description, 1).value();
    const LoadPlan plan = plan_load(artifact, setup).value();
    artifact.make_ready();
    model::ModelOptions options;
    options.state = setup.state;
    const auto model = model::Model::load(artifact, backend::CpuBackend::create(setup.cpu).value(), options).value();
    const std::uint64_t taken = heap() - before;
    EXPECT_EQ(plan.mapped, 0U);
    EXPECT_GE(taken, plan.packed);
    const artifact::ModelParts parts = artifact::walk_model(artifact.view());
    const std::uint64_t objects =
        (parts.vectors.size() + parts.matrices.size() + 8) * 2048 + (std::uint64_t{128} << 10);
    EXPECT_LE(taken, plan.packed + plan.copied + plan.table + objects);
    std::uint64_t stored = 0;
    for (const artifact::MatrixPart& part : parts.matrices) stored += artifact::matrix_bytes(*part.matrix);
    EXPECT_LT(plan.weights(), stored + stored / 2) << "no more than once, and the largest twice";
  }
}

TEST(LoadPlan, CountsWhatTheFilesOfAModelHold) {
  for (const std::string& directory : {kToyPack, kToyHf}) {
    SCOPED_TRACE(directory);
    const artifact::Artifact artifact = artifact::Artifact::open_shapes(directory).value();
    LoadSetup setup;
    setup.cpu.isa = "scalar";  // lays nothing out
    const LoadPlan plan = plan_load(artifact, setup).value();
    std::uint64_t stored = 0;
    for (const artifact::MatrixPart& part : artifact::walk_model(artifact.view()).matrices) {
      stored += artifact::matrix_bytes(*part.matrix);
    }
    EXPECT_EQ(plan.packed, 0U);
    EXPECT_EQ(plan.mapped + artifact.transposed_bytes(), stored);
    EXPECT_EQ(plan.total(), plan.weights() + plan.table + plan.states + plan.scratch);
  }
}

TEST(LoadPlan, GrowsWithTokensAndSequences) {
  const artifact::Artifact artifact = artifact::Artifact::open_shapes(kToyPack).value();
  LoadSetup setup;
  setup.tokens = 1000;
  const LoadPlan one = plan_load(artifact, setup).value();
  setup.parallel = 5;
  const LoadPlan five = plan_load(artifact, setup).value();
  EXPECT_EQ(five.states, 5 * one.states);
  EXPECT_EQ(five.weights(), one.weights());
  setup.tokens = 64000;
  const LoadPlan longer = plan_load(artifact, setup).value();
  EXPECT_NEAR(static_cast<double>(longer.states - five.states), 5.0 * 63000 * static_cast<double>(one.token),
              5 * 65.0 * 64 * 16 + 5e5);
}

TEST(LoadPlan, RefusesWhatDoesNotFitWithTheFigures) {
  const artifact::Artifact artifact = artifact::Artifact::open_shapes(kToyPack).value();
  const LoadPlan plan = plan_load(artifact, LoadSetup{}).value();
  EXPECT_TRUE(check_fits(plan, plan.total(), "m"));
  EXPECT_TRUE(check_fits(plan, UINT64_MAX, "m"));
  const Status refused = check_fits(plan, plan.total() - 1, "m");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::Limit);
  for (const char* part : {"m: ", "weights", "n-gram table", "state", "scratch", "available", "--force-memory"}) {
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
}

TEST(LoadPlan, AStreamedTableTakesItsCache) {
  const artifact::Artifact artifact = artifact::Artifact::open_shapes(kToyPack).value();
  LoadSetup setup;
  setup.cpu.ngram.mode = backend::NgramMode::Streamed;
  setup.cpu.ngram.cache_bytes = 10000;
  const LoadPlan streamed = plan_load(artifact, setup).value();
  EXPECT_TRUE(streamed.table_streamed);
  EXPECT_EQ(streamed.table, 10000U);
  setup.cpu.ngram.mode = backend::NgramMode::Resident;
  const LoadPlan resident = plan_load(artifact, setup).value();
  EXPECT_EQ(resident.table, resident.table_file);
}

}  // namespace
}  // namespace lockstep::engine
