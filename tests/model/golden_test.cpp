// The scalar canon against float32 logits of the public reference implementation, on two tiny models.
#include <gtest/gtest.h>

#include <cstdio>

#include "model/fixture.hpp"

namespace lockstep::model {
namespace {

using backend::StateType;

const std::string kData = LOCKSTEP_TEST_DATA;
constexpr double kTolerance = 2e-4;  // of the logits' range of a row

struct Case {
  const char* model;
  bool unquantised;  ///< activations left in binary32: shows how much of the error they cause
};

class Golden : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    directory_ = kData + "/" + GetParam().model;
    backend::CpuOptions options = one_thread();
    options.unquantised_activations = GetParam().unquantised;
    loaded_ = std::make_unique<Loaded>(load(directory_, StateType::F32, options));
    auto file = artifact::SafetensorsFile::open(directory_ + "/golden.safetensors");
    ASSERT_TRUE(file) << file.error().message;
    file_ = std::make_unique<artifact::SafetensorsFile>(std::move(*file));
  }

  [[nodiscard]] std::vector<std::string> prompts() const {
    std::vector<std::string> names;
    for (const artifact::TensorInfo& tensor : file_->tensors()) {
      if (tensor.name.starts_with("prompt") && tensor.name.ends_with(".ids")) {
        names.push_back(tensor.name.substr(0, tensor.name.size() - 4));
      }
    }
    return names;
  }
  [[nodiscard]] std::size_t vocabulary() const { return static_cast<std::size_t>(loaded_->model->config().vocab_size); }

  std::string directory_;
  std::unique_ptr<Loaded> loaded_;
  std::unique_ptr<artifact::SafetensorsFile> file_;
};

TEST_P(Golden, LogitsOfEveryPosition) {
  ASSERT_FALSE(prompts().empty());
  for (const std::string& name : prompts()) {
    const auto ids = golden_ids(*file_, name + ".ids");
    const auto expected = golden<float>(*file_, name + ".logits");
    const Forward result = run_all(*loaded_->model, ids, 0);
    ASSERT_EQ(result.logits.size(), expected.size());
    double worst = 0;
    for (std::size_t row = 0; row < ids.size(); ++row) {
      const std::size_t at = row * vocabulary();
      worst = std::max(worst, relative_error(std::span(result.logits).subspan(at, vocabulary()),
                                             std::span(expected).subspan(at, vocabulary())));
    }
    std::printf("%s%s %s: %zu tokens, worst error %.1e of the range\n", GetParam().model,
                GetParam().unquantised ? " (unquantised activations)" : "", name.c_str(), ids.size(), worst);
    EXPECT_LE(worst, kTolerance) << name;
  }
}

TEST_P(Golden, WideResidualAfterEveryLayer) {
  const auto ids = golden_ids(*file_, "trace.ids");
  const auto expected = golden<float>(*file_, "trace.wide_after_layer");
  const auto wide = static_cast<std::size_t>(loaded_->model->config().wide_size());
  auto runner = Runner::create(*loaded_->model, static_cast<std::int64_t>(ids.size()));
  auto sequence = Sequence::create(*loaded_->model);
  ASSERT_TRUE(runner && sequence);
  std::size_t layers = 0;
  runner->on_layer = [&](std::int64_t layer, const float* x, std::int64_t rows) {
    const std::size_t size = static_cast<std::size_t>(rows) * wide;
    const double error =
        relative_error({x, size}, std::span(expected).subspan(static_cast<std::size_t>(layer) * size, size));
    std::printf("%s layer %d: worst error %.1e of the range\n", GetParam().model, static_cast<int>(layer), error);
    EXPECT_LE(error, kTolerance) << "layer " << layer;
    ++layers;
  };
  const Segment segment{&*sequence, ids, LogitsWanted::All, false};
  ASSERT_TRUE(runner->forward({&segment, 1}));
  EXPECT_EQ(layers, loaded_->model->config().layers.size());
  EXPECT_LE(relative_error(runner->logits(), golden<float>(*file_, "trace.logits")), kTolerance);
}

TEST_P(Golden, GreedyTokens) {
  const auto prompt = golden_ids(*file_, "greedy.prompt");
  const auto expected = golden_ids(*file_, "greedy.ids");
  auto runner = Runner::create(*loaded_->model, static_cast<std::int64_t>(prompt.size()));
  auto sequence = Sequence::create(*loaded_->model);
  ASSERT_TRUE(runner && sequence);
  std::vector<std::int32_t> next = prompt;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Segment segment{&*sequence, next, LogitsWanted::Last, false};
    ASSERT_TRUE(runner->forward({&segment, 1}));
    next = {argmax(runner->logits())};
    ASSERT_EQ(next.front(), expected[i]) << "token " << i;
  }
}

TEST_P(Golden, DraftHead) {
  for (const std::string& name : prompts()) {
    const auto ids = golden_ids(*file_, name + ".ids");
    const auto expected = golden<float>(*file_, name + ".mtp_logits");
    const auto drafts = golden_ids(*file_, name + ".mtp_drafts");
    auto runner = Runner::create(*loaded_->model, static_cast<std::int64_t>(ids.size()));
    auto sequence = Sequence::create(*loaded_->model);
    ASSERT_TRUE(runner && sequence);
    const Segment segment{&*sequence, ids, LogitsWanted::Last, false};
    ASSERT_TRUE(runner->forward({&segment, 1}));
    std::vector<std::int32_t> next(ids.begin() + 1, ids.end());
    next.push_back(argmax(runner->logits()));
    const DraftSegment all{&*sequence, next, runner->wide(0), LogitsWanted::All};
    ASSERT_TRUE(runner->draft({&all, 1}));
    double worst = 0;
    for (std::size_t row = 0; row < ids.size(); ++row) {
      worst = std::max(worst, relative_error(runner->logits().subspan(row * vocabulary(), vocabulary()),
                                             std::span(expected).subspan(row * vocabulary(), vocabulary())));
    }
    std::printf("%s %s: draft logits, worst error %.1e of the range\n", GetParam().model, name.c_str(), worst);
    EXPECT_LE(worst, kTolerance) << name;

    std::int32_t token = argmax(runner->logits().last(vocabulary()));
    std::vector<float> hidden(static_cast<std::size_t>(loaded_->model->config().wide_size()));
    std::copy_n(runner->draft_wide(static_cast<std::int64_t>(ids.size()) - 1), hidden.size(), hidden.begin());
    for (std::size_t i = 0; i < drafts.size(); ++i) {
      ASSERT_EQ(token, drafts[i]) << name << ", draft " << i;
      const DraftSegment step{&*sequence, {&token, 1}, hidden.data(), LogitsWanted::Last};
      ASSERT_TRUE(runner->draft({&step, 1}));
      token = argmax(runner->logits());
      std::copy_n(runner->draft_wide(0), hidden.size(), hidden.begin());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Toys, Golden,
                         testing::Values(Case{"toy-hf", false}, Case{"toy-pack", false}, Case{"toy-pack", true}),
                         [](const auto& test) {
                           std::string name = test.param.model;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + (test.param.unquantised ? "_unquantised" : "");
                         });

}  // namespace
}  // namespace lockstep::model
