// `lockstep ab` with the demo model: a receipt, and the faults that must make one a FAIL.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "backend/cuda_devices.hpp"
#include "base/json.hpp"
#include "cli/ab_contexts.hpp"
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
  const std::string program = run_lockstep({"--version"}).out;
  EXPECT_EQ(program,
            fmt::format("lockstep {} ({})\n", run["version"].get<std::string>(), run["commit"].get<std::string>()));
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
  const Json run = json();
  EXPECT_EQ(run["verdict"], "FAIL");
  EXPECT_TRUE(run["summary"][1]["decode_tokens_per_second"]["against_control"].is_null());
  EXPECT_EQ(run["samples"][0]["ids"].size(), run["samples"][0]["tokens"].get<std::size_t>());
  EXPECT_NE(result.out.find("**FAIL**"), std::string::npos) << result.out;
  EXPECT_EQ(result.out.find("| against"), std::string::npos) << result.out;
}

TEST_F(Ab, AStoredRunIsReportedAgain) {
  const Outcome first =
      run_lockstep(arguments({"--in-process", "--no-gate", "--order", "ABA", "--arm", "a=--depth 0", "--arm", "b="}));
  ASSERT_EQ(first.exit_code, 0) << first.err << first.out;
  const std::string stored = (scratch_ / "receipt" / "ab.json").string();
  const Outcome again = run_lockstep({"ab", "--report", stored, "--out", (scratch_ / "again").string()});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(again.out, first.out);
  for (const char* name : {"ab.json", "ab.csv", "ab.md", "ab.svg"}) {
    std::ifstream file(scratch_ / "again" / name);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), content(name)) << name;
  }
  EXPECT_EQ(run_lockstep({"ab", "--report", stored, "--json"}).out, content("ab.json"));
}

TEST_F(Ab, AStoredFailFailsAgain) {
  const Outcome first = run_lockstep(arguments({"--in-process", "--no-gate", "--arm", "a=--temperature 0", "--arm",
                                                "b=--temperature 2 --top-k 0 --top-p 1", "--seeds", "1,2"}));
  ASSERT_EQ(first.exit_code, 1) << first.err;
  const Outcome again = run_lockstep({"ab", "--report", (scratch_ / "receipt" / "ab.json").string()});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_EQ(again.out, first.out);
  EXPECT_EQ(again.err, first.err) << "the first token that differs included";
}

TEST_F(Ab, WhatIsNoStoredRunIsRefused) {
  const auto refused = [](std::vector<std::string> more, int code, const std::string& part) {
    more.insert(more.begin(), {"ab", "--report"});
    const Outcome result = run_lockstep(more);
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  };
  const std::string stored = LOCKSTEP_SOURCE_DIR "/docs/receipts/mtp.json";
  refused({stored, "--seeds", "1"}, 2, "--seeds has no meaning with --report");
  refused({stored, "--no-gate"}, 2, "--no-gate");
  refused({"/nowhere/ab.json"}, 1, "/nowhere/ab.json");
  refused({LOCKSTEP_SOURCE_DIR "/docs/receipts/contexts.json"}, 1, "contexts.json: the receipt's format is");
  refused({LOCKSTEP_SOURCE_DIR "/docs/ab.md"}, 1, "ab.md");
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
  EXPECT_NE(part.out.find("Growth not checked (needs three contexts that fit)"), std::string::npos) << part.out;
  EXPECT_EQ(part.out.substr(0, part.out.find('\n')), "# Context sweep: PASS, growth not checked");
  EXPECT_EQ(part.out.find("| 64 |"), part.out.rfind("| 64 |")) << "a context twice\n" << part.out;
  const Outcome none = limited("30000");
  EXPECT_EQ(none.exit_code, 1) << "nothing was measured\n" << none.out;
}

TEST_F(Ab, TheContextSweepSaysWhereFreeMemoryEnds) {
  // Nobody limits this process; the machine has room for a model and two contexts.
  cli::AbSetup setup;
  setup.model = kDemo;
  setup.message = "A text that prompts are made of. ";
  const std::atomic<bool> interrupted{false};
  setup.interrupted = &interrupted;
  std::vector<std::uint64_t> room{1U << 30, 1U << 30, 1000, 1U << 30};
  std::size_t looked = 0;
  cli::SweepOptions options{.contexts = {64, 128, 30000, 31000},
                            .tokens = 2,
                            .gate = [] { return report::GateRecord{}; },
                            .available = [&] { return room.at(looked++); }};
  const auto found = cli::sweep_contexts(setup, {{"a", {}, {"--depth", "0"}}}, options);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(looked, 4U) << "before each context, none after the one without room, and the one that is added";
  const OrderedJson rows = (*found)["arms"][0]["contexts"];
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[1]["context"], 96) << "halfway between the two that fit";
  EXPECT_EQ(rows[1]["added"], true);
  EXPECT_EQ((*found)["arms"][0]["growth"]["linear"], true);
  EXPECT_EQ((*found)["verdict"], "PASS");
  EXPECT_GT(rows[2]["decode_tokens_per_second"], 0.0);
  EXPECT_EQ(rows[3]["no_room"], true);
  const std::string error = rows[3]["error"];
  const std::uint64_t state = rows[2]["state_bytes"];
  std::uint64_t needed = 0;
  ASSERT_EQ(std::sscanf(error.c_str(), "no room in memory: its state takes %lu bytes, 1000 are available", &needed), 1)
      << error;
  EXPECT_GT(needed, 10 * state) << "of 30,000 tokens instead of 130";
  EXPECT_TRUE(error.ends_with("1000 are available")) << error;
  EXPECT_TRUE(cli::sweep_passed(*found));
  EXPECT_NE(cli::sweep_markdown(*found).find("| 30000 | ends here: no room in memory: its state takes "),
            std::string::npos);
  // A context for which there is never room: nothing was measured.
  room = {1000};
  looked = 0;
  options.contexts = {30000};
  const auto none = cli::sweep_contexts(setup, {{"a", {}, {"--depth", "0"}}}, options);
  ASSERT_TRUE(none) << none.error().message;
  EXPECT_EQ((*none)["verdict"], "FAIL");
  // --force-memory does not look.
  room.clear();
  looked = 0;
  options.contexts = {64};
  const auto forced = cli::sweep_contexts(setup, {{"a", {}, {"--depth", "0", "--force-memory"}}}, options);
  ASSERT_TRUE(forced) << forced.error().message;
  EXPECT_EQ((*forced)["verdict"], "PASS, growth not checked");
  // Between neighbours there is no third.
  options.contexts = {64, 65};
  const auto neighbours = cli::sweep_contexts(setup, {{"a", {}, {"--depth", "0", "--force-memory"}}}, options);
  ASSERT_TRUE(neighbours) << neighbours.error().message;
  EXPECT_EQ((*neighbours)["arms"][0]["contexts"].size(), 2U);
  EXPECT_EQ((*neighbours)["verdict"], "PASS, growth not checked");
}

void collect_keys(const Json& json, std::set<std::string>& out) {
  if (json.is_array()) {
    for (const Json& item : json) collect_keys(item, out);
  }
  if (!json.is_object()) return;
  for (const auto& item : json.items()) {
    out.insert(item.key());
    if (item.key() != "environment") collect_keys(item.value(), out);
  }
}

TEST_F(Ab, TheContextSweepKnowsACudaDevicesMemory) {
  if (const auto tried = backend::open_cuda_device(0); !tried) {
    GTEST_SKIP() << "no CUDA device: " << tried.error().message;
  }
  cli::AbSetup setup;
  setup.in_memory = "toy";
  setup.message = "A text that prompts are made of. ";
  const std::atomic<bool> interrupted{false};
  setup.interrupted = &interrupted;
  cli::SweepOptions options{
      .contexts = {64, 200, 400}, .tokens = 2, .gate = [] { return report::GateRecord{}; }, .available = {}};
  const std::vector<report::Arm> arms{{"gpu", {}, {"--depth", "0", "--device", "cuda"}}};
  const auto all = cli::sweep_contexts(setup, arms, options);
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_EQ((*all)["verdict"], "PASS");
  // The device says that it has less.
  std::vector<std::uint64_t> room{1U << 30, 1000};
  std::size_t looked = 0;
  options.available = [&]() -> Result<std::uint64_t> { return room.at(looked++); };
  options.contexts = {64, 20000};
  const auto part = cli::sweep_contexts(setup, arms, options);
  ASSERT_TRUE(part) << part.error().message;
  const OrderedJson rows = (*part)["arms"][0]["contexts"];
  EXPECT_EQ(rows[1]["no_room"], true);
  const std::string error = rows[1]["error"];
  EXPECT_TRUE(error.starts_with("no room in the memory of cuda:0: its state takes ")) << error;
  EXPECT_TRUE(error.ends_with(" bytes, 1000 are available")) << error;
}

TEST_F(Ab, TheContextSweepsFieldsAreDocumented) {
  const Outcome result = run_lockstep({"ab", "-m", kDemo, "--contexts", "64,300,40000", "--context-tokens", "2",
                                       "--no-gate", "--arm", "a=--depth 0", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err << result.out;
  EXPECT_EQ(Json::parse(result.out)["verdict"], "PASS");
  std::set<std::string> keys;
  collect_keys(Json::parse(result.out), keys);
  EXPECT_TRUE(keys.contains("no_room") && keys.contains("linear") && keys.contains("added")) << result.out;
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/docs/ab.md");
  const std::string page(std::istreambuf_iterator<char>(file), {});
  for (const std::string& key : keys) {
    EXPECT_TRUE(page.find("`" + key + "`") != std::string::npos || page.find("`" + key + "[]`") != std::string::npos)
        << key << " is not in docs/ab.md";
  }
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
