#include "base/progress.hpp"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Progress, SilentWhenStandardErrorIsNoTerminal) {
  testing::internal::CaptureStderr();  // a file
  {
    Progress progress("reading", 1'000'000, ProgressUnit::Bytes);
    const auto start = std::chrono::steady_clock::now();
    // Longer than a bar on a terminal would stay quiet.
    while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(700)) progress.add(1);
    progress.set(2'000'000);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(FormatBytes, ThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "1.00 kB");
  EXPECT_EQ(format_bytes(1234), "1.23 kB");
  EXPECT_EQ(format_bytes(9996), "10.0 kB");
  EXPECT_EQ(format_bytes(99'960), "100 kB");
  EXPECT_EQ(format_bytes(999'600), "1.00 MB");
  EXPECT_EQ(format_bytes(45.67e9), "45.7 GB");
  EXPECT_EQ(format_bytes(1234e12), "1234 TB");
}

}  // namespace
}  // namespace lockstep
