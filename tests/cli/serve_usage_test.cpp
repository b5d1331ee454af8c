// What `lockstep serve` says before it serves.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/process.hpp"
#include "support/scratch.hpp"

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
                                                       {"serve", "--idle-timeout", "nan"},
                                                       {"serve", "--bank-dir", ""},
                                                       {"serve", "--bank-dir", "/dev/null/bank"},
                                                       {"serve", "--no-bank", "--bank-dir", "bank"},
                                                       {"serve", "--bank-writes", "0"},
                                                       {"serve", "--max-bodies", "0"},
                                                       {"serve", "--max-bodies", "1M"},
                                                       {"serve", "--model-id", ""},
                                                       {"serve", "--host", ""},
                                                       {"serve", "--allow-host", ""},
                                                       {"serve", "--cors-origin", ""},
                                                       {"serve", "--api-key-file", ""},
                                                       {"serve", "--tls-cert", ""},
                                                       {"serve", "--access-log", ""},
                                                       {"serve", "--frspec", ""},
                                                       {"serve", "--memory", "0"},
                                                       {"serve", "--memory", "1"},
                                                       {"serve", "--memory", "1M"},
                                                       {"serve", "--memory", "1", "--depth", "0"},
                                                       {"serve", "--bank-memory", "0K"},
                                                       {"serve", "--bank-disk", "0"},
                                                       {"serve", "--max-body", "0"},
                                                       {"serve", "--queue", "65537"},
                                                       {"serve", "--prefill-chunk", "4097"}};
  for (const auto& arguments : cases) {
    SCOPED_TRACE(arguments[1] + " " + arguments[2]);
    const Outcome outcome = run_lockstep(arguments);
    EXPECT_GT(outcome.exit_code, 0);
    EXPECT_EQ(outcome.err.find("listening"), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
  EXPECT_EQ(run_lockstep({"serve", "-m", "/no/such/model", "--port", "0"}).exit_code, 1);
}

TEST(Serve, LinksThatLeadNowhereAreSaidToBeThat) {
  const ScratchDirectory scratch;
  const std::string link = (scratch / "link").string();
  std::filesystem::create_symlink("nothing", link);
  const std::vector<std::vector<std::string>> cases = {
      {"serve", "--bank-dir", link}, {"serve", "-m", link}, {"serve", "--tls-cert", link, "--tls-key", link}};
  for (const auto& arguments : cases) {
    const Outcome outcome = run_lockstep(arguments);
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_NE(outcome.err.find(link + ": a symbolic link that leads nowhere"), std::string::npos) << outcome.err;
  }
}

}  // namespace
}  // namespace lockstep::test
