// `lockstep ab` with the demo model: a receipt, and the faults that must make one a FAIL.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/json.hpp"
#include "cli/process.hpp"
#include "cli/session.hpp"
#include "support/scratch.hpp"

namespace lockstep::test {
namespace {

constexpr const char* kDemo = LOCKSTEP_SOURCE_DIR "/models/demo";

class Ab : public testing::Test {
 protected:
  /// A small run into the receipt's directory; options in `more` replace those here.
  [[nodiscard]] std::vector<std::string> arguments(const std::vector<std::string>& more) const {
    const std::vector<std::pair<std::string, std::string>> defaults{
        {"--prompt-tokens", "48"}, {"--max-tokens", "8"},   {"--seeds", "1"},
        {"--order", "AB"},         {"--gate-timeout", "0"}, {"--out", (scratch_ / "receipt").string()}};
    std::vector<std::string> out{"ab", "-m", kDemo};
    for (const auto& [name, value] : defaults) {
      if (std::ranges::find(more, name) == more.end()) out.insert(out.end(), {name, value});
    }
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  [[nodiscard]] std::string content(const std::string& name) const {
    std::ifstream file(scratch_ / "receipt" / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  [[nodiscard]] Json json() const { return Json::parse(content("ab.json")); }

  ScratchDirectory scratch_;
};

TEST_F(Ab, AReceiptOfTwoWindows) {
  const Outcome result = run_lockstep(arguments({"--arm", "off=--disable-optimization mtp", "--arm", "on="}));
  ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out, content("ab.md"));
  const Json run = json();
  EXPECT_EQ(run["verdict"], "PASS");
  EXPECT_EQ(run["complete"], true);
  EXPECT_EQ(run["cell"]["prompt_tokens"], 48);
  ASSERT_EQ(run["samples"].size(), 2U);
  for (const Json& sample : run["samples"]) {
    EXPECT_EQ(sample["prefill_tokens"], 48);
    EXPECT_EQ(sample["tokens"], 8);
    EXPECT_GT(sample["peak_memory_bytes"], 1 << 20);
    EXPECT_GT(sample["decode_tokens_per_second"], 0.0);
  }
  EXPECT_EQ(run["samples"][0]["ids_sha256"], run["samples"][1]["ids_sha256"]);
  EXPECT_EQ(run["summary"][1]["lanes_under_test"][0], "mtp");
  EXPECT_EQ(content("ab.svg").substr(0, 4), "<svg");
  EXPECT_EQ(content("ab.csv").substr(0, 7), "window,");
}

TEST_F(Ab, InThisProcess) {
  const Outcome result =
      run_lockstep(arguments({"--in-process", "--arm", "off=--depth 0 --disable-optimization ar_pipeline", "--arm",
                              "on=--depth 0", "--require", "on=ar_pipeline"}));
  ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
  EXPECT_EQ(json()["mode"], "in-process");
  EXPECT_EQ(json()["samples"][1]["lanes"][0], "ar_pipeline");
}

TEST_F(Ab, AnArmThatDiffersFailsWithTheFirstToken) {
  const Outcome result = run_lockstep(arguments({"--in-process", "--seeds", "1,2", "--arm", "a=--temperature 0",
                                                 "--arm", "b=--temperature 2 --top-k 0 --top-p 1"}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("window b1 differs from a1: token "), std::string::npos) << result.err;
  EXPECT_EQ(json()["verdict"], "FAIL");
}

TEST_F(Ab, ALaneThatDoesNotRunFails) {
  // Eight tokens of a short context never reach the sparse selection.
  const Outcome result =
      run_lockstep(arguments({"--arm", "off=--disable-optimization qsa_pooled_rowsel", "--arm", "on="}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("lane qsa_pooled_rowsel did not run"), std::string::npos) << result.err;
}

TEST_F(Ab, AWindowThatCannotRunFails) {
  const Outcome result = run_lockstep(arguments({"--arm", "a=", "--arm", "b=--frspec /nowhere"}));
  EXPECT_EQ(result.exit_code, 1) << result.err;
  EXPECT_NE(json()["windows"][1]["error"].get<std::string>().find("the server ended with code 1"), std::string::npos);
}

TEST_F(Ab, WrongUsageIsSaid) {
  const auto refused = [&](const std::vector<std::string>& more, const std::string& part) {
    const Outcome result = run_lockstep(arguments(more));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
    EXPECT_FALSE(std::filesystem::exists(scratch_ / "receipt" / "ab.json"));
  };
  refused({"--arm", "a="}, "two arms");
  refused({"--arm", "a=", "--arm", "a="}, "twice");
  refused({"--arm", "a=", "--arm", "b=--port 1"}, "--port");
  refused({"--arm", "a=", "--arm", "b=--no-such-flag"}, "--no-such-flag");
  refused({"--arm", "a=", "--arm", "b=", "--control", "c"}, "--control");
  refused({"--arm", "a=", "--arm", "b=", "--prompt-tokens", "1"}, "--prompt-tokens");
  refused({"--arm", "a=", "--arm", "b=", "--max-tokens", "40000"}, "32768");
}

TEST_F(Ab, TheContextSweepFindsLinearGrowthWithoutCopies) {
  const Outcome result =
      run_lockstep({"ab", "-m", kDemo, "--contexts", "64,128,300", "--context-tokens", "4", "--no-gate", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
  const Json sweep = Json::parse(result.out);
  const Json& arm = sweep["arms"][0];
  EXPECT_EQ(arm["contexts"].size(), 3U);
  EXPECT_EQ(arm["growth"]["linear"], true);
  EXPECT_GT(arm["growth"]["bytes_per_token"], 0.0);
  for (const Json& row : arm["contexts"]) EXPECT_EQ(row["pages_kept"], true);
}

TEST_F(Ab, TheContextSweepSaysWhereItEnds) {
  const Outcome result =
      run_lockstep({"ab", "-m", kDemo, "--contexts", "64,40000,50000", "--context-tokens", "2", "--no-gate", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
  const Json rows = Json::parse(result.out)["arms"][0]["contexts"];
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[1]["no_room"], true);
  EXPECT_NE(rows[1]["error"].get<std::string>().find("32768"), std::string::npos) << rows[1];
}

TEST_F(Ab, TheContextSweepKeepsToTheMemory) {
  const auto limited = [](const std::string& contexts) {
    Command command;
    command.arguments = {LOCKSTEP_BINARY,    "ab", "-m",    kDemo,         "--contexts", contexts,
                         "--context-tokens", "2",  "--arm", "a=--depth 0", "--no-gate"};
    command.environment = {{"LOCKSTEP_MEMORY_LIMIT", "80M"}};
    return run_process(command);
  };
  const Outcome part = limited("64,30000,64");
  EXPECT_EQ(part.exit_code, 0) << part.err << part.out;
  EXPECT_NE(part.out.find("| 30000 | ends here: no room in memory: with the model it takes "), std::string::npos)
      << part.out;
  EXPECT_NE(part.out.find("LOCKSTEP_MEMORY_LIMIT is 83886080"), std::string::npos) << part.out;
  EXPECT_NE(part.out.find("Growth not checked (needs three contexts)"), std::string::npos) << part.out;
  EXPECT_EQ(part.out.find("| 64 |"), part.out.rfind("| 64 |")) << "a context twice\n" << part.out;
  const Outcome none = limited("30000");
  EXPECT_EQ(none.exit_code, 1) << "nothing was measured\n" << none.out;
}

TEST_F(Ab, TheContextSweepWaitsForQuiet) {
  // The time-out is over at once; what was seen is in the record whether the machine was quiet or not.
  const Outcome result = run_lockstep({"ab", "-m", kDemo, "--contexts", "64", "--context-tokens", "2", "--max-load",
                                       "0", "--max-busy", "0", "--gate-timeout", "0", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
  const Json gate = Json::parse(result.out)["arms"][0]["contexts"][0]["gate"];
  EXPECT_TRUE(gate["quiet"].is_boolean()) << gate;
  EXPECT_TRUE(gate.contains("load") && gate.contains("exceeded") && gate.contains("unread")) << gate;
}

TEST_F(Ab, TheContextSweepRefusesWhatItIgnores) {
  const auto refused = [](std::vector<std::string> more, const std::string& part) {
    more.insert(more.begin(), {"ab", "-m", kDemo});
    const Outcome result = run_lockstep(more);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  };
  refused({"--contexts", "64", "--order", "ABBA"}, "--order");
  refused({"--contexts", "64", "--control", "a"}, "--control");
  refused({"--contexts", "64", "--seeds", "1"}, "--seeds");
  refused({"--contexts", "64", "--request-timeout", "3"}, "--request-timeout");
  refused({"--context-tokens", "4", "--arm", "a=", "--arm", "b="}, "--context-tokens");
}

TEST_F(Ab, AnInterruptLeavesAPartialReceiptAndNoServer) {
  Session session(Talk::Pipes, arguments({"--arm", "a=", "--arm", "b=", "--gate-timeout", "1000", "--max-busy", "0",
                                          "--max-load", "0"}));
  // The directory is made once signals are caught; the gate of the first sample never opens.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!std::filesystem::exists(scratch_ / "receipt") && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  session.signal(SIGINT);
  EXPECT_EQ(session.wait(), 130) << session.output();
  EXPECT_EQ(json()["complete"], false);
  EXPECT_EQ(json()["verdict"], "FAIL");
}

}  // namespace
}  // namespace lockstep::test
