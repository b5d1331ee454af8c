// The streamed n-gram table against the resident one: the same bits (docs/numerics.md E5) and exact accounts.
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <list>
#include <set>

#include <linux/filter.h>
#include <linux/seccomp.h>

#include <numeric>

#include "backend/ngram/residency.hpp"
#include "backend/ngram/row_format.hpp"
#include "backend/ngram/table_rows.hpp"
#include "ngram_table.hpp"

namespace lockstep::backend {
namespace {

using artifact::DType;

const std::vector<TableShape> kShapes = {
    {"affine4", 997, 160, 4, 32, DType::BF16, 0},   {"affine8", 400, 64, 8, 64, DType::F32, 0},
    {"affine3", 300, 32, 3, 32, DType::F16, 0},     {"dense", 500, 160, 0, 32, DType::BF16, 0},
    {"dense_wide", 64, 3001, 0, 32, DType::F32, 0}, {"shards", 640, 96, 0, 32, DType::BF16, 5},
};

class NgramStores : public testing::TestWithParam<std::size_t> {
 protected:
  [[nodiscard]] static const TableShape& shape() { return kShapes[GetParam()]; }
};

TEST_P(NgramStores, StreamedRowsAreThoseOfTheMap) {
  const RandomTable table(shape(), 7);
  NgramOptions resident;
  resident.mode = NgramMode::Resident;
  const auto reference = open_or_throw(table, resident);
  const auto rows = static_cast<std::uint64_t>(shape().rows);
  for (unsigned seed = 0; seed < 16; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::uint64_t capacities[] = {1, 2, 1 + random() % rows, rows};
    NgramOptions options = streamed(table.cache_for(capacities[seed / 4]), seed % 2 == 1, seed % 4 < 2);
    options.queue_depth = 1 + static_cast<unsigned>(random() % 70);
    const auto tested = open_or_throw(table, options);
    std::uint64_t total = 0;
    for (int step = 0; step < 6; ++step) {
      // A narrow range brings repeats, within a call and between calls.
      const std::int64_t range = step % 2 == 0 ? shape().rows : std::min<std::int64_t>(shape().rows, 40);
      const auto ids = random_rows(random, random() % 60, range);
      ASSERT_TRUE(tested->request(random() % 2 == 0 ? ids : std::vector<std::int64_t>()));
      ASSERT_TRUE(tested->request(random_rows(random, random() % 2 * (random() % 80), shape().rows)));
      if (ids.empty()) continue;
      total += ids.size();
      ASSERT_TRUE(same_bits(gathered(*tested, ids, shape().dim), gathered(*reference, ids, shape().dim)))
          << tested->describe() << ", step " << step;
    }
    const NgramCounters counters = tested->counters();
    EXPECT_EQ(counters.hits + counters.misses, total);
    EXPECT_LE(counters.cache_bytes, options.cache_bytes);
    EXPECT_GE(counters.rows_read, counters.misses);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, NgramStores, testing::Range<std::size_t>(0, kShapes.size()),
                         [](const auto& test) { return kShapes[test.param].name; });

/// The rules of streamed_store.cpp on plain containers, without files: what the counters must say.
class CacheModel {
 public:
  explicit CacheModel(std::size_t capacity) : capacity_(capacity) {}

  void request(const std::vector<std::int64_t>& ids) {
    for (const std::int64_t id : ids) {
      if (!find(id)) {
        if (order_.size() == capacity_ && order_.back().promised > gathers_) return;
        insert(id);
        order_.front().fresh = true;
      }
      order_.front().promised = gathers_ + 16;
    }
  }

  void gather(const std::vector<std::int64_t>& ids) {
    ++gathers_;
    for (const std::int64_t id : ids) {
      if (find(id)) {
        (order_.front().fresh ? expected.misses : expected.hits) += 1;
        expected.prefetched += order_.front().fresh ? 1 : 0;
      } else {
        insert(id);
        ++expected.misses;
      }
      order_.front().fresh = false;
      order_.front().promised = 0;
    }
  }

  NgramCounters expected;

 private:
  struct Entry {
    std::int64_t id = 0;
    bool fresh = false;
    int promised = 0;
  };

  /// Moves an entry to the front.
  bool find(std::int64_t id) {
    const auto entry = std::find_if(order_.begin(), order_.end(), [&](const Entry& e) { return e.id == id; });
    if (entry == order_.end()) return false;
    order_.splice(order_.begin(), order_, entry);
    return true;
  }

  void insert(std::int64_t id) {
    if (order_.size() == capacity_) {
      order_.pop_back();
      ++expected.evictions;
    }
    order_.push_front({id, false, 0});
    ++expected.rows_read;
  }

  std::size_t capacity_;
  int gathers_ = 0;
  std::list<Entry> order_;
};

TEST(NgramStore, CountersAreExact) {
  const TableShape shape{"affine4", 200, 32, 4, 32, DType::BF16, 0};
  const RandomTable table(shape, 1);
  for (unsigned seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::size_t capacity = 1 + random() % 120;
    const bool direct = seed % 4 < 2;
    const auto store = open_or_throw(table, streamed(table.cache_for(capacity), seed % 2 == 1, direct));
    ASSERT_EQ(store->counters().cache_rows, capacity);
    CacheModel model(capacity);
    for (int step = 0; step < 60; ++step) {
      const auto ids = random_rows(random, random() % 50, shape.rows);
      if (random() % 3 == 0) {
        ASSERT_TRUE(store->request(ids));
        model.request(ids);
      } else {
        std::vector<float> out(ids.size() * 32);
        ASSERT_TRUE(store->gather(ids, out.data()));
        model.gather(ids);
      }
    }
    const NgramCounters counters = store->counters();
    EXPECT_EQ(counters.hits, model.expected.hits);
    EXPECT_EQ(counters.misses, model.expected.misses);
    EXPECT_EQ(counters.prefetched, model.expected.prefetched);
    EXPECT_EQ(counters.evictions, model.expected.evictions);
    EXPECT_EQ(counters.rows_read, model.expected.rows_read);
  }
}

TEST(NgramStore, BytesReadAreThoseOfTheRows) {
  const TableShape shape{"affine4", 50, 160, 4, 32, DType::BF16, 0};
  const RandomTable table(shape, 1);
  for (const bool pread : {false, true}) {
    const auto store = open_or_throw(table, streamed(1 << 20, pread, false));
    gathered(*store, {3, 4, 3, 49, 4}, 160);
    EXPECT_EQ(store->counters().rows_read, 3U);
    EXPECT_EQ(store->counters().bytes_read, 3U * 100);
    EXPECT_EQ(store->counters().hits, 2U);
    EXPECT_GT(store->counters().read_nanoseconds, 0U);
    EXPECT_NE(ngram_report(*store).find("2 hits, 3 misses (0 read ahead), 0 evictions, 3 rows and 300 bytes read"),
              std::string::npos)
        << ngram_report(*store);
  }
}

/// Memory of this process that belongs to no file, in bytes.
std::uint64_t anonymous_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoull(line.substr(8)) * 1024;
  }
  throw std::runtime_error("no RssAnon in /proc/self/status");
}

/// The thread sanitizer's shadow of memory counts as memory of the process.
#ifdef __SANITIZE_THREAD__
constexpr bool kMemoryIsMeasurable = false;
#else
constexpr bool kMemoryIsMeasurable = true;
#endif

TEST(NgramStore, ATableOfFiftyTimesTheCacheStaysInBounds) {
  const TableShape shape{"affine4", 200000, 160, 4, 32, DType::BF16, 0};
  const RandomTable table(shape, 3);
  const std::uint64_t cache = ngram_table_bytes(table.view()) / 50;
  NgramOptions resident;
  resident.mode = NgramMode::Resident;
  const auto reference = open_or_throw(table, resident);
  for (const bool pread : {false, true}) {
    std::mt19937 random(pread ? 1 : 0);
    std::vector<float> out(1024 * 160);
    std::vector<float> expected(out.size());
    const std::uint64_t before = anonymous_memory();
    const auto store = open_or_throw(table, streamed(cache, pread));
    for (int step = 0; step < 12; ++step) {
      const auto ids = random_rows(random, 1024, shape.rows);
      ASSERT_TRUE(store->request(ids));
      ASSERT_TRUE(store->gather(ids, out.data()));
      ASSERT_TRUE(reference->gather(ids, expected.data()));
      ASSERT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)), 0);
    }
    const NgramCounters counters = store->counters();
    EXPECT_LE(counters.cache_bytes, cache);
    EXPECT_LT(counters.cache_rows * 50, static_cast<std::uint64_t>(shape.rows));
    EXPECT_EQ(counters.rows_read - counters.evictions, counters.cache_rows);
    EXPECT_LE(counters.staging_bytes, 64U * 3 * 8192);
    // Stacks of the threads and the heap's own rounding come on top.
    if (kMemoryIsMeasurable) {
      EXPECT_LT(anonymous_memory(), before + cache + counters.staging_bytes + (4U << 20)) << store->describe();
    }
  }
}

TEST(NgramStore, RequestDoesNotWaitAndReadsAhead) {
  const RandomTable table({"dense", 300, 32, 0, 32, DType::BF16, 0}, 2);
  for (const bool pread : {false, true}) {
    std::atomic<bool> open{false};
    NgramOptions options = streamed(1 << 20, pread);
    options.intercept = [&](std::uint64_t, std::int64_t result) {
      open.wait(false);
      return result;
    };
    const auto store = open_or_throw(table, options);
    std::vector<std::int64_t> ids(300);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i);
    ASSERT_TRUE(store->request(ids));  // would never return if it waited
    ASSERT_TRUE(store->request(ids));
    EXPECT_EQ(store->counters().rows_read, 300U);
    EXPECT_EQ(store->counters().bytes_read, 0U);
    open.store(true);
    open.notify_all();
    gathered(*store, ids, 32);
    EXPECT_EQ(store->counters().prefetched, 300U);
    EXPECT_EQ(store->counters().rows_read, 300U);
  }
}

TEST(NgramStore, RowsReadAheadDoNotPushOutThoseThatComeFirst) {
  const RandomTable table({"dense", 100, 32, 0, 32, DType::BF16, 0}, 2);
  const auto store = open_or_throw(table, streamed(table.cache_for(10), false));
  ASSERT_TRUE(store->request(std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}));
  ASSERT_TRUE(store->request(std::vector<std::int64_t>{10, 11, 12, 13, 14, 15}));  // four of them fit
  gathered(*store, {0, 1, 2, 3, 4, 5}, 32);
  EXPECT_EQ(store->counters().prefetched, 6U);
  EXPECT_EQ(store->counters().evictions, 0U);
  // Rows that nobody came for are given up in the end.
  for (int i = 0; i < 20; ++i) gathered(*store, {0}, 32);
  ASSERT_TRUE(store->request(std::vector<std::int64_t>{20, 21, 22, 23}));
  EXPECT_EQ(store->counters().evictions, 4U);
}

TEST(NgramStore, ClosesWithReadsUnderWay) {
  const RandomTable table({"affine4", 5000, 160, 4, 32, DType::BF16, 0}, 2);
  for (int i = 0; i < 20; ++i) {
    std::mt19937 random(static_cast<unsigned>(i));
    const auto store = open_or_throw(table, streamed(1 << 20, i % 2 == 1));
    ASSERT_TRUE(store->request(random_rows(random, 2000, 5000)));
  }
}

/// Makes io_uring_setup fail in this process as containers do.
void refuse_io_uring() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{4, code};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    std::abort();
  }
}

TEST(NgramStoreDeathTest, ReadsWithThreadsWhereIoUringIsRefused) {
  const RandomTable table({"dense", 100, 32, 0, 32, DType::BF16, 0}, 2);
  const auto in_container = [&] {
    refuse_io_uring();
    const auto store = open_or_throw(table, streamed(1 << 20, false));
    const bool right =
        store->describe().find("pread, 16 rows") != std::string::npos && gathered(*store, {1, 99}, 32).size() == 64;
    std::_Exit(right ? 0 : 1);
  };
  EXPECT_EXIT(in_container(), testing::ExitedWithCode(0), "");
}

/// What a device gets: rows that decode to the values of the map, across the borders of parts.
TEST_P(NgramStores, PackedRowsDecodeToThoseOfTheMap) {
  const RandomTable table(shape(), 5);
  NgramOptions resident;
  resident.mode = NgramMode::Resident;
  const auto reference = open_or_throw(table, resident);
  const RowFormat format = RowFormat::create(table.view(), any_kernels()).value();
  const std::size_t stride = packed_row_stride(table.view());
  EXPECT_EQ(packed_row_bytes(table.view()), format.bytes());
  EXPECT_EQ(stride % 4, 0U);
  EXPECT_LT(stride, format.bytes() + 4);
  EXPECT_EQ(packed_table_bytes(table.view()), stride * static_cast<std::uint64_t>(shape().rows));
  for (unsigned seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto rows = static_cast<std::uint64_t>(shape().rows);
    const auto first = static_cast<std::int64_t>(seed == 0 ? 0 : random() % rows);
    const std::int64_t count =
        seed == 0 ? shape().rows : 1 + static_cast<std::int64_t>(random() % (rows - static_cast<std::uint64_t>(first)));
    std::vector<std::byte> packed(static_cast<std::size_t>(count) * stride + 1, std::byte{0x5a});
    copy_packed_rows(table.view(), first, count, packed.data());
    EXPECT_EQ(packed.back(), std::byte{0x5a});
    std::vector<std::int64_t> ids(static_cast<std::size_t>(count));
    std::iota(ids.begin(), ids.end(), first);
    std::vector<float> decoded(ids.size() * static_cast<std::size_t>(shape().dim));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      format.decode(packed.data() + i * stride, decoded.data() + i * static_cast<std::size_t>(shape().dim));
    }
    EXPECT_TRUE(same_bits(decoded, gathered(*reference, ids, shape().dim)));
  }
}

TEST(NgramStore, PlacesOnADeviceFollowBothMemories) {
  EXPECT_EQ(choose_place(30, 60, 100, 0, true), NgramMode::Device);
  EXPECT_EQ(choose_place(31, 60, 100, 100, true), NgramMode::Pinned);
  EXPECT_EQ(choose_place(75, 60, 100, 100, true), NgramMode::Pinned);
  EXPECT_EQ(choose_place(76, 60, 100, 100, true), NgramMode::Streamed);
  EXPECT_EQ(choose_place(76, 60, 100, 100, false), NgramMode::Resident);
  EXPECT_EQ(choose_place(UINT64_MAX, UINT64_MAX, 100, 100, true), NgramMode::Streamed);
}

TEST(NgramStore, EveryModeHasItsName) {
  for (const NgramMode mode :
       {NgramMode::Auto, NgramMode::Resident, NgramMode::Streamed, NgramMode::Device, NgramMode::Pinned}) {
    EXPECT_EQ(find_ngram_mode(ngram_mode_name(mode)), mode);
  }
  EXPECT_EQ(ngram_mode_name(NgramMode::Pinned), "pinned");
  EXPECT_FALSE(find_ngram_mode("mapped"));
  EXPECT_FALSE(find_ngram_mode(""));
}

TEST(NgramStore, TheProcessorRefusesPlacesOfADevice) {
  const RandomTable table({"affine4", 10, 160, 4, 32, DType::BF16, 0}, 2);
  for (const NgramMode mode : {NgramMode::Device, NgramMode::Pinned}) {
    NgramOptions options;
    options.mode = mode;
    const auto store = open_ngram_store(table.view(), any_kernels(), options);
    ASSERT_FALSE(store);
    EXPECT_EQ(store.error().kind, ErrorKind::Usage);
    EXPECT_NE(store.error().message.find("--device cuda"), std::string::npos) << store.error().message;
  }
}

TEST(NgramStore, ResidencyFollowsMemory) {
  EXPECT_EQ(choose_residency(32, 73, 140), NgramMode::Resident);
  EXPECT_EQ(choose_residency(32, 73, 139), NgramMode::Streamed);
  EXPECT_EQ(choose_residency(1, 0, 0), NgramMode::Streamed);
  const RandomTable table({"affine4", 100, 160, 4, 32, DType::BF16, 0}, 2);
  EXPECT_EQ(ngram_table_bytes(table.view()), 10000U);
  NgramOptions options;
  EXPECT_TRUE(open_or_throw(table, options)->describe().starts_with("resident"));
  EXPECT_EQ(open_or_throw(table, options)->mode(), NgramMode::Resident);
  options.other_bytes = UINT64_MAX / 2;
  EXPECT_TRUE(open_or_throw(table, options)->describe().starts_with("streamed by"));
  EXPECT_EQ(open_or_throw(table, options)->mode(), NgramMode::Streamed);
}

}  // namespace
}  // namespace lockstep::backend
