// Disks that fail and files that shrink: the first error stays and nothing wrong is handed out.
#include <sys/stat.h>

#include <atomic>
#include <cerrno>

#include "ngram_table.hpp"

namespace lockstep::backend {
namespace {

using artifact::DType;

const TableShape kShape{"affine4", 2000, 160, 4, 32, DType::BF16, 0};

/// Both I/O paths, with and without O_DIRECT.
class NgramFaults : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  [[nodiscard]] static NgramOptions options() {
    return streamed(1 << 20, std::get<0>(GetParam()), std::get<1>(GetParam()));
  }
};

std::string error_of(const Status& status) {
  return status ? "" : status.error().message;
}

TEST_P(NgramFaults, AFileThatShrinksPoisonsTheStore) {
  for (const std::int64_t rows_left : {0, 1, 777, 1998, 1999}) {
    SCOPED_TRACE(rows_left);
    const RandomTable table(kShape, 5);
    const auto store = open_or_throw(table, options());
    // The last plane in the file is that of the scales; it ends inside the first row that is gone.
    const std::uint64_t end = table.view().files[0].scales + static_cast<std::uint64_t>(rows_left) * 10 + 3;
    ASSERT_EQ(::truncate(table.file().c_str(), static_cast<off_t>(end)), 0);
    std::vector<float> out(160);
    for (std::int64_t row = std::max<std::int64_t>(0, rows_left - 3); row < rows_left; ++row) {
      ASSERT_TRUE(store->gather(std::vector{row}, out.data())) << row;
    }
    const Status status = store->gather(std::vector{rows_left}, out.data());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().kind, ErrorKind::Io);
    EXPECT_NE(error_of(status).find("ends inside row " + std::to_string(rows_left)), std::string::npos)
        << error_of(status);
    EXPECT_NE(error_of(status).find("reload"), std::string::npos);
    // Later calls fail with the first error, even for rows that the cache has.
    for (const std::int64_t row : {std::int64_t{0}, rows_left - 1, std::int64_t{1999}}) {
      EXPECT_EQ(error_of(store->gather(std::vector{std::max<std::int64_t>(0, row)}, out.data())), error_of(status));
    }
    EXPECT_EQ(error_of(store->request(std::vector<std::int64_t>{5})), error_of(status));
    EXPECT_EQ(error_of(store->status()), error_of(status));
  }
}

TEST_P(NgramFaults, ReadErrorsPoisonTheStore) {
  const RandomTable table(kShape, 5);
  for (unsigned seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::atomic<int> left{static_cast<int>(random() % 600)};
    NgramOptions faulty = options();
    faulty.intercept = [&](std::uint64_t, std::int64_t result) { return left-- > 0 ? result : -EIO; };
    const auto store = open_or_throw(table, faulty);
    std::vector<float> out(std::size_t{40} * 160);
    std::string first;
    for (int step = 0; step < 30; ++step) {
      const auto ids = random_rows(random, 40, 2000);
      if (random() % 2 == 0) (void)store->request(random_rows(random, 40, 2000));
      const std::string message = error_of(store->gather(ids, out.data()));
      if (first.empty()) first = message;
      EXPECT_EQ(message, first);
    }
    EXPECT_NE(first.find("cannot read row"), std::string::npos) << first;
    EXPECT_NE(first.find("Input/output error"), std::string::npos) << first;
    EXPECT_EQ(error_of(store->status()), first);
  }
}

TEST_P(NgramFaults, ReadsInPiecesAndInterruptedReadsGoOn) {
  const RandomTable table(kShape, 5);
  NgramOptions resident;
  resident.mode = NgramMode::Resident;
  const auto reference = open_or_throw(table, resident);
  std::atomic<unsigned> calls{0};
  NgramOptions faulty = options();
  const bool direct = std::get<1>(GetParam());
  faulty.intercept = [&](std::uint64_t, std::int64_t result) -> std::int64_t {
    const unsigned call = calls++;
    if (call % 5 == 1) return -EINTR;
    if (call % 5 == 3) return -EAGAIN;
    // With O_DIRECT a piece that is no whole block means the end of the file, unless another follows.
    if (call % 5 == 4) return direct ? std::min<std::int64_t>(result, 4096) : std::min<std::int64_t>(result, 7);
    return result;
  };
  const auto store = open_or_throw(table, faulty);
  std::mt19937 random(9);
  for (int step = 0; step < 10; ++step) {
    const auto ids = random_rows(random, 50, 2000);
    ASSERT_TRUE(same_bits(gathered(*store, ids, 160), gathered(*reference, ids, 160)));
  }
}

TEST_P(NgramFaults, EndlessInterruptionsAndEmptyReadsAreErrors) {
  const RandomTable table(kShape, 5);
  for (const std::int64_t answer : {std::int64_t{-EAGAIN}, std::int64_t{-EINTR}, std::int64_t{0}}) {
    NgramOptions faulty = options();
    faulty.intercept = [answer](std::uint64_t, std::int64_t) { return answer; };
    const auto store = open_or_throw(table, faulty);
    std::vector<float> out(160);
    EXPECT_FALSE(store->gather(std::vector<std::int64_t>{3}, out.data()));
    EXPECT_EQ(store->counters().bytes_read, 0U);
  }
}

TEST_P(NgramFaults, WhatIsNoTableDoesNotOpen) {
  const auto open = [&](const RandomTable& table, const NgramOptions& with) {
    const auto store = open_ngram_store(table.view(), any_kernels(), with);
    return store ? std::string("opened") : store.error().message;
  };
  RandomTable table(kShape, 5);
  NgramOptions tiny = options();
  tiny.cache_bytes = 10;
  EXPECT_NE(open(table, tiny).find("does not hold one row"), std::string::npos);
  const std::string good = table.file();
  table.view().files[0].path = good + ".missing";
  EXPECT_NE(open(table, options()).find("No such file"), std::string::npos);
  table.view().files[0].path = std::filesystem::path(good).parent_path().string();
  EXPECT_NE(open(table, options()).find("not a regular file"), std::string::npos);
  ASSERT_EQ(::mkfifo((good + ".fifo").c_str(), 0600), 0);
  table.view().files[0].path = good + ".fifo";
  EXPECT_NE(open(table, options()).find("not a regular file"), std::string::npos);
  table.view().files[0].path = good;
  const auto size = std::filesystem::file_size(good);
  std::filesystem::resize_file(good, size - 1);
  EXPECT_NE(open(table, options()).find("ends at byte " + std::to_string(size)), std::string::npos);
  std::filesystem::resize_file(good, size);
  EXPECT_EQ(open(table, options()), "opened");
}

TEST_P(NgramFaults, RowsOutsideTheTableAreRefusedAndNoPoison) {
  const RandomTable table(kShape, 5);
  const auto store = open_or_throw(table, options());
  std::vector<float> out(320);
  for (const std::int64_t row : {std::int64_t{-1}, std::int64_t{2000}, INT64_MAX, INT64_MIN}) {
    EXPECT_FALSE(store->request(std::vector{std::int64_t{1}, row}));
    EXPECT_FALSE(store->gather(std::vector{std::int64_t{1}, row}, out.data()));
  }
  EXPECT_EQ(store->counters().rows_read, 0U);
  EXPECT_TRUE(store->status());
  EXPECT_TRUE(store->gather(std::vector<std::int64_t>{0, 1999}, out.data()));
}

INSTANTIATE_TEST_SUITE_P(Paths, NgramFaults, testing::Combine(testing::Bool(), testing::Bool()), [](const auto& test) {
  return std::string(std::get<0>(test.param) ? "pread" : "io_uring") +
         (std::get<1>(test.param) ? "_direct" : "_buffered");
});

}  // namespace
}  // namespace lockstep::backend
