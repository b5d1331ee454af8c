// --ple and --ple-cache: what they accept, and that they do not change a byte.
#include <gtest/gtest.h>

#include <fstream>

#include "cli/process.hpp"
#include "support/scratch.hpp"

namespace lockstep::test {
namespace {

class Ple : public testing::Test {
 protected:
  void SetUp() override { std::ofstream(scratch_ / "ids.json") << "[5, 17, 300, 2, 44, 44, 9]"; }

  [[nodiscard]] Outcome logits(std::vector<std::string> more, const std::string& out) const {
    std::vector<std::string> arguments{"logits", LOCKSTEP_TEST_DATA "/toy-pack",
                                       "--ids",  (scratch_ / "ids.json").string(),
                                       "--out",  (scratch_ / out).string()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run_lockstep(arguments);
  }
  [[nodiscard]] std::string content(const std::string& name) const {
    std::ifstream file(scratch_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  ScratchDirectory scratch_;
};

TEST_F(Ple, ResidencyDoesNotChangeAByte) {
  ASSERT_EQ(logits({"--ple", "resident"}, "resident").exit_code, 0);
  const std::string expected = content("resident");
  ASSERT_GT(expected.size(), 7U * 512 * 4);
  for (const char* cache : {"1K", "2kb", "100M", "1g", "4096"}) {
    const Outcome result = logits({"--ple", "streamed", "--ple-cache", cache}, "streamed");
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(content("streamed"), expected) << cache;
  }
}

TEST_F(Ple, TheProcessorHasNoMemoryOfADevice) {
  for (const char* place : {"device", "pinned"}) {
    for (const Outcome& result : {logits({"--ple", place}, "out"), run_lockstep({"plan", LOCKSTEP_TEST_DATA "/toy-pack",
                                                                                 "--no-measure", "--ple", place})}) {
      EXPECT_EQ(result.exit_code, 2) << result.err;
      EXPECT_NE(result.err.find(std::string("--ple ") + place), std::string::npos) << result.err;
      EXPECT_NE(result.err.find("--device cuda"), std::string::npos) << result.err;
    }
  }
}

TEST_F(Ple, WrongValuesAreWrongUsage) {
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"--ple", "mapped"},
                                             {"--ple-cache", "many"},
                                             {"--ple-cache", "-1"},
                                             {"--ple-cache", "99999999999999T"},
                                             {"--ple-cache", "99999999999999999999"},
                                             {"--ple-cache", ""},
                                             {"--ple-cache", "1.5"},
                                             {"--ple", "streamed", "--ple-cache", "10"}}) {
    const Outcome result = logits(wrong, "out");
    EXPECT_EQ(result.exit_code, 2) << wrong.back() << ": " << result.err;
    EXPECT_TRUE(result.err.starts_with("lockstep: ")) << result.err;
  }
}

}  // namespace
}  // namespace lockstep::test
