// What `lockstep serve` says before it serves.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/process.hpp"

namespace lockstep::test {
namespace {

TEST(Serve, WrongUsage) {
  const std::vector<std::vector<std::string>> cases = {{"serve", "--port", "70000"},
                                                       {"serve", "--tls-cert", "x"},
                                                       {"serve", "--api-key", ""},
                                                       {"serve", "--api-key", "a b"},
                                                       {"serve", "--parallel", "0"},
                                                       {"serve", "--max-connections", "0"},
                                                       {"serve", "--api-key-file", "/dev/null/x"},
                                                       {"serve", "--max-body", "-1"},
                                                       {"serve", "--idle-timeout", "nan"}};
  for (const auto& arguments : cases) {
    SCOPED_TRACE(arguments[1] + " " + arguments[2]);
    EXPECT_GT(run_lockstep(arguments).exit_code, 0);
  }
  EXPECT_EQ(run_lockstep({"serve", "-m", "/no/such/model", "--port", "0"}).exit_code, 1);
}

}  // namespace
}  // namespace lockstep::test
