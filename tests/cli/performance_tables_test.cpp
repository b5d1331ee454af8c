// scripts/performance_tables on copies of the documents: what it refuses.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/json.hpp"
#include "cli/process.hpp"
#include "support/scratch.hpp"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

class PerformanceTables : public testing::Test {
 protected:
  void SetUp() override {
    const fs::path source = LOCKSTEP_SOURCE_DIR;
    for (const char* name : {"docs/measurements", "docs/receipts"}) {
      fs::create_directories(root_ / name);
      fs::copy(source / name, root_ / name, fs::copy_options::recursive);
    }
    for (const char* name : {"scripts", "bench"}) fs::create_directories(root_ / name);
    for (const char* name : {"docs/performance.md", "scripts/performance_tables", "bench/cpu_report_tables"}) {
      fs::copy(source / name, root_ / name);
    }
    if (check().exit_code == 127) GTEST_SKIP() << "there is no python3";
  }
  [[nodiscard]] Outcome check() const {
    Command command;
    command.arguments = {"/usr/bin/env", "python3", root_ / "scripts/performance_tables", "--check"};
    return run_process(command);
  }
  [[nodiscard]] OrderedJson read(const std::string& name) const {
    std::ifstream file(root_ / name);
    return OrderedJson::parse(file);
  }
  void write(const std::string& name, const OrderedJson& json) const { std::ofstream(root_ / name) << json.dump(2); }

  ScratchDirectory root_;
};

TEST_F(PerformanceTables, TheCommittedDocumentIsAccepted) {
  const Outcome result = check();
  EXPECT_EQ(result.exit_code, 0) << result.err;
}

TEST_F(PerformanceTables, AReceiptThatFailedIsRefused) {
  for (const std::string name : {"docs/receipts/mtp.json", "docs/receipts/contexts.json"}) {
    const OrderedJson whole = read(name);
    OrderedJson json = whole;
    json["verdict"] = "FAIL";
    write(name, json);
    const Outcome result = check();
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.err.find(name + " is a FAIL"), std::string::npos) << result.err;
    write(name, whole);
  }
}

TEST_F(PerformanceTables, TranscribedNumbersAreNumbersAndSayWhereTheyComeFrom) {
  const std::string name = "docs/measurements/transcribed/cpu-xeon.json";
  const OrderedJson whole = read(name);
  const auto refused = [&](const std::string& pointer, const OrderedJson& value, const std::string& part) {
    OrderedJson json = whole;
    json[OrderedJson::json_pointer(pointer)] = value;
    write(name, json);
    const Outcome result = check();
    EXPECT_EQ(result.exit_code, 1) << pointer;
    EXPECT_NE(result.err.find("transcribed/cpu-xeon.json"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
  };
  refused("/source", "", "has no 'source'");
  refused("/machine", {}, "has no 'machine'");
  refused("/transcribed", false, "does not say that it is transcribed");
  refused("/measurements/0/value", "91.0 (94.6 before)", "is no number");
  refused("/measurements/0/unit", "", "has no unit");
  refused("/measurements/24/load", 1, "has 0 measurements");
}

TEST_F(PerformanceTables, FilesThatNoTableUsesAreRefused) {
  const std::string folder = "docs/measurements/";
  for (const char* name : {"cpu-report/load-3.json", "table-old.json", "transcribed/old.json"})
    write(folder + name, {});
  const Outcome result = check();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err,
            "no table of docs/performance.md is made of docs/measurements/cpu-report/load-3.json, "
            "docs/measurements/table-old.json, docs/measurements/transcribed/old.json\n");
}

TEST_F(PerformanceTables, AnotherFigureIsFound) {
  const auto found = [&](const std::string& name, const std::string& pointer, const OrderedJson& value) {
    const OrderedJson whole = read(name);
    OrderedJson json = whole;
    json.at(OrderedJson::json_pointer(pointer)) = value;
    write(name, json);
    const Outcome result = check();
    EXPECT_EQ(result.exit_code, 1) << name;
    EXPECT_NE(result.err.find("run scripts/performance_tables"), std::string::npos) << result.err;
    write(name, whole);
  };
  found("docs/measurements/quality-bf16-bare.json", "/comparison/kl_mean", 1.5);
  found("docs/measurements/acceptance.json", "/modes/0/tokens", 1);
  found("docs/measurements/cpu-report/short.json", "/cases/0/tokens_per_second", 1);
  const std::string transcribed = "docs/measurements/transcribed/";
  for (const char* name : {"speculation-speed", "cpu-amx", "cpu-xeon", "cpu-xeon-shares"}) {
    found(transcribed + name + ".json", "/measurements/0/value", 1);
  }
  found("docs/measurements/cuda/context-2048.json", "/cases/1/measured_limit", 1e12);
}

}  // namespace
}  // namespace lockstep::test
