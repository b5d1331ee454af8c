// The n-gram table of the CUDA backend, wherever it is kept, against the processor's rows: equal bits. Skipped without
// a device.
#include "backend/cuda_fixture.hpp"
#include "backend/ngram_table.hpp"

namespace lockstep::backend {
namespace {

using artifact::DType;

constexpr std::uint64_t kWholeChunk = std::uint64_t{256} << 20;

std::vector<TableShape> shapes() {
  std::vector<TableShape> all;
  for (const int bits : {2, 3, 4, 5, 6, 7, 8}) {
    for (const DType scales : {DType::BF16, DType::F16, DType::F32}) {
      const int group = bits % 3 == 0 ? 32 : (bits % 3 == 1 ? 64 : 128);
      all.push_back({fmt::format("affine{} {} group {}", bits, artifact::dtype_name(scales), group), 700 + bits,
                     bits == 4 ? 320 : 384, bits, group, scales, 0});
    }
  }
  all.push_back({"published", 5000, 160, 4, 32, DType::BF16, 0});
  for (const DType type : {DType::BF16, DType::F16, DType::F32}) {
    all.push_back({fmt::format("dense {}", artifact::dtype_name(type)), 300, 161, 0, 32, type, 0});
    all.push_back({fmt::format("shards {}", artifact::dtype_name(type)), 640, 96, 0, 32, type, 5});
  }
  all.push_back({"longer than what is staged", 40, 3001, 0, 32, DType::F32, 0});
  all.push_back({"one row", 1, 160, 4, 32, DType::BF16, 0});
  return all;
}

std::unique_ptr<Backend> cuda_with(NgramMode mode, std::uint64_t chunk = kWholeChunk) {
  CudaOptions options;
  options.ngram.mode = mode;
  options.table_chunk = chunk;
  return create_cuda_backend(options).value();
}

TEST_F(Cuda, TableRowsEqualTheProcessorsWhereverTheyAre) {
  for (const TableShape& shape : shapes()) {
    const RandomTable table(shape, 11);
    NgramOptions resident;
    resident.mode = NgramMode::Resident;
    const auto reference = open_or_throw(table, resident);
    for (const NgramMode mode : {NgramMode::Device, NgramMode::Pinned, NgramMode::Resident, NgramMode::Streamed}) {
      // Pieces of one row, of a few and of all.
      for (const std::uint64_t chunk : {std::uint64_t{1}, std::uint64_t{5000}, kWholeChunk}) {
        const std::string what = fmt::format("{}, {}, pieces of {}", shape.name, ngram_mode_name(mode), chunk);
        if ((!device_only(mode) && chunk != kWholeChunk) || (chunk == 1 && shape.rows > 700)) continue;
        artifact::ModelConfig config = test::tiny_config();
        config.ple_dim = shape.dim * config.ngram_heads();
        const auto cuda = cuda_with(mode, chunk);
        ASSERT_TRUE(cuda->configure(config, StateType::BF16));
        const Status set = cuda->set_ngram_table(table.view(), {});
        ASSERT_TRUE(set) << what << ": " << set.error().message;
        EXPECT_EQ(cuda->ngram_store()->mode(), mode) << what;
        std::mt19937 random(3);
        std::uint64_t asked = 0;
        for (const std::size_t n : {1, 16, 64, 333}) {
          // A narrow range repeats ids within a call.
          const std::int64_t range = n == 64 ? std::min<std::int64_t>(shape.rows, 7) : shape.rows;
          auto ids = random_rows(random, n, range);
          ids.back() = shape.rows - 1;
          Array e(*cuda, static_cast<std::int64_t>(n) * shape.dim);
          ASSERT_TRUE(cuda->ngram_request(ids)) << what;
          ASSERT_TRUE(cuda->ngram_lookup(ids, e.data())) << what;
          expect_same(what, gathered(*reference, ids, shape.dim), e.values());
          asked += n;
        }
        const NgramCounters counters = cuda->ngram_store()->counters();
        EXPECT_EQ(counters.hits + counters.misses, asked) << what;
        EXPECT_TRUE(!device_only(mode) || counters.misses == 0) << what;
        EXPECT_TRUE(cuda->status()) << what;
      }
    }
  }
}

TEST_F(Cuda, IdsOutsideTheTableAreErrorsOnTheDeviceToo) {
  const RandomTable table({"affine4", 100, 160, 4, 32, DType::BF16, 0}, 2);
  for (const NgramMode mode : {NgramMode::Device, NgramMode::Pinned}) {
    const auto cuda = cuda_with(mode);
    ASSERT_TRUE(cuda->configure(test::tiny_config(), StateType::BF16));
    ASSERT_TRUE(cuda->set_ngram_table(table.view(), {}));
    Array e(*cuda, 160);
    for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{100}, std::int64_t{1} << 40}) {
      EXPECT_FALSE(cuda->ngram_request({&id, 1}));
      const Status refused = cuda->ngram_lookup({&id, 1}, e.data());
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().kind, ErrorKind::Internal);
    }
    EXPECT_TRUE(cuda->status());
  }
}

TEST_F(Cuda, CopiesOfTheTableAreSeenAndCanBeEnded) {
  const RandomTable table({"affine4", 1000, 160, 4, 32, DType::BF16, 0}, 2);
  for (const NgramMode mode : {NgramMode::Device, NgramMode::Pinned}) {
    const auto cuda = cuda_with(mode, 6400);  // 64 rows
    EXPECT_EQ(cuda->ngram_copy_bytes(table.view()), 100'000U);
    std::vector<std::uint64_t> seen;
    std::atomic<bool> cancel{false};
    const CopyWatch watch{[&](std::uint64_t done) { seen.push_back(done); }, &cancel};
    ASSERT_TRUE(cuda->set_ngram_table(table.view(), watch));
    EXPECT_EQ(seen.size(), 16U);
    EXPECT_EQ(seen.back(), 100'000U);
    cancel.store(true);
    const Status ended = cuda->set_ngram_table(table.view(), watch);
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().kind, ErrorKind::Cancelled);
    EXPECT_TRUE(cuda->status());
  }
  EXPECT_EQ(cuda_with(NgramMode::Resident)->ngram_copy_bytes(table.view()), 0U);
}

/// Batches handed over so far, without graphs.
std::uint64_t launched(const Backend& backend) {
  const std::string text = backend.describe();
  const std::size_t end = text.find(" launched");
  return std::stoull(text.substr(text.rfind(' ', end - 1) + 1));
}

/// The host reads rows while the device works: also when no row ever comes.
TEST_F(Cuda, WhatIsInFrontIsHandedOverBeforeTheHostTakesRows) {
  const RandomTable table({"affine4", 100, 160, 4, 32, DType::BF16, 0}, 2);
  WeightStore store(5);
  for (const bool fails : {false, true}) {
    CudaOptions options;
    options.graphs = false;
    options.ngram.mode = NgramMode::Streamed;
    options.ngram.intercept = [fails](std::uint64_t, std::int64_t result) { return fails ? -EIO : result; };
    const auto cuda = create_cuda_backend(options).value();
    artifact::ModelConfig config = test::tiny_config();
    config.ple_dim = 160 * config.ngram_heads();
    ASSERT_TRUE(cuda->configure(config, StateType::BF16));
    ASSERT_TRUE(cuda->set_ngram_table(table.view(), {}));
    const MatrixPtr embedding = cuda->upload(store.affine(50, config.hidden_size, 4, 1, 32)).value();
    Array x(*cuda, config.wide_size());
    Array e(*cuda, 160);
    const std::int32_t token = 7;
    const std::int64_t row = 99;
    cuda->embed(*embedding, {&token, 1}, x.data());
    const std::uint64_t before = launched(*cuda);
    EXPECT_EQ(cuda->ngram_lookup({&row, 1}, e.data()).has_value(), !fails);
    EXPECT_EQ(launched(*cuda), before + 1);
  }
}

TEST_F(Cuda, AnAutomaticTableIsOnTheDeviceWhenItFits) {
  const RandomTable table({"affine4", 100, 160, 4, 32, DType::BF16, 0}, 2);
  CudaOptions options;
  for (const auto& [others, mode] :
       {std::pair{std::uint64_t{0}, NgramMode::Device}, {UINT64_MAX / 2, NgramMode::Pinned}}) {
    options.ngram.other_bytes = others;
    const auto cuda = create_cuda_backend(options).value();
    ASSERT_TRUE(cuda->set_ngram_table(table.view(), {}));
    EXPECT_EQ(cuda->ngram_store()->mode(), mode);
  }
}

}  // namespace
}  // namespace lockstep::backend
