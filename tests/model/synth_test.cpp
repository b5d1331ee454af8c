// Synthetic models compute: finite activations, logits with a spread, a router that uses its experts.
#include "artifact/synth.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <random>
#include <set>

#include "artifact/synth_geometry.hpp"
#include "model/fixture.hpp"
#include "support/random_model.hpp"

namespace lockstep::model {
namespace {

std::vector<std::int32_t> random_tokens(unsigned seed, std::size_t count, std::int64_t vocabulary) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> tokens(count);
  for (std::int32_t& token : tokens) token = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary));
  return tokens;
}

/// Deviation of a row of logits about its mean; NaN when one is not finite.
double spread(std::span<const float> row) {
  double sum = 0, squares = 0;
  for (const float x : row) {
    sum += x;
    squares += static_cast<double>(x) * x;
  }
  const auto n = static_cast<double>(row.size());
  return std::sqrt(squares / n - sum / n * sum / n);
}

TEST(SynthModel, LogitsKeepAReasonableSpread) {
  for (unsigned seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Loaded loaded = load(test::random_model(seed), backend::StateType::BF16);
    const std::int64_t vocabulary = loaded.model->config().vocab_size;
    const Forward run = run_all(*loaded.model, random_tokens(seed, 400, vocabulary), 64);
    std::set<std::int32_t> best;
    for (std::size_t t = 0; t < 400; ++t) {
      const auto row =
          std::span(run.logits).subspan(t * static_cast<std::size_t>(vocabulary), static_cast<std::size_t>(vocabulary));
      const double deviation = spread(row);
      ASSERT_GT(deviation, 0.5) << "token " << t;
      ASSERT_LT(deviation, 20.0) << "token " << t;
      best.insert(argmax(row));
    }
    EXPECT_GT(best.size(), 8U);
  }
}

/// Experts that the router of `layer` picks for the wide residuals that the layer before leaves.
class RouterCount {
 public:
  RouterCount(const Model& model, std::size_t layer)
      : model_(model),
        weights_(model.weights().layers[layer]),
        u_(buffer(model.config().hidden_size)),
        inject_(buffer(model.config().streams)),
        logits_(buffer(model.config().experts)),
        counts_(static_cast<std::size_t>(model.config().experts), 0) {}

  void add(const float* wide, std::int64_t rows) {
    backend::Backend& backend = model_.backend();
    const auto experts = static_cast<std::size_t>(model_.config().experts);
    const auto chosen = static_cast<std::size_t>(model_.config().experts_per_token);
    std::vector<float> row(experts);
    for (std::int64_t r = 0; r < rows; ++r) {
      backend.hyper_read(weights_.mlp_site, wide + r * model_.config().wide_size(), 1, u_->floats(), inject_->floats());
      backend.project(*weights_.moe.router, u_->floats(), 1, logits_->floats());
      backend.read(row.data(), logits_->data(), experts * sizeof(float));
      std::vector<std::size_t> order(experts);
      for (std::size_t i = 0; i < experts; ++i) order[i] = i;
      std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(chosen), order.end(),
                        [&](std::size_t a, std::size_t b) { return row[a] > row[b]; });
      for (std::size_t i = 0; i < chosen; ++i) ++counts_[order[i]];
      ++rows_;
    }
  }
  /// Of every expert: how often it was picked, as a multiple of the fair share.
  [[nodiscard]] std::vector<double> shares() const {
    std::vector<double> out;
    const double fair = static_cast<double>(rows_) * static_cast<double>(model_.config().experts_per_token) /
                        static_cast<double>(model_.config().experts);
    for (const std::int64_t count : counts_) out.push_back(static_cast<double>(count) / fair);
    return out;
  }

 private:
  [[nodiscard]] backend::BufferPtr buffer(std::int64_t floats) const {
    return model_.backend().allocate(static_cast<std::size_t>(floats) * sizeof(float)).value();
  }

  const Model& model_;
  const LayerWeights& weights_;
  backend::BufferPtr u_, inject_, logits_;
  std::vector<std::int64_t> counts_;
  std::int64_t rows_ = 0;
};

TEST(SynthModel, TheRouterUsesAllExperts) {
  const auto config = artifact::synth_geometry("toy");
  for (const std::uint64_t seed : {1U, 2U}) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto artifact = artifact::make_synthetic({*config, *artifact::find_recipe("bare"), seed}, 1);
    ASSERT_TRUE(artifact) << artifact.error().message;
    const Loaded loaded = load(std::move(*artifact), backend::StateType::BF16);
    auto runner = Runner::create(*loaded.model, 64).value();
    auto sequence = Sequence::create(*loaded.model).value();
    std::vector<RouterCount> counts;
    for (std::size_t layer = 0; layer < 4; ++layer) counts.emplace_back(*loaded.model, layer);
    runner.on_layer = [&](std::int64_t layer, const float* wide, std::int64_t rows) {
      if (layer + 1 < 4) counts[static_cast<std::size_t>(layer) + 1].add(wide, rows);
    };
    const auto tokens = random_tokens(static_cast<unsigned>(seed), 320, 6144);
    for (std::size_t at = 0; at < tokens.size(); at += 64) {
      const Segment segment{&sequence, std::span(tokens).subspan(at, 64), LogitsWanted::None, false};
      ASSERT_TRUE(runner.forward({&segment, 1}));
    }
    for (std::size_t layer = 1; layer < 4; ++layer) {
      const std::vector<double> shares = counts[layer].shares();
      EXPECT_GT(*std::min_element(shares.begin(), shares.end()), 0.15) << "layer " << layer;
      EXPECT_LT(*std::max_element(shares.begin(), shares.end()), 3.0) << "layer " << layer;
    }
  }
}

TEST(SynthModel, TheMakingOfAMatrixCanBeCalledOff) {
  std::atomic<bool> cancel{false};
  const artifact::SynthModel description{artifact::synth_geometry("toy").value(), *artifact::find_recipe("bare"), 1};
  auto artifact = artifact::make_synthetic_on_demand(description, 1, &cancel).value();
  std::vector<std::byte> memory;
  EXPECT_NE(artifact.readable(artifact.view().head, memory).codes, nullptr);
  cancel = true;
  std::vector<std::byte> none;
  EXPECT_EQ(artifact.readable(artifact.view().head, none).codes, nullptr);
  artifact.make_ready();
  for (const artifact::LayerView& layer : artifact.view().layers) {
    EXPECT_TRUE(!layer.ple || layer.ple->table.table->codes == nullptr);
  }
  ModelOptions options;
  options.cancel = &cancel;
  const auto model = Model::load(artifact, backend::CpuBackend::create(one_thread()).value(), options);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().kind, ErrorKind::Cancelled);
}

}  // namespace
}  // namespace lockstep::model
