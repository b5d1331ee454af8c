// Rows a second out of an n-gram table in the real row format (160 values, 4 bits, groups of 32) that is larger than
// its cache: by I/O path, queue depth and page cache. LOCKSTEP_BENCH_TABLE names a directory for the table's file
// (default: the system's for temporary files), LOCKSTEP_BENCH_ROWS its rows (default 2,000,000: 200 MB).
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "backend/ngram/ngram_store.hpp"
#include "base/file.hpp"

namespace {

using namespace lockstep;

constexpr std::int64_t kDim = 160, kCodeBytes = 80, kScaleBytes = 10;
constexpr std::size_t kGather = 4096;  // a prefill chunk of 256 tokens

/// The table's file, removed at the end.
class Table {
 public:
  Table() {
    const char* rows = std::getenv("LOCKSTEP_BENCH_ROWS");
    const char* directory = std::getenv("LOCKSTEP_BENCH_TABLE");
    view_.rows = rows != nullptr ? std::atoll(rows) : 2'000'000;
    view_.dim = kDim;
    path_ = (directory != nullptr ? std::filesystem::path(directory) : std::filesystem::temp_directory_path()) /
            ("lockstep-ngram-bench-" + std::to_string(::getpid()));
    write();
    artifact::MatrixView matrix;
    matrix.rows = view_.rows;
    matrix.cols = kDim;
    matrix.quantised = true;
    matrix.bits = 4;
    matrix.group = 32;
    map_ = MappedFile::open(path_).value();
    const auto rows_bytes = static_cast<std::uint64_t>(view_.rows);
    view_.files = {{path_.string(), 0, rows_bytes * kCodeBytes, rows_bytes * (kCodeBytes + kScaleBytes)}};
    matrix.codes = map_.bytes().data();
    matrix.scales = matrix.codes + view_.files[0].scales;
    matrix.biases = matrix.codes + view_.files[0].biases;
    view_.table = matrix;
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  ~Table() { std::filesystem::remove(path_); }

  [[nodiscard]] const artifact::NgramTableView& view() const { return view_; }

  /// Drops the file from the page cache.
  void make_cold() const {
    const int file = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    (void)::fsync(file);
    (void)::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
  void make_warm() const {
    unsigned sum = 0;
    for (std::size_t i = 0; i < map_.bytes().size(); i += 4096) sum += static_cast<unsigned>(map_.bytes()[i]);
    benchmark::DoNotOptimize(sum);
  }

 private:
  void write() const {
    AtomicFile file = AtomicFile::create(path_).value();
    std::mt19937_64 random(1);
    std::vector<std::uint64_t> block(1 << 17);
    std::uint64_t left = static_cast<std::uint64_t>(view_.rows) * 100;
    while (left > 0) {
      for (std::uint64_t& word : block) word = random() & 0xbfffbfffbfffbfff;  // finite as bf16
      const std::uint64_t bytes = std::min<std::uint64_t>(left, block.size() * sizeof(block[0]));
      (void)file.write(std::as_bytes(std::span(block)).first(bytes));
      left -= bytes;
    }
    (void)file.commit();
  }

  artifact::NgramTableView view_;
  std::filesystem::path path_;
  MappedFile map_;
};

const Table& table() {
  static const Table instance;
  return instance;
}

void gather(benchmark::State& state, const backend::NgramOptions& options, bool cold) {
  const auto store = backend::open_ngram_store(table().view(), *kernels::available_kernels().front(), options).value();
  std::mt19937_64 random(2);
  std::vector<std::int64_t> ids(kGather);
  std::vector<float> out(kGather * kDim);
  if (!cold) table().make_warm();
  for (auto _ : state) {
    state.PauseTiming();
    for (std::int64_t& id : ids)
      id = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(table().view().rows));
    if (cold) table().make_cold();
    state.ResumeTiming();
    if (const Status status = store->gather(ids, out.data()); !status)
      state.SkipWithError(status.error().message.c_str());
  }
  state.SetLabel(store->describe());
  state.counters["rows/s"] =
      benchmark::Counter(static_cast<double>(kGather), benchmark::Counter::kIsIterationInvariantRate);
}

/// Arguments: pread instead of io_uring, O_DIRECT, cold, queue depth.
void streamed(benchmark::State& state) {
  backend::NgramOptions options;
  options.mode = backend::NgramMode::Streamed;
  options.cache_bytes = 1 << 20;
  options.force_pread = state.range(0) != 0;
  options.direct = state.range(1) != 0;
  options.queue_depth = static_cast<unsigned>(state.range(3));
  gather(state, options, state.range(2) != 0);
}
BENCHMARK(streamed)
    ->ArgNames({"pread", "direct", "cold", "depth"})
    ->ArgsProduct({{0}, {1}, {1}, {1, 4, 16, 64, 256}})
    ->ArgsProduct({{1}, {1}, {1}, {1, 4, 16}})
    ->ArgsProduct({{0, 1}, {0}, {0, 1}, {16}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

/// All rows asked for are in the cache.
void hits(benchmark::State& state) {
  backend::NgramOptions options;
  options.mode = backend::NgramMode::Streamed;
  options.cache_bytes = 64 << 20;
  const auto store = backend::open_ngram_store(table().view(), *kernels::available_kernels().front(), options).value();
  std::vector<std::int64_t> ids(kGather);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i * 37);
  std::vector<float> out(kGather * kDim);
  if (!store->gather(ids, out.data())) state.SkipWithError("the table cannot be read");
  for (auto _ : state) (void)store->gather(ids, out.data());
  state.counters["rows/s"] =
      benchmark::Counter(static_cast<double>(kGather), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(hits)->UseRealTime()->Unit(benchmark::kMillisecond);

/// Argument: cold, where every row is a page fault.
void resident(benchmark::State& state) {
  backend::NgramOptions options;
  options.mode = backend::NgramMode::Resident;
  gather(state, options, state.range(0) != 0);
}
BENCHMARK(resident)->ArgName("cold")->Arg(0)->Arg(1)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
