#include "cli/options.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

/// A scratch directory, removed at the end, with LOCKSTEP_MODEL unset around each test.
class FindModel : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root_);
    fs::create_directories(root_);
    ::unsetenv("LOCKSTEP_MODEL");
  }
  void TearDown() override {
    ::unsetenv("LOCKSTEP_MODEL");
    fs::remove_all(root_);
  }
  fs::path model(const std::string& name) const {
    fs::create_directories(root_ / name);
    std::ofstream(root_ / name / "config.json") << "{}";
    return root_ / name;
  }
  fs::path root_;
};

TEST_F(FindModel, TheOptionWinsOverTheEnvironment) {
  const fs::path first = model("first");
  const fs::path second = model("second");
  ::setenv("LOCKSTEP_MODEL", second.c_str(), 1);
  EXPECT_EQ(find_model(first.string()).value(), first);
  EXPECT_EQ(find_model("").value(), second);
}

TEST_F(FindModel, ANamedModelThatIsNoneIsAnErrorWithItsOrigin) {
  const auto missing = find_model((root_ / "missing").string());
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().kind, ErrorKind::NotFound);
  EXPECT_NE(missing.error().message.find("missing' (from --model) is not a directory"), std::string::npos);

  ::setenv("LOCKSTEP_MODEL", root_.c_str(), 1);
  const auto empty = find_model("");
  ASSERT_FALSE(empty);
  EXPECT_NE(empty.error().message.find("(from LOCKSTEP_MODEL) has no config.json"), std::string::npos);
}

TEST_F(FindModel, AnEmptyEnvironmentVariableCountsAsUnset) {
  ::setenv("LOCKSTEP_MODEL", "", 1);
  const auto found = find_model("");
  if (found) {
    EXPECT_EQ(found->filename(), "demo");
  } else {
    EXPECT_NE(found.error().message.find("share/lockstep/models/demo"), std::string::npos);
    EXPECT_NE(found.error().message.find("--model"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep::cli
