// Every operation of the CUDA backend against the CPU backend on the same inputs: equal bits, outputs and states.
// Without a device the tests skip themselves. A difference names the operation and its first index and ends nothing, so
// that one run shows every difference.
#include "backend/cuda_fixture.hpp"

namespace lockstep::backend {
namespace {

/// Both backends with the same weights.
struct Pair {
  Pair(unsigned seed, std::unique_ptr<Backend> cuda, StateType state, const artifact::ModelConfig& config)
      : cpu(seed, open_cpu(), state, config), device(seed, std::move(cuda), state, config) {}
  Rig cpu, device;
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

/// Enough rows on both sides for tiles.
TEST_F(Cuda, ProductsOfManyRows) {
  const auto cpu = open_cpu();
  const auto cuda = next();
  Source source(40);
  WeightStore store(41);
  for (const int bits : {3, 4, 8}) {
    for (const std::int64_t cols : {64, 128, 192, 640, 1152}) {
      const std::int64_t rows = 1030 + source.below(100);
      const std::int64_t tokens = 450 + source.below(100);
      compare_product(*cpu, *cuda, store.affine(rows, cols, bits, 1, 64), tokens, source,
                      fmt::format("{} bits, [{}, {}], {} tokens", bits, rows, cols, tokens));
    }
  }
  for (const std::int64_t cols : {32, 96, 256, 320, 544, 1024}) {
    const std::int64_t rows = 290 + source.below(40);
    const std::int64_t tokens = 230 + source.below(40);
    compare_product(*cpu, *cuda, store.dense(rows, cols, artifact::DType::BF16), tokens, source,
                    fmt::format("dense [{}, {}], {} tokens", rows, cols, tokens));
  }
  EXPECT_TRUE(cuda->status());
}

/// Rows around the borders between kernels, and matrices that are too small for tiles.
TEST_F(Cuda, ProductsOfSomeRows) {
  const auto cpu = open_cpu();
  const auto cuda = next();
  Source source(42);
  WeightStore store(43);
  for (const std::int64_t tokens : {9, 16, 17, 63, 64, 65, 129, 300}) {
    for (const int bits : {4, 8}) {
      for (const std::int64_t rows : {1, 48, 700, 9000}) {
        const std::int64_t cols = rows > 1000 ? 256 : 640;
        compare_product(*cpu, *cuda, store.affine(rows, cols, bits, 1, 64), tokens, source,
                        fmt::format("{} bits, [{}, {}], {} tokens", bits, rows, cols, tokens));
      }
    }
    compare_product(*cpu, *cuda, store.dense(1100, 320, artifact::DType::BF16), tokens, source,
                    fmt::format("dense [1100, 320], {} tokens", tokens));
  }
  compare_product(*cpu, *cuda, store.affine(1, 2560, 4, 1, 64), 2048, source, "one output row, 2048 tokens");
  compare_product(*cpu, *cuda, store.affine(40, 8192, 8, 1, 32), 300, source, "many segments, 300 tokens");
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
TEST_F(Cuda, ExpertsInGroupsOf64) {
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
  for (const std::int64_t rows : {1, 1, 1, 2, 7, 9, 16, 17, 30, 64, 65, 150, 400}) {
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
