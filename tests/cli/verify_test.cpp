// `lockstep verify`.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "base/json.hpp"
#include "cli/process.hpp"
#include "cli/receipt.hpp"
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
  for (const char* part : {"gate", "instruction sets", "identity", "tensor inventory", "lane mtp", "reference ids"}) {
    EXPECT_NE(result.out.find(part), std::string::npos) << part << "\n" << result.out;
  }
  std::ifstream file(receipt);
  const auto json = parse_json(std::string(std::istreambuf_iterator<char>(file), {}), "receipt");
  ASSERT_TRUE(json);
  EXPECT_EQ(json->at("format"), "lockstep-receipt-1");
  EXPECT_EQ(json->at("seed"), 3);
  EXPECT_EQ(json->at("passed"), true);
  EXPECT_EQ(json->at("reference_ids_sha256").get<std::string>().size(), 64U);
  for (const auto& answer : json->at("reference")) EXPECT_EQ(answer.at("ids_sha256").get<std::string>().size(), 64U);
  EXPECT_GT(json->at("machine").at("physical_cores"), 0);
  EXPECT_FALSE(json->at("instruction_sets").empty());
  EXPECT_FALSE(json->at("thread_counts").empty());
}

TEST(Verify, JsonGoesToStandardOutput) {
  const Outcome result = run_lockstep({"verify", "-m", kModel, "--seconds", "1.5", "--tokens", "1", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto json = parse_json(result.out, "output");
  ASSERT_TRUE(json) << result.out;
  EXPECT_GT(json->at("gates").size(), 4U);
}

TEST(Verify, HashesOfFilesAndTextsGoIntoTheReceipt) {
  const std::string demo = LOCKSTEP_SOURCE_DIR "/models/demo";
  const Outcome result = run_lockstep({"verify", demo, "--seconds", "1", "--tokens", "1", "--json", "--hash"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto json = parse_json(result.out, "output");
  ASSERT_TRUE(json) << result.out;
  EXPECT_EQ(json->at("model").at("files").at("config.json").at("sha256"), json->at("model").at("config_sha256"));
  EXPECT_EQ(json->at("reference_text_sha256").get<std::string>().size(), 64U);
  for (const auto& answer : json->at("reference")) EXPECT_EQ(answer.at("text_sha256").get<std::string>().size(), 64U);
}

decode::GateReport failed_report() {
  decode::GateReport report;
  report.gates.push_back({"thread counts", 2, 2, true, "", 0.1, std::nullopt, 0});
  report.gates.push_back({"lane qsa_pooled_rowsel", 1, 4, false, "request 0 (here): token 5 differs", 0.1,
                          decode::LaneId::QsaPooledRowsel, 3});
  return report;
}

TEST(Verify, ADifferenceIsExitCode1AndNamed) {
  const decode::GateReport report = failed_report();
  const Status verdict = cli::verify_verdict(report);
  ASSERT_FALSE(verdict);
  EXPECT_NE(verdict.error().kind, ErrorKind::Usage);  // exit code 1, not 2
  EXPECT_NE(verdict.error().message.find("lane qsa_pooled_rowsel: request 0 (here): token 5 differs"),
            std::string::npos);
  const std::string table = cli::verify_table(report);
  EXPECT_NE(table.find("DIFFERS"), std::string::npos);
  EXPECT_NE(table.find("token 5 differs"), std::string::npos);
}

TEST(Verify, AFileWithOtherBytesIsNotTheBuildsFault) {
  decode::GateReport report;
  report.gates.push_back({"file hashes", 2, 2, false, "config.json has changed", 0.1, std::nullopt, 0});
  const Status verdict = cli::verify_verdict(report);
  ASSERT_FALSE(verdict);
  EXPECT_EQ(verdict.error().message.find("must not be trusted"), std::string::npos);
  EXPECT_TRUE(verdict.error().message.starts_with("config.json has changed while verify ran"));
}

TEST(Verify, AModelThatChangesUnderTheProcessIsExitCode1) {
  const ScratchDirectory scratch;
  std::filesystem::copy(kModel, scratch / "model");
  std::atomic<bool> done = false;
  // The configuration grows by white space all the time, so that it is another file at the end than at the start.
  std::thread writer([&] {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable never;
    do {
      std::ofstream(scratch / "model" / "config.json", std::ios::app) << "\n";
      never.wait_for(lock, std::chrono::milliseconds(5));
    } while (!done);
  });
  const Outcome result = run_lockstep({"verify", scratch / "model", "--seconds", "1", "--tokens", "2"});
  done = true;
  writer.join();
  EXPECT_EQ(result.exit_code, 1) << result.out << result.err;
  EXPECT_NE(result.err.find("config.json has grown or shrunk"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("while verify ran, so nothing is proved"), std::string::npos) << result.err;
}

/// Cuts the table of a model short while a command reads it.
Outcome run_while_shrinking(const ScratchDirectory& scratch, std::vector<std::string> arguments) {
  std::filesystem::copy(LOCKSTEP_SOURCE_DIR "/models/demo", scratch / "model");
  const std::filesystem::path table = scratch / "model" / "ngram-table.safetensors";
  std::thread writer([&] {
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable never;
    never.wait_for(lock, std::chrono::milliseconds(300));  // earlier or later, the outcome must be the same
    std::filesystem::resize_file(table, std::filesystem::file_size(table) / 2);
  });
  const Outcome result = run_lockstep(std::move(arguments));
  writer.join();
  EXPECT_EQ(result.exit_code, 1) << "signal " << result.signal << ": " << result.err;
  EXPECT_NE(result.err.find(table.string()), std::string::npos) << result.err;
  return result;
}

TEST(Verify, ATableThatShrinksIsAnErrorAndLeavesNothing) {
  const ScratchDirectory scratch;
  run_while_shrinking(scratch, {"verify", scratch / "model", "--seconds", "20", "--tokens", "200", "--receipt",
                                (scratch / "receipt.json").string()});
  const auto left = std::distance(std::filesystem::directory_iterator(scratch.path()), {});
  EXPECT_EQ(left, 1) << "the model alone";
}

TEST(Perplexity, ATableThatShrinksIsAnError) {
  const ScratchDirectory scratch;
  {
    std::ofstream text(scratch / "text");
    for (int i = 0; i < 20'000; ++i) text << "The cat sat on the mat. ";
  }
  run_while_shrinking(scratch, {"perplexity", scratch / "model", "--ple", "resident", "--text", scratch / "text"});
}

TEST(Verify, ALaneThatNeverTookEffectIsNotCalledEqual) {
  decode::GateReport report = failed_report();
  report.gates[1] = {"lane mtp", 4, 4, true, "", 0.1, decode::LaneId::Mtp, 0};
  EXPECT_TRUE(cli::verify_verdict(report));
  EXPECT_FALSE(report.complete());
  EXPECT_NE(cli::verify_table(report).find("not engaged: no request had room for a draft"), std::string::npos);
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

TEST(Verify, AFullStandardOutputIsTheOnlyComplaint) {
  Command command{.arguments = {LOCKSTEP_BINARY, "verify", LOCKSTEP_SOURCE_DIR "/models/demo", "--seconds", "1"}};
  command.output = Output::Full;
  const Outcome result = run_process(command);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err.find("exit code 0"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("standard output"), std::string::npos) << result.err;
}

}  // namespace
}  // namespace lockstep::test
