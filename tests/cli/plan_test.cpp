// `lockstep plan`, the refusal of models that do not fit, and models in memory, seen from outside.
#include <gtest/gtest.h>

#include "base/json.hpp"
#include "cli/process.hpp"

namespace lockstep::test {
namespace {

const std::string kToy = LOCKSTEP_TEST_DATA "/toy-pack";
const std::string kDemo = LOCKSTEP_SOURCE_DIR "/models/demo";

Outcome run_limited(std::vector<std::string> arguments, const std::string& limit) {
  Command command;
  command.arguments = std::move(arguments);
  command.arguments.insert(command.arguments.begin(), LOCKSTEP_BINARY);
  command.environment = {{"LOCKSTEP_MEMORY_LIMIT", limit}};
  return run_process(command);
}

Json planned(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {"plan", "--no-measure", "--json"});
  const Outcome result = run_lockstep(std::move(arguments));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return parse_json(result.out, "output").value();
}

TEST(Plan, PrintsATable) {
  const Outcome result = run_lockstep({"plan", kToy, "--context", "100", "--parallel", "3"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  for (const char* part : {"weights", "n-gram table", "state of a sequence", "state of a token", "3 x 100 tokens",
                           "scratch", "total", "it fits", "tokens/s"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  }
  const Outcome quick = run_lockstep({"plan", kToy, "--no-measure"});
  EXPECT_EQ(quick.out.find("tokens/s"), std::string::npos);
}

TEST(Plan, JsonAddsUp) {
  const Json json = planned({kToy, "--context", "64", "--parallel", "2"});
  const Json& bytes = json.at("bytes");
  std::uint64_t sum = 0;
  for (const char* part : {"weights_packed", "weights_mapped", "copies", "table", "states", "scratch"}) {
    sum += bytes.at(part).get<std::uint64_t>();
  }
  EXPECT_EQ(bytes.at("total"), sum);
  EXPECT_EQ(json.at("fits"), true);
  EXPECT_EQ(json.at("parallel"), 2);
  EXPECT_EQ(json.at("table_mode"), "resident");
  EXPECT_EQ(planned({kToy, "--ple", "streamed"}).at("table_mode"), "streamed");
  EXPECT_GT(planned({kToy, "--context", "1000"}).at("bytes").at("states"), bytes.at("states"));
}

TEST(Plan, ExitsWithOneWhenItDoesNotFit) {
  const Outcome result = run_limited({"plan", kToy, "--no-measure", "--json"}, "1M");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("does not fit in memory"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("LOCKSTEP_MEMORY_LIMIT allows 1.05 MB"), std::string::npos) << result.err;
  const auto json = parse_json(result.out, "output");
  ASSERT_TRUE(json);
  EXPECT_EQ(json->at("fits"), false);
  EXPECT_EQ(json->at("bytes").at("available"), 1 << 20);
  EXPECT_EQ(run_limited({"plan", kToy, "--no-measure", "--force-memory"}, "1M").exit_code, 0);
}

TEST(Plan, Usage) {
  EXPECT_EQ(run_lockstep({"plan", kToy, "--context", "0"}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"plan", kToy, "--context", "99999999"}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"plan", kToy, "--parallel", "0"}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"plan", kToy, "--device", "cuda:x"}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"plan", kToy, "--isa", "avx1024"}).exit_code, 2);
  EXPECT_EQ(run_limited({"plan", kToy}, "10x").exit_code, 2);
  EXPECT_EQ(run_limited({"plan", kToy}, "99999999999999T").exit_code, 2);
}

TEST(MemoryLimit, LoadersRefuseWhatDoesNotFit) {
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"run", "-p", "hello", "-m", kDemo},
        {"bench", kDemo, "--prompt", "0", "--tokens", "1"},
        {"verify", kDemo, "--seconds", "1"},
        {"logits", kDemo, "--ids", LOCKSTEP_TEST_DATA "/none.json", "--out", "/nonexistent/x"}}) {
    SCOPED_TRACE(command.front());
    const Outcome result = run_limited(command, "8M");
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(result.out, "");
    if (command.front() == "logits") continue;  // its input is missing: said first
    EXPECT_NE(result.err.find("does not fit in memory"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("LOCKSTEP_MEMORY_LIMIT allows 8.39 MB"), std::string::npos) << result.err;
  }
}

TEST(MemoryLimit, ForceLoadsAnyway) {
  const Outcome result =
      run_limited({"run", "-p", "hello", "-m", kDemo, "--max-tokens", "2", "--seed", "1", "--force-memory"}, "8M");
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST(InMemory, RunAndBenchSayThatTheModelIsSynthetic) {
  const Outcome run =
      run_lockstep({"run", "--in-memory", "toy", "--raw", "-p", "hello", "--max-tokens", "3", "--stats"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.err.find("synthetic model toy, recipe bare, seed 1"), std::string::npos) << run.err;
  const Outcome bench = run_lockstep(
      {"bench", "--in-memory", "toy:optimized:7", "--prompt", "8", "--tokens", "1", "--repetitions", "1", "--json"});
  EXPECT_EQ(bench.exit_code, 0) << bench.err;
  const auto json = parse_json(bench.out, "output");
  ASSERT_TRUE(json);
  EXPECT_EQ(json->at("synthetic"), "synthetic model toy, recipe optimized, seed 7 (random weights)");
}

TEST(InMemory, BenchMeasuresSeveralSequencesTogether) {
  const Outcome bench =
      run_lockstep({"bench", "--in-memory", "toy", "--ngram-rows", "500", "--prompt", "0", "--depth", "3,40", "--width",
                    "1,2", "--parallel", "1,3", "--tokens", "2", "--repetitions", "1", "--json"});
  EXPECT_EQ(bench.exit_code, 0) << bench.err;
  const auto json = parse_json(bench.out, "output");
  ASSERT_TRUE(json);
  EXPECT_EQ(json->at("synthetic"), "synthetic model toy, recipe bare, seed 1, 500 n-gram rows a head (random weights)");
  ASSERT_EQ(json->at("cases").size(), 8U);
  for (const Json& entry : json->at("cases")) {
    EXPECT_GT(entry.at("tokens_per_second"), 0.0);
    EXPECT_EQ(entry.contains("bytes_per_second"), entry.at("width") == 1 && entry.at("streams") == 1) << entry;
  }
  EXPECT_EQ(json->at("cases")[7].at("name"), "3 streams, steps of 2 at 40");
}

TEST(InMemory, PlanVerifyAndAbTakeSyntheticModels) {
  const Outcome plan = run_lockstep({"plan", "--in-memory", "toy:bare:3", "--no-measure", "--json"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  const auto planned = parse_json(plan.out, "output");
  ASSERT_TRUE(planned);
  EXPECT_EQ(planned->at("bytes").at("weights_mapped"), 0);
  const Outcome verify = run_lockstep({"verify", "--in-memory", "toy", "--seconds", "1", "--tokens", "8", "--json"});
  EXPECT_EQ(verify.exit_code, 0) << verify.err;
  const auto proved = parse_json(verify.out, "output");
  ASSERT_TRUE(proved);
  EXPECT_EQ(proved->at("passed"), true);
  for (const bool served : {false, true}) {
    std::vector<std::string> command{"ab", "--in-memory", "toy",         "--ngram-rows",    "400",   "--arm",
                                     "a=", "--arm",       "b=--depth 0", "--prompt-tokens", "60",    "--max-tokens",
                                     "4",  "--seeds",     "1",           "--no-gate",       "--json"};
    if (!served) command.emplace_back("--in-process");
    const Outcome ab = run_lockstep(command);
    EXPECT_EQ(ab.exit_code, 0) << ab.err;
    const auto compared = parse_json(ab.out, "output");
    ASSERT_TRUE(compared);
    EXPECT_EQ(compared->at("verdict"), "PASS");
  }
}

TEST(InMemory, Usage) {
  for (const char* wrong : {"toy:best", "toy:bare:x", "toy:bare:-1", "toy:1", "nothing", ""}) {
    EXPECT_EQ(run_lockstep({"bench", "--in-memory", wrong}).exit_code, 2) << wrong;
  }
  EXPECT_EQ(run_lockstep({"bench", "--in-memory", "toy", "-m", kToy}).exit_code, 2);
  EXPECT_EQ(run_limited({"bench", "--in-memory", "mid"}, "1G").exit_code, 1);
}

}  // namespace
}  // namespace lockstep::test
