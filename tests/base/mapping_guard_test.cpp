// Files that are cut short while they are mapped: zeros and an error with a name, where the process would have ended.
#include "base/mapping_guard.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/file.hpp"
#include "support/scratch.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::ScratchDirectory;

constexpr std::size_t kPages = 64;

std::size_t page() {
  return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

/// A mapped file of kPages pages and 100 bytes, all of them 'x'.
MappedFile make_map(const fs::path& path) {
  EXPECT_TRUE(write_file(path, std::string(kPages * page() + 100, 'x')));
  return MappedFile::open(path).value();
}

std::size_t count(const MappedFile& map, char c) {
  return static_cast<std::size_t>(std::count(map.bytes().begin(), map.bytes().end(), static_cast<std::byte>(c)));
}

TEST(MappingGuard, AShorterFileReadsAsZerosAndSaysSo) {
  const ScratchDirectory scratch;
  const std::size_t whole = kPages * page() + 100;
  // A whole page less, to nothing, in the middle of a page, and by one byte, which faults nowhere.
  for (const std::size_t left : {(kPages - 1) * page(), std::size_t{0}, page() + 1, whole - 1}) {
    SCOPED_TRACE(left);
    const MappedFile map = make_map(scratch / "file");
    const MappedFile other = make_map(scratch / "other");
    EXPECT_TRUE(map.intact());
    fs::resize_file(scratch / "file", left);
    EXPECT_EQ(count(map, 'x'), left);
    EXPECT_EQ(count(map, '\0'), whole - left);
    const Status shrunk = map.intact();
    ASSERT_FALSE(shrunk);
    EXPECT_EQ(shrunk.error().kind, ErrorKind::Io);
    EXPECT_TRUE(shrunk.error().message.starts_with((scratch / "file").string())) << shrunk.error().message;
    EXPECT_NE(shrunk.error().message.find("shrank"), std::string::npos) << shrunk.error().message;
    // The neighbour is untouched, and what has been read wrongly does not become right again.
    EXPECT_EQ(count(other, 'x'), whole);
    EXPECT_TRUE(other.intact());
    fs::resize_file(scratch / "file", whole);
    EXPECT_FALSE(map.intact());
  }
}

/// Whatever is written, and wherever the name has gone meanwhile. The map is of an old file: a write in the same tick
/// of the system's clock as the one that made the file would not be told from it.
TEST(MappingGuard, AFileThatIsWrittenToSaysSo) {
  const ScratchDirectory scratch;
  const fs::path path = scratch / "file";
  const std::size_t whole = kPages * page() + 100;
  const std::vector<void (*)(const fs::path&, std::size_t)> changes{
      [](const fs::path& file, std::size_t size) {
        std::FILE* out = std::fopen(file.c_str(), "r+b");
        std::fputc('y', out);
        std::fclose(out);
        EXPECT_EQ(fs::file_size(file), size);
      },
      [](const fs::path& file, std::size_t size) {  // as cp over an existing file, while nobody reads
        fs::resize_file(file, 0);
        fs::resize_file(file, size);
      },
      [](const fs::path& file, std::size_t size) { fs::resize_file(file, 2 * size); },
      [](const fs::path& file, std::size_t size) {  // faults nowhere
        fs::resize_file(file, size - 1);
        fs::rename(file, file.string() + ".away");
      }};
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(write_file(path, std::string(whole, 'x')));
    fs::last_write_time(path, fs::last_write_time(path) - std::chrono::hours(1));
    const MappedFile map = MappedFile::open(path).value();
    EXPECT_TRUE(map.intact());
    changes[i](path, whole);
    const Status changed = map.intact();
    ASSERT_FALSE(changed);
    EXPECT_EQ(changed.error().kind, ErrorKind::Io);
    EXPECT_TRUE(changed.error().message.starts_with(path.string())) << changed.error().message;
  }
}

TEST(MappingGuard, AFileThatIsReplacedIsIntact) {
  const ScratchDirectory scratch;
  const MappedFile map = make_map(scratch / "file");
  ASSERT_TRUE(write_file(scratch / "file", "another file"));
  EXPECT_TRUE(map.intact());
  fs::remove(scratch / "file");
  EXPECT_TRUE(map.intact());
  EXPECT_EQ(count(map, 'x'), kPages * page() + 100);
}

TEST(MappingGuard, TheMarkMovesWithTheMap) {
  const ScratchDirectory scratch;
  MappedFile map = make_map(scratch / "file");
  fs::resize_file(scratch / "file", 0);
  EXPECT_EQ(count(map, 'x'), 0U);
  MappedFile moved = std::move(map);
  EXPECT_FALSE(moved.intact());
  MappedFile fresh = make_map(scratch / "fresh");
  std::swap(moved, fresh);
  EXPECT_TRUE(moved.intact());
  EXPECT_FALSE(fresh.intact());
}

TEST(MappingGuard, ThreadsThatReadAtTheSameTimeAllGoOn) {
  const ScratchDirectory scratch;
  for (int round = 0; round < 20; ++round) {
    const MappedFile map = make_map(scratch / "file");
    std::atomic<bool> cut{false};
    std::vector<std::thread> readers;
    readers.reserve(4);
    for (int i = 0; i < 4; ++i) {
      readers.emplace_back([&] {
        for (bool last = false; !last;) {
          last = cut.load();
          static_cast<void>(count(map, 'x'));
        }
      });
    }
    fs::resize_file(scratch / "file", page());
    cut = true;
    for (std::thread& reader : readers) reader.join();
    EXPECT_EQ(count(map, 'x'), page());
    EXPECT_FALSE(map.intact());
  }
}

TEST(MappingGuard, ReleasedPagesOfALostMapStayReadable) {
  const ScratchDirectory scratch;
  const MappedFile map = make_map(scratch / "file");
  fs::resize_file(scratch / "file", page());
  EXPECT_EQ(count(map, 'x'), page());
  map.release_pages();
  EXPECT_EQ(count(map, 'x'), page());
  EXPECT_FALSE(map.intact());
}

TEST(MappingGuard, RangesAreUsedAgain) {
  const ScratchDirectory scratch;
  ASSERT_TRUE(write_file(scratch / "file", "x"));
  for (int i = 0; i < 20'000; ++i) ASSERT_TRUE(MappedFile::open(scratch / "file"));
}

/// Faults that are none of ours keep their meaning: the end by a signal, or a sanitizer's report.
TEST(MappingGuardDeathTest, OtherBusErrorsEndTheProcess) {
  const ScratchDirectory scratch;
  const MappedFile map = make_map(scratch / "file");
  EXPECT_DEATH(::raise(SIGBUS), "");
}

}  // namespace
}  // namespace lockstep
