#include "base/memory.hpp"

#include <fstream>

#include <gtest/gtest.h>

#include "support/scratch.hpp"

namespace lockstep {
namespace {

class AvailableMemory : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }
  [[nodiscard]] std::uint64_t available() const { return available_memory(root_.path()); }

 private:
  test::ScratchDirectory root_;
};

TEST_F(AvailableMemory, IsUnboundedWhereNothingIsKnown) {
  EXPECT_EQ(available(), UINT64_MAX);
}

TEST_F(AvailableMemory, IsWhatTheSystemSays) {
  write("proc/meminfo", "MemTotal:       16000 kB\nMemAvailable:    8000 kB\n");
  EXPECT_EQ(available(), 8000U * 1024);
  write("proc/self/cgroup", "0::/user\n");
  write("sys/fs/cgroup/user/memory.max", "max\n");
  write("sys/fs/cgroup/user/memory.current", "100\n");
  EXPECT_EQ(available(), 8000U * 1024);
}

TEST_F(AvailableMemory, RespectsLimitsOfVersionTwoUpToTheRoot) {
  write("proc/meminfo", "MemAvailable:    8000 kB\n");
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("sys/fs/cgroup/outer/inner/memory.max", "1000000\n");
  write("sys/fs/cgroup/outer/inner/memory.current", "600000\n");
  write("sys/fs/cgroup/outer/inner/memory.stat", "anon 300000\nfile_mapped 7\nfile 250000\n");
  EXPECT_EQ(available(), 650000U);
  write("sys/fs/cgroup/outer/memory.max", "700000\n");
  write("sys/fs/cgroup/outer/memory.current", "650000\n");
  EXPECT_EQ(available(), 50000U);
  write("sys/fs/cgroup/outer/memory.current", "900000\n");
  EXPECT_EQ(available(), 0U);
}

TEST_F(AvailableMemory, FallsBackToTheMountInsideAContainer) {
  write("proc/self/cgroup", "0::/../host/path\n");
  write("sys/fs/cgroup/memory.max", "5000\n");
  write("sys/fs/cgroup/memory.current", "1000\n");
  EXPECT_EQ(available(), 4000U);
}

TEST_F(AvailableMemory, RespectsLimitsOfVersionOne) {
  write("proc/self/cgroup", "5:cpu:/x\n4:hugetlb,memory:/docker/abc\nnonsense\n:\n");
  write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "3000\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "10000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "4000\n");
  write("sys/fs/cgroup/memory/memory.stat", "cache 1\ntotal_cache 1500\n");
  EXPECT_EQ(available(), 7500U);
}

TEST_F(AvailableMemory, GarbageCountsAsUnknown) {
  write("proc/meminfo", "MemAvailable:\nMemAvailable: x kB\n");
  write("proc/self/cgroup", "0::/a\n");
  write("sys/fs/cgroup/a/memory.max", "-5\n");
  write("sys/fs/cgroup/a/memory.current", "99999999999999999999999\n");
  EXPECT_EQ(available(), UINT64_MAX);
}

TEST(AvailableMemoryOfThisMachine, IsKnown) {
  EXPECT_GT(available_memory(), 1U << 20);
  EXPECT_LT(available_memory(), UINT64_MAX);
}

TEST(Bytes, AreReadWithUnitsOrNotAtAll) {
  EXPECT_EQ(parse_bytes("0"), 0U);
  EXPECT_EQ(parse_bytes("4096"), 4096U);
  for (const char* text : {"3k", "3K", "3kb", "3KB", "3KiB"}) EXPECT_EQ(parse_bytes(text), 3U * 1024) << text;
  EXPECT_EQ(parse_bytes("7b"), 7U);
  EXPECT_EQ(parse_bytes("2T"), std::uint64_t{2} << 40);
  EXPECT_EQ(parse_bytes("18446744073709551615"), UINT64_MAX);
  for (const char* text : {"", "K", "-1", "+1", "1.5", " 1", "1 K", "1X", "1ib", "1KK", "18446744073709551616",
                           "16777216T", "99999999999999999999", "0x10"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace lockstep
