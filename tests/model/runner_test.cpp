// Steps that cannot run are errors, and leave every sequence as it was.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <random>
#include <ranges>

#include "artifact/toy_model.hpp"
#include "model/fixture.hpp"
#include "model/limited_backend.hpp"
#include "support/forwarding_backend.hpp"

namespace lockstep::model {
namespace {

class RunnerTest : public testing::Test {
 protected:
  /// Expects that `step` fails with a message containing `part` and changes nothing.
  void expect_refused(const std::function<Status()>& step, const std::string& part) {
    const auto before = sequence_.save();
    const Status status = step();
    ASSERT_FALSE(status);
    EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
    EXPECT_EQ(sequence_.save(), before);
  }
  [[nodiscard]] Status forward(std::span<const std::int32_t> tokens, bool capture) {
    const Segment segment{&sequence_, tokens, LogitsWanted::Last, capture};
    return runner_.forward({&segment, 1});
  }

  Loaded loaded_ = load(std::string(LOCKSTEP_TEST_DATA) + "/toy-pack", backend::StateType::BF16);
  Runner runner_ = Runner::create(*loaded_.model, 16).value();
  Sequence sequence_ = Sequence::create(*loaded_.model).value();
};

TEST_F(RunnerTest, SegmentsWithoutTokens) {
  const std::vector<std::int32_t> tokens{1, 2, 3};
  ASSERT_TRUE(forward(tokens, false));
  expect_refused([&] { return forward({}, false); }, "no tokens");
  expect_refused([&] { return forward({}, true); }, "no tokens");
  Sequence other = Sequence::create(*loaded_.model).value();
  const std::array segments{Segment{&sequence_, tokens, LogitsWanted::All, false},
                            Segment{&other, {}, LogitsWanted::Last, false}};
  expect_refused([&] { return runner_.forward(segments); }, "no tokens");
  const DraftSegment draft{&sequence_, {}, runner_.wide(0), LogitsWanted::Last};
  expect_refused([&] { return runner_.draft({&draft, 1}); }, "no tokens");
  expect_refused([&] { return runner_.draft_fill({&draft, 1}); }, "no tokens");
}

TEST_F(RunnerTest, MoreRowsThanFit) {
  const std::vector<std::int32_t> tokens(17, 5);
  expect_refused([&] { return forward(tokens, false); }, "17 rows");
  const std::array segments{Segment{&sequence_, std::span(tokens).first(16), LogitsWanted::Last, false},
                            Segment{&sequence_, std::span(tokens).first(1), LogitsWanted::Last, false}};
  expect_refused([&] { return runner_.forward(segments); }, "17 rows");
}

TEST_F(RunnerTest, DrawsThatAreNotOneForEachWantedRow) {
  const std::vector<std::int32_t> tokens{1, 2, 3};
  const std::vector<backend::DrawRequest> draws(2);
  for (const LogitsWanted wanted : {LogitsWanted::None, LogitsWanted::Last, LogitsWanted::All}) {
    const Segment segment{&sequence_, tokens, wanted, false, draws};
    expect_refused([&] { return runner_.forward({&segment, 1}); }, "2 tokens to be drawn");
  }
}

// All captured rows may be rejected, so there can be only as many as the ring of raw index keys lets be taken back.
TEST_F(RunnerTest, CapturedRowsAreAsManyAsCanBeTakenBack) {
  std::mt19937 random(1);
  const auto most = static_cast<std::size_t>(backend::raw_key_ring(4) - 4);
  const std::vector<std::int32_t> tokens(most + 1, 9);
  expect_refused([&] { return forward(tokens, true); }, "captured");
  for (std::size_t start = 0; start < 8; ++start) {
    if (start > 0) {
      const auto token = static_cast<std::int32_t>(random() % 512);
      ASSERT_TRUE(forward({&token, 1}, false));
    }
    const auto before = sequence_.save();
    ASSERT_TRUE(forward(std::span(tokens).first(most), true));
    sequence_.commit(static_cast<std::int64_t>(most), 0);
    EXPECT_EQ(sequence_.save(), before) << start;
  }
}

// Memory that runs out at any allocation of a step, the last one included, leaves every sequence as it was.
TEST(RunnerMemory, AStepWithoutMemoryChangesNothing) {
  int left = 1 << 20;  // allocations until they are refused
  auto artifact = artifact::Artifact::open(LOCKSTEP_TEST_DATA "/toy-pack").value();
  auto limited = std::make_unique<LimitedBackend>(backend::CpuBackend::create(one_thread()).value(),
                                                  [&](std::size_t) { return --left < 0; });
  const auto model = Model::load(artifact, std::move(limited), {}).value();
  const std::vector<std::int32_t> tokens{5, 17, 300, 2, 44, 44, 9};
  int refused = 0;
  for (const bool capture : {false, true}) {
    for (int allowed = 0;; ++allowed) {
      SCOPED_TRACE(allowed);
      left = 1 << 20;
      auto runner = Runner::create(*model, 128).value();
      auto first = Sequence::create(*model).value();
      auto second = Sequence::create(*model).value();
      const Segment start{&first, tokens, LogitsWanted::None, false};
      ASSERT_TRUE(runner.forward({&start, 1}));
      const auto fork = first.fork().value();  // shared pages are copied by the step
      const auto before = first.save();
      const auto empty = second.save();
      const std::array step{Segment{&first, tokens, LogitsWanted::All, capture},
                            Segment{&second, tokens, LogitsWanted::All, capture}};
      left = allowed;
      const Status status = runner.forward(step);
      left = 1 << 20;
      if (status) break;
      ++refused;
      EXPECT_EQ(status.error().kind, ErrorKind::Limit);
      EXPECT_EQ(first.save(), before);
      EXPECT_EQ(second.save(), empty);
      ASSERT_TRUE(runner.forward(step));
    }
  }
  EXPECT_GE(refused, 6);
}

TEST(RunnerMemory, ADraftWithoutMemoryChangesNothing) {
  int left = 1 << 20;
  auto artifact = artifact::Artifact::open(LOCKSTEP_TEST_DATA "/toy-pack").value();
  auto limited = std::make_unique<LimitedBackend>(backend::CpuBackend::create(one_thread()).value(),
                                                  [&](std::size_t) { return --left < 0; });
  const auto model = Model::load(artifact, std::move(limited), {}).value();
  const std::vector<std::int32_t> tokens{5, 17, 300, 2, 44, 44, 9};
  int refused = 0;
  for (int allowed = 0;; ++allowed) {
    SCOPED_TRACE(allowed);
    left = 1 << 20;
    auto runner = Runner::create(*model, 128).value();
    auto sequence = Sequence::create(*model).value();
    const Segment start{&sequence, tokens, LogitsWanted::Last, false};
    ASSERT_TRUE(runner.forward({&start, 1}));
    const auto before = sequence.save();
    const DraftSegment draft{&sequence, tokens, runner.wide(0), LogitsWanted::All};
    left = allowed;
    const Status status = runner.draft({&draft, 1});
    left = 1 << 20;
    if (status) break;
    ++refused;
    EXPECT_EQ(sequence.save(), before);
  }
  EXPECT_GE(refused, 2);
}

TEST(ModelLoad, StopsWhenItIsCancelled) {
  const artifact::Artifact artifact = artifact::Artifact::open(LOCKSTEP_TEST_DATA "/toy-pack").value();
  std::atomic<bool> cancel{false};
  ModelOptions options;
  options.cancel = &cancel;
  std::uint64_t last = 0;
  options.progress = [&](std::uint64_t done, std::uint64_t /*total*/) {
    last = done;
    if (done > 0) cancel.store(true);
  };
  const auto model = Model::load(artifact, backend::CpuBackend::create(one_thread()).value(), options);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().kind, ErrorKind::Cancelled);
  EXPECT_LT(last, upload_bytes(artifact.view(), true, *backend::CpuBackend::create(one_thread()).value()));
}

/// A backend that copies the table, in three pieces.
class CopyingBackend final : public test::ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  static constexpr std::uint64_t kPiece = 1000;
  Status set_ngram_table(const artifact::NgramTableView& table, const backend::CopyWatch& watch) override {
    for (std::uint64_t piece = 1; piece <= 3; ++piece) {
      if (watch.cancel != nullptr && watch.cancel->load()) return fail(ErrorKind::Cancelled, "interrupted");
      watch.copied(piece * kPiece);
    }
    return ForwardingBackend::set_ngram_table(table, watch);
  }
  [[nodiscard]] std::uint64_t ngram_copy_bytes(const artifact::NgramTableView&) const override { return 3 * kPiece; }
};

TEST(ModelLoad, ProgressCountsTheTableThatIsCopied) {
  const artifact::Artifact artifact = artifact::Artifact::open(LOCKSTEP_TEST_DATA "/toy-pack").value();
  const auto copying = [] {
    return std::make_unique<CopyingBackend>(backend::CpuBackend::create(one_thread()).value());
  };
  const std::uint64_t without = upload_bytes(artifact.view(), true, *backend::CpuBackend::create(one_thread()).value());
  EXPECT_EQ(upload_bytes(artifact.view(), true, *copying()), without + 3 * CopyingBackend::kPiece);
  std::vector<std::uint64_t> seen;
  ModelOptions options;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_EQ(total, without + 3 * CopyingBackend::kPiece);
    seen.push_back(done);
  };
  ASSERT_TRUE(Model::load(artifact, copying(), options));
  EXPECT_TRUE(std::ranges::is_sorted(seen));
  EXPECT_EQ(seen.back(), without + 3 * CopyingBackend::kPiece);
  const auto pieces = std::ranges::count_if(std::views::iota(std::size_t{1}, seen.size()), [&](std::size_t i) {
    return seen[i] - seen[i - 1] == CopyingBackend::kPiece;
  });
  EXPECT_GE(pieces, 3);
  // A cancelled copy ends the load.
  std::atomic<bool> cancel{false};
  options.cancel = &cancel;
  std::uint64_t last = 0;
  options.progress = [&](std::uint64_t done, std::uint64_t) {
    if (done - last == CopyingBackend::kPiece) cancel.store(true);
    last = done;
  };
  const auto model = Model::load(artifact, copying(), options);
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().kind, ErrorKind::Cancelled);
}

TEST(ModelLoad, ABiasIsInTheFileOfTheBiases) {
  artifact::ToyModel toy = artifact::ToyModel::load("toy-pack");
  const std::string name = "language_model.lm_head.biases";
  const std::string file = "model-00002-of-00002.safetensors";
  artifact::ToyTensor biases = toy.at(name);
  toy.erase(name);
  biases.bytes[0] = '\x80';
  biases.bytes[1] = '\x7f';
  toy.files.at(file).tensors[name] = biases;
  Json index = *parse_json(toy.texts.at("model.safetensors.index.json"), "index");
  index["weight_map"][name] = file;
  toy.texts["model.safetensors.index.json"] = index.dump();
  const artifact::Scratch scratch;
  toy.write(scratch.path());
  const auto artifact = artifact::Artifact::open(scratch.path()).value();
  const auto model = Model::load(artifact, backend::CpuBackend::create(one_thread()).value(), {});
  ASSERT_FALSE(model);
  EXPECT_NE(model.error().message.find(file + ": tensor '" + name + "'"), std::string::npos) << model.error().message;
}

TEST(ModelLoad, NonFiniteScalesAreNamed) {
  const struct {
    const char* tensor;
    std::size_t element;
    std::uint16_t bits;
    const char* message;
  } cases[] = {
      {"language_model.lm_head.scales", 5, 0x7fc0, "tensor 'language_model.lm_head.scales': row 2, group 1 is nan"},
      {"language_model.lm_head.biases", 0, 0xff80, "tensor 'language_model.lm_head.biases': row 0, group 0 is -inf"},
      {"language_model.model.embed_tokens.scales", 1023, 0x7f80,
       "tensor 'language_model.model.embed_tokens.scales': row 511, group 1 is inf"},
      {"mtp.layers.0.mlp.switch_mlp.gate_proj.scales", 260, 0x7fc0,
       "tensor 'mtp.layers.0.mlp.switch_mlp.gate_proj.scales': matrix 1, row 1, group 0 is nan"},
      {"language_model.lm_head.scales", 4, 0xff7f,
       "tensor 'language_model.lm_head.scales': row 2, group 0 is -3.3895314e+38"},
  };
  for (const auto& wrong : cases) {
    SCOPED_TRACE(wrong.tensor);
    artifact::ToyModel toy = artifact::ToyModel::load("toy-pack");
    std::memcpy(toy.at(wrong.tensor).bytes.data() + 2 * wrong.element, &wrong.bits, 2);
    const artifact::Scratch scratch;
    toy.write(scratch.path());
    auto artifact = artifact::Artifact::open(scratch.path()).value();
    const auto load_with = [&](bool draft) {
      ModelOptions options;
      options.draft = draft;
      return Model::load(artifact, backend::CpuBackend::create(one_thread()).value(), options);
    };
    const auto model = load_with(true);
    ASSERT_FALSE(model);
    const std::string file = std::string_view(wrong.tensor).starts_with("mtp.") ? "mtp" : "model-00001-of-00002";
    EXPECT_EQ(model.error().message,
              fmt::format("{}: {}.safetensors: {}, {}", scratch.path().string(), file, wrong.message,
                          wrong.bits == 0xff7f ? "too large for finite weights" : "not a finite number"));
    // Without the draft layer its tensors do not matter.
    EXPECT_EQ(load_with(false).has_value(), std::string_view(wrong.tensor).starts_with("mtp."));
  }
}

}  // namespace
}  // namespace lockstep::model
