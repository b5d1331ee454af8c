// Every operation of the CUDA backend against the CPU backend on the same inputs: equal bits, outputs and states.
// Without a device the tests skip themselves. A difference names the operation and its first index and ends nothing, so
// that one run shows every difference.
#include <cmath>
#include <limits>

#include "backend/cuda/cuda_backend.hpp"
#include "backend/fixture.hpp"

namespace lockstep::backend {
namespace {

using test::Rig;
using test::Source;
using test::WeightStore;

std::unique_ptr<Backend> open_cuda(std::string& reason) {
  auto made = create_cuda_backend({});
  if (made) return std::move(*made);
  reason = made.error().message;
  return nullptr;
}

std::unique_ptr<Backend> open_cpu() {
  CpuOptions options;
  return CpuBackend::create(options).value();
}

/// Dimensions of the published model where they select a kernel, few heads and experts.
artifact::ModelConfig wide_config() {
  artifact::ModelConfig c = test::tiny_config();
  c.vocab_size = 300;
  c.hidden_size = 640;
  c.attention_heads = 24;
  c.kv_heads = 2;
  c.head_dim = 256;
  c.rotary_dim = 64;
  c.indexer_heads = 4;
  c.indexer_dim = 128;
  c.indexer_budget = 256;
  c.linear_key_heads = 2;
  c.linear_value_heads = 6;
  c.linear_key_dim = 128;
  c.linear_value_dim = 128;
  c.streams = 4;
  c.hc_lowrank = 320;
  c.experts = 40;
  c.experts_per_token = 10;
  c.expert_dim = 640;
  c.shared_expert_dim = 640;
  c.ple_dim = 256;
  c.ple_conv_kernel = 4;
  return c;
}

/// Both backends with the same weights.
struct Pair {
  Pair(unsigned seed, std::unique_ptr<Backend> cuda, StateType state, const artifact::ModelConfig& config)
      : cpu(seed, open_cpu(), state, config), device(seed, std::move(cuda), state, config) {}
  Rig cpu, device;
};

void expect_same(const std::string& what, std::span<const float> expected, std::span<const float> got) {
  ASSERT_EQ(expected.size(), got.size()) << what;
  std::size_t different = 0;
  std::size_t first = 0;
  for (std::size_t i = expected.size(); i-- > 0;) {
    const bool same = numerics::float_bits(expected[i]) == numerics::float_bits(got[i]) ||
                      (expected[i] != expected[i] && got[i] != got[i]);
    if (same) continue;
    ++different;
    first = i;
  }
  if (different == 0) return;
  ADD_FAILURE() << what << ": " << different << " of " << expected.size() << " differ, the first at " << first
                << ": expected " << std::hexfloat << expected[first] << ", got " << got[first];
}

/// An array on a backend.
class Array {
 public:
  Array(Backend& backend, std::span<const float> values) : backend_(backend) {
    buffer_ = backend.allocate(values.size_bytes()).value();
    backend.write(buffer_->data(), values.data(), values.size_bytes());
  }
  Array(Backend& backend, std::int64_t size)
      : Array(backend, std::vector<float>(static_cast<std::size_t>(size), 7e7F)) {}
  [[nodiscard]] float* data() { return buffer_->floats(); }
  [[nodiscard]] std::vector<float> values() { return test::download(backend_, *buffer_); }

 private:
  Backend& backend_;
  BufferPtr buffer_;
};

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    cuda_ = open_cuda(reason_);
    if (cuda_ == nullptr) GTEST_SKIP() << "no CUDA device: " << reason_;
  }
  std::unique_ptr<Backend> next() {
    if (cuda_ != nullptr) return std::move(cuda_);
    return open_cuda(reason_);
  }

 private:
  std::unique_ptr<Backend> cuda_;
  std::string reason_;
};

/// Activations with everything that a group can hold: usual numbers, zeros, tiny and huge ones, denormals.
std::vector<float> awkward(Source& source, std::int64_t rows, std::int64_t cols) {
  std::vector<float> x = source.values(rows * cols);
  for (std::int64_t first = 0; first + 32 <= rows * cols; first += 32) {
    const std::int64_t kind = source.below(12);
    for (std::int64_t i = first; i < first + 32; ++i) {
      float& value = x[static_cast<std::size_t>(i)];
      if (kind == 0) value = 0;
      if (kind == 1) value *= 1e-36F;
      if (kind == 2) value *= 1e-41F;
      if (kind == 3) value *= 1e15F;
      if (kind == 4 && i % 7 != 0) value = -0.0F;
      if (kind == 5) value = value < 0 ? -2.0F : 2.0F;
    }
  }
  return x;
}

void compare_product(Backend& cpu, Backend& cuda, const artifact::MatrixView& view, std::int64_t tokens, Source& source,
                     const std::string& what) {
  const auto x = awkward(source, tokens, view.cols);
  const MatrixPtr on_cpu = cpu.upload(view).value();
  const MatrixPtr on_cuda = cuda.upload(view).value();
  Array x_cpu(cpu, x);
  Array x_cuda(cuda, x);
  Array y_cpu(cpu, tokens * view.rows);
  Array y_cuda(cuda, tokens * view.rows);
  cpu.project(*on_cpu, x_cpu.data(), tokens, y_cpu.data());
  cuda.project(*on_cuda, x_cuda.data(), tokens, y_cuda.data());
  expect_same(what, y_cpu.values(), y_cuda.values());
}

TEST_F(Cuda, AffineProducts) {
  const auto cpu = open_cpu();
  const auto cuda = next();
  for (unsigned seed = 0; seed < 2; ++seed) {
    Source source(seed);
    WeightStore store(seed + 100);
    for (const int bits : {2, 3, 4, 5, 6, 8}) {
      for (const std::int64_t cols : {32, 64, 96, 128, 320, 384, 512, 544, 640, 1024, 2560, 6144, 10240}) {
        for (const int group : {32, 64, 128}) {
          if (cols % group != 0) continue;
          constexpr std::array<std::int64_t, 8> kTokens{1, 2, 3, 4, 7, 8, 9, 33};
          const std::int64_t rows = 1 + source.below(70);
          const std::int64_t tokens = kTokens.at(static_cast<std::size_t>(source.below(8)));
          compare_product(
              *cpu, *cuda, store.affine(rows, cols, bits, 1, group), tokens, source,
              fmt::format("seed {}: {} bits, group {}, [{}, {}], {} tokens", seed, bits, group, rows, cols, tokens));
        }
      }
    }
  }
  EXPECT_TRUE(cuda->status());
}

/// One activation row and many output rows.
TEST_F(Cuda, SingleRowsOfLargeMatrices) {
  const auto cpu = open_cpu();
  const auto cuda = next();
  Source source(7);
  WeightStore store(8);
  for (const std::int64_t cols : {64, 128, 512, 576, 640, 2560, 4096}) {
    for (const std::int64_t rows : {4223, 17000, 40000}) {
      if (rows * cols > 50'000'000) continue;
      compare_product(*cpu, *cuda, store.affine(rows, cols, 4, 1, 64), 1, source,
                      fmt::format("[{}, {}], one row", rows, cols));
    }
  }
  EXPECT_TRUE(cuda->status());
}

TEST_F(Cuda, DenseProducts) {
  const auto cpu = open_cpu();
  const auto cuda = next();
  Source source(1);
  WeightStore store(2);
  for (const artifact::DType type : {artifact::DType::BF16, artifact::DType::F16, artifact::DType::F32}) {
    for (const std::int64_t cols : {1, 31, 32, 33, 64, 96, 255, 256, 320, 511, 640, 2560, 10240}) {
      for (const std::int64_t tokens : {1, 2, 4, 5, 9}) {
        const std::int64_t rows = 1 + source.below(40);
        compare_product(*cpu, *cuda, store.dense(rows, cols, type), tokens, source,
                        fmt::format("{} [{}, {}], {} tokens", artifact::dtype_name(type), rows, cols, tokens));
      }
    }
  }
  EXPECT_TRUE(cuda->status());
}

TEST_F(Cuda, NonFiniteGroupsGiveNotANumber) {
  const auto cpu = open_cpu();
  const auto cuda = next();
  WeightStore store(3);
  const auto view = store.affine(20, 256, 4, 1, 64);
  const MatrixPtr a = cpu->upload(view).value();
  const MatrixPtr b = cuda->upload(view).value();
  Source source(3);
  auto x = source.values(3 * 256);
  x[300] = std::numeric_limits<float>::infinity();
  x[700] = std::numeric_limits<float>::quiet_NaN();
  Array x_cpu(*cpu, x);
  Array x_cuda(*cuda, x);
  Array y_cpu(*cpu, 60);
  Array y_cuda(*cuda, 60);
  cpu->project(*a, x_cpu.data(), 3, y_cpu.data());
  cuda->project(*b, x_cuda.data(), 3, y_cuda.data());
  expect_same("product with non-finite groups", y_cpu.values(), y_cuda.values());
}

/// State of one sequence on one backend.
struct State {
  State(Backend& backend, const artifact::ModelConfig& c, std::int64_t page_count, StateType type)
      : delta(backend, zeros(c.linear_value_heads * c.linear_key_dim * c.linear_value_dim)),
        next(backend, zeros(c.linear_value_heads * c.linear_key_dim * c.linear_value_dim)),
        conv(backend, zeros((c.conv_kernel - 1) * c.conv_channels())),
        ple(backend, zeros((c.ple_conv_kernel - 1) * c.ngram_size * c.wide_size())),
        raw(backend, zeros(raw_key_ring(c.indexer_ratio) * c.indexer_dim)),
        keys(backend, zeros(8 * c.linear_key_heads * c.linear_key_dim)),
        deltas(backend, zeros(8 * c.value_size())),
        decays(backend, zeros(8 * c.linear_value_heads)),
        captured_conv(backend, zeros(8 * c.conv_channels())),
        captured_ple(backend, zeros(8 * c.wide_size())) {
    for (std::int64_t i = 0; i < page_count; ++i) {
      pages.push_back(backend.allocate(page_layout(c, type).bytes).value());
      table.push_back(pages.back()->data());
    }
  }
  static std::vector<float> zeros(std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n)); }

  Array delta, next, conv, ple, raw, keys, deltas, decays, captured_conv, captured_ple;
  std::vector<BufferPtr> pages;
  std::vector<std::byte*> table;
  std::int64_t length = 0;
};

/// One side of a comparison: a backend's operations on its own copies of the same inputs.
class Side {
 public:
  Side(Rig& rig, std::int64_t sequences, std::int64_t pages, StateType type) : rig_(rig) {
    for (std::int64_t i = 0; i < sequences; ++i) states_.emplace_back(*rig.backend, rig.config, pages, type);
  }
  State& state(std::size_t i) { return *std::next(states_.begin(), static_cast<std::ptrdiff_t>(i)); }

  std::vector<float> embed(std::span<const std::int32_t> tokens) {
    return made(std::ssize(tokens) * rig_.config.wide_size(),
                [&](float* out) { rig_.backend->embed(*rig_.embedding, tokens, out); });
  }
  std::vector<float> ple(std::span<const float> e, std::span<const Run> runs, std::span<const float> x, bool capture) {
    std::vector<PleSlot> slots;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      slots.push_back({runs[i], {state(i).ple.data(), capture ? state(i).captured_ple.data() : nullptr}});
    }
    Array in(*rig_.backend, e);
    Array out(*rig_.backend, x);
    rig_.backend->ple_inject(rig_.ple, in.data(), slots, rows(runs), out.data());
    return out.values();
  }
  std::vector<float> hyper(std::span<const float> x, std::int64_t rows, bool with_inject) {
    Array in(*rig_.backend, x);
    Array inject(*rig_.backend, rows * rig_.config.streams);
    auto u = made(rows * rig_.config.hidden_size, [&](float* out) {
      rig_.backend->hyper_read(rig_.hyper, in.data(), rows, out, with_inject ? inject.data() : nullptr);
    });
    const auto weights = inject.values();
    u.insert(u.end(), weights.begin(), weights.end());
    return u;
  }
  std::vector<float> write(std::span<const float> inject, std::span<const float> y, std::span<const float> x) {
    Array weights(*rig_.backend, inject);
    Array in(*rig_.backend, y);
    Array out(*rig_.backend, x);
    rig_.backend->hyper_write(weights.data(), in.data(), std::ssize(y) / rig_.config.hidden_size, out.data());
    return out.values();
  }
  std::vector<float> delta(std::span<const float> u, std::span<const Run> runs, bool capture) {
    std::vector<DeltaSlot> slots;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      State& s = state(i);
      DeltaSlot slot;
      slot.run = runs[i];
      slot.state = s.delta.data();
      slot.next_state = capture ? s.next.data() : s.delta.data();
      slot.conv = {s.conv.data(), capture ? s.captured_conv.data() : nullptr};
      if (capture) {
        slot.keys = s.keys.data();
        slot.deltas = s.deltas.data();
        slot.decays = s.decays.data();
      }
      slots.push_back(slot);
    }
    last_delta_ = slots;
    return narrow(u, rows(runs), [&](const float* in, std::int64_t n, float* out) {
      rig_.backend->delta_net(rig_.delta, in, slots, n, out);
    });
  }
  void commit(std::int64_t keep) {
    for (const DeltaSlot& slot : last_delta_) {
      const std::int64_t kept = std::min(keep, slot.run.rows);
      rig_.backend->commit_delta(slot, kept);
      rig_.backend->commit_conv(slot.conv, rig_.config.conv_kernel - 1, rig_.config.conv_channels(), kept);
    }
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const ConvSlot slot{state(i).ple.data(), state(i).captured_ple.data()};
      const std::int64_t kept = std::min(keep, last_delta_[i].run.rows);
      rig_.backend->commit_conv(slot, (rig_.config.ple_conv_kernel - 1) * rig_.config.ngram_size,
                                rig_.config.wide_size(), kept);
    }
  }
  std::vector<float> attention(std::span<const float> u, std::span<const Run> runs) {
    std::vector<AttentionSlot> slots;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      State& s = state(i);
      slots.push_back({runs[i], s.length, s.table.data(), 0, s.raw.data()});
      s.length += runs[i].rows;
    }
    return narrow(u, rows(runs), [&](const float* in, std::int64_t n, float* out) {
      rig_.backend->attention(rig_.attention, in, slots, n, out);
    });
  }
  std::vector<float> experts(std::span<const float> u, std::int64_t n) {
    return narrow(u, n, [&](const float* in, std::int64_t count, float* out) {
      rig_.backend->experts(rig_.moe, in, count, out);
    });
  }
  std::vector<float> draft(std::span<const std::int32_t> tokens, std::span<const float> h) {
    Array in(*rig_.backend, h);
    return made(std::ssize(h),
                [&](float* out) { rig_.backend->draft_input(rig_.draft, *rig_.embedding, tokens, in.data(), out); });
  }
  std::vector<float> pages(std::size_t i, StateType type) {
    std::vector<float> all;
    const PageLayout layout = page_layout(rig_.config, type);
    for (const BufferPtr& page : state(i).pages) {
      std::vector<std::byte> bytes(layout.bytes);
      rig_.backend->read(bytes.data(), page->data(), bytes.size());
      for (const std::byte b : bytes) all.push_back(static_cast<float>(b));
    }
    return all;
  }

 private:
  static std::int64_t rows(std::span<const Run> runs) { return runs.back().first_row + runs.back().rows; }
  template <class Body>
  std::vector<float> made(std::int64_t size, Body body) {
    Array out(*rig_.backend, size);
    body(out.data());
    return out.values();
  }
  template <class Body>
  std::vector<float> narrow(std::span<const float> u, std::int64_t n, Body body) {
    Array in(*rig_.backend, u);
    return made(n * rig_.config.hidden_size, [&](float* out) { body(in.data(), n, out); });
  }

  Rig& rig_;
  std::list<State> states_;
  std::vector<DeltaSlot> last_delta_;
};

/// Several sequences through every operation, step by step; both sides get the CPU's values as inputs.
void compare_operations(Pair& pair, unsigned seed, StateType type, std::int64_t first_rows) {
  const artifact::ModelConfig& c = pair.cpu.config;
  Source source(seed);
  const std::int64_t sequences = seed % 3 == 2 ? 18 : 1 + source.below(3);  // 18: more than one launch describes
  const std::int64_t pages = 5 + (first_rows + 63) / 64;
  Side cpu(pair.cpu, sequences, pages, type);
  Side cuda(pair.device, sequences, pages, type);
  for (int step = 0; step < 4; ++step) {
    const bool capture = step == 2;
    std::vector<Run> runs;
    std::int64_t rows = 0;
    for (std::int64_t i = 0; i < sequences; ++i) {
      const std::int64_t count = step == 0 ? (sequences > 3 ? 20 : first_rows) + source.below(9) : 1 + source.below(8);
      runs.push_back({rows, count});
      rows += count;
    }
    const auto name = [&](std::string_view what) {
      return fmt::format("{}, seed {}, step {}, {} sequences, {} rows", what, seed, step, sequences, rows);
    };
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < rows; ++i) tokens.push_back(static_cast<std::int32_t>(source.below(c.vocab_size)));
    auto x = cpu.embed(tokens);
    expect_same(name("embed"), x, cuda.embed(tokens));
    for (float& value : x) value += source.value();
    const auto e = source.values(rows * c.ple_dim);
    const auto injected = cpu.ple(e, runs, x, capture);
    expect_same(name("ple_inject"), injected, cuda.ple(e, runs, x, capture));
    const auto read = cpu.hyper(injected, rows, true);
    expect_same(name("hyper_read"), read, cuda.hyper(injected, rows, true));
    expect_same(name("final mixer"), cpu.hyper(injected, rows, false), cuda.hyper(injected, rows, false));
    const auto u = std::span(read).first(static_cast<std::size_t>(rows * c.hidden_size));
    const auto inject = std::span(read).subspan(u.size());
    const auto y = cpu.delta(u, runs, capture);
    expect_same(name("delta_net"), y, cuda.delta(u, runs, capture));
    expect_same(name("hyper_write"), cpu.write(inject, y, injected), cuda.write(inject, y, injected));
    expect_same(name("attention"), cpu.attention(u, runs), cuda.attention(u, runs));
    expect_same(name("experts"), cpu.experts(u, rows), cuda.experts(u, rows));
    expect_same(name("draft_input"), cpu.draft(tokens, injected), cuda.draft(tokens, injected));
    if (capture) {
      cpu.commit(2);
      cuda.commit(2);
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(sequences); ++i) {
      State& a = cpu.state(i);
      State& b = cuda.state(i);
      const auto part = [&](std::string_view what, Array& expected, Array& got) {
        expect_same(name(fmt::format("{} of sequence {}", what, i)), expected.values(), got.values());
      };
      part("GDN state", a.delta, b.delta);
      part("next GDN state", a.next, b.next);
      part("GDN columns", a.conv, b.conv);
      part("PLE columns", a.ple, b.ple);
      part("raw index keys", a.raw, b.raw);
      part("captured keys", a.keys, b.keys);
      part("captured deltas", a.deltas, b.deltas);
      part("captured decays", a.decays, b.decays);
      expect_same(name(fmt::format("pages of sequence {}", i)), cpu.pages(i, type), cuda.pages(i, type));
    }
  }
  EXPECT_TRUE(pair.device.backend->status()) << pair.device.backend->status().error().message;
}

TEST_F(Cuda, EveryOperationOnAnAwkwardGeometry) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    const StateType type = seed % 2 == 0 ? StateType::BF16 : StateType::F32;
    Pair pair(seed, next(), type, test::tiny_config());
    compare_operations(pair, seed, type, 40);
  }
}

TEST_F(Cuda, EveryOperationWithThePublishedHeadSizes) {
  for (unsigned seed = 10; seed < 13; ++seed) {
    const StateType type = seed % 2 == 0 ? StateType::BF16 : StateType::F32;
    Pair pair(seed, next(), type, wide_config());
    compare_operations(pair, seed, type, 330);
  }
}

TEST_F(Cuda, DimensionsOf32And64) {
  for (const std::int64_t dim : {32, 64}) {
    artifact::ModelConfig c = test::tiny_config();
    c.linear_key_dim = dim;
    c.linear_value_dim = 96;
    c.head_dim = dim;
    c.indexer_budget = 8;
    Pair pair(static_cast<unsigned>(20 + dim), next(), StateType::BF16, c);
    compare_operations(pair, static_cast<unsigned>(dim), StateType::BF16, 150);
  }
}

/// A mixture of experts like the published one, with every matrix in groups of 64.
TEST_F(Cuda, SingleRowsOfExperts) {
  artifact::ModelConfig c = wide_config();
  Pair pair(30, next(), StateType::BF16, c);
  std::list<WeightStore> kept;  // the CPU reads the weights where they are
  for (Rig* rig : {&pair.cpu, &pair.device}) {
    WeightStore& same = kept.emplace_back(32);
    const auto matrix = [&](std::int64_t rows, std::int64_t cols, std::int64_t count) {
      return same.affine(rows, cols, 4, count, 64);
    };
    const std::array views{
        matrix(c.expert_dim, c.hidden_size, c.experts), matrix(c.expert_dim, c.hidden_size, c.experts),
        matrix(c.hidden_size, c.expert_dim, c.experts), matrix(c.shared_expert_dim, c.hidden_size, 1),
        matrix(c.shared_expert_dim, c.hidden_size, 1),  matrix(c.hidden_size, c.shared_expert_dim, 1)};
    rig->moe.gate = rig->backend->upload(views[0]).value();
    rig->moe.up = rig->backend->upload(views[1]).value();
    rig->moe.down = rig->backend->upload(views[2]).value();
    rig->moe.shared_gate = rig->backend->upload(views[3]).value();
    rig->moe.shared_up = rig->backend->upload(views[4]).value();
    rig->moe.shared_down = rig->backend->upload(views[5]).value();
  }
  Side cpu(pair.cpu, 1, 1, StateType::BF16);
  Side cuda(pair.device, 1, 1, StateType::BF16);
  Source source(33);
  for (const std::int64_t rows : {1, 1, 1, 2, 7}) {
    const auto u = source.values(rows * c.hidden_size);
    expect_same(fmt::format("experts, {} rows", rows), cpu.experts(u, rows), cuda.experts(u, rows));
  }
}

TEST_F(Cuda, MemoryIsZeroedAndImpossibleSizesAreErrors) {
  const auto cuda = next();
  for (const std::size_t bytes : {std::size_t{4}, std::size_t{1000}, std::size_t{1} << 22}) {
    const BufferPtr buffer = cuda->allocate(bytes).value();
    EXPECT_EQ(buffer->size(), bytes);
    for (const float x : test::download(*cuda, *buffer)) ASSERT_EQ(x, 0.0F);
  }
  const auto impossible = cuda->allocate(std::size_t{1} << 50);
  ASSERT_FALSE(impossible);
  EXPECT_EQ(impossible.error().kind, ErrorKind::Limit);
  EXPECT_TRUE(cuda->status());
}

TEST_F(Cuda, DevicesThatDoNotExistAreErrors) {
  const auto absent = create_cuda_backend({4096, true, {}});
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().kind, ErrorKind::Usage);
}

TEST(CudaOrNot, TheReasonIsSaid) {
  std::string reason;
  if (open_cuda(reason) == nullptr) {
    EXPECT_FALSE(reason.empty());
    EXPECT_NE(reason.find("CUDA"), std::string::npos) << reason;
  }
}

}  // namespace
}  // namespace lockstep::backend
