// `lockstep verify`.
#include <gtest/gtest.h>

#include <fstream>

#include "base/json.hpp"
#include "cli/process.hpp"
#include "support/scratch.hpp"

namespace lockstep::test {
namespace {

const std::string kModel = LOCKSTEP_TEST_DATA "/toy-pack";

TEST(Verify, PrintsATableAndKeepsAReceipt) {
  const ScratchDirectory scratch;
  const std::string receipt = (scratch / "receipt.json").string();
  const Outcome result =
      run_lockstep({"verify", kModel, "--seconds", "1", "--tokens", "2", "--seed", "3", "--receipt", receipt});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"gate", "instruction sets", "speculative decoding", "reference ids sha256"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  }
  std::ifstream file(receipt);
  const auto json = parse_json(std::string(std::istreambuf_iterator<char>(file), {}), "receipt");
  ASSERT_TRUE(json);
  EXPECT_EQ(json->at("format"), "lockstep-receipt-1");
  EXPECT_EQ(json->at("seed"), 3);
  EXPECT_EQ(json->at("passed"), true);
}

TEST(Verify, JsonGoesToStandardOutput) {
  const Outcome result = run_lockstep({"verify", "-m", kModel, "--seconds", "1.5", "--tokens", "1", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto json = parse_json(result.out, "output");
  ASSERT_TRUE(json) << result.out;
  EXPECT_GT(json->at("gates").size(), 4U);
}

TEST(Verify, WrongUsage) {
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{{"--seconds", "nan"},
                                                                                     {"--seconds", "inf"},
                                                                                     {"--seconds", "0"},
                                                                                     {"--seconds=-5"},
                                                                                     {"--tokens", "0"},
                                                                                     {"--tokens", "nan"},
                                                                                     {"--seed", "-1"},
                                                                                     {"--threads", "-1"},
                                                                                     {"--receipt", ""}}) {
    std::vector<std::string> arguments{LOCKSTEP_BINARY, "verify", kModel};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    const Outcome result = run_process({.arguments = std::move(arguments), .timeout = std::chrono::seconds(20)});
    EXPECT_EQ(result.exit_code, 2) << wrong.back() << ": " << result.err;
    EXPECT_EQ(result.out, "");
  }
}

TEST(Verify, AReceiptThatCannotBeWrittenIsKnownBeforeTheRun) {
  const Outcome result = run_lockstep({"verify", kModel, "--receipt", "/nonexistent/receipt.json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("/nonexistent/receipt.json"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace lockstep::test
