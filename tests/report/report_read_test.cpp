// Stored receipts: read back, written again, and the committed ones are what their samples say.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <set>

#include "report/parity.hpp"
#include "report/report.hpp"
#include "report/run_fixture.hpp"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;
using testing::good_run;

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Runs of every kind.
std::vector<report::Run> runs() {
  std::vector<report::Run> out(6, good_run());
  out[1].samples[3].ids[1] = 77;  // answers differ
  out[1].samples[3].digests.ids = "other";
  out[2].records[1].error = "not ready";  // a window and a request failed
  out[2].records[1].lanes.clear();
  out[2].samples.erase(out[2].samples.begin() + 2, out[2].samples.begin() + 4);
  const Sample& last = out[2].samples.back();
  Sample failed;
  failed.window = last.window;
  failed.seed = last.seed;
  failed.gate = last.gate;
  failed.error = "no answer";
  out[2].samples.back() = failed;
  out[3].complete = false;  // interrupted
  out[3].records.resize(1);
  out[3].samples.resize(1);
  out[4].required = {"off=frspec"};
  out[4].environment["LOCKSTEP_ISA"] = "avx2";
  out[4].arms[0].environment = {{"A", "1"}};
  out[4].cell.temperature = 0.7;
  out[4].cell.top_k = 20;
  out[4].cell.effort = "high";
  out[4].commit = "0123abc-dirty";
  out[5].limits = {};  // no gate
  for (Sample& sample : out[5].samples) sample.gate = {};
  return out;
}

TEST(StoredReport, IsTheRunThatWroteIt) {
  std::size_t number = 0;
  for (const report::Run& run : runs()) {
    SCOPED_TRACE(number++);
    const auto again = run_of_json(OrderedJson::parse(to_json(run).dump(2)));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(to_json(*again).dump(2), to_json(run).dump(2));
    EXPECT_EQ(to_markdown(*again), to_markdown(run));
    EXPECT_EQ(to_svg(*again), to_svg(run));
    EXPECT_EQ(failures(*again), failures(run));
    EXPECT_EQ(to_csv(*again), to_csv(run));
  }
}

TEST(StoredReport, WhatFollowsFromSamplesIsComputedAgain) {
  OrderedJson json = to_json(good_run());
  json["verdict"] = "FAIL";
  json["summary"][1]["decode_tokens_per_second"]["against_control"]["verdict"] = "gain";
  const auto run = run_of_json(json);
  ASSERT_TRUE(run) << run.error().message;
  EXPECT_EQ(to_json(*run), to_json(good_run()));
}

TEST(StoredReport, OlderOnesHaveNoListOfRequiredLanes) {
  report::Run run = good_run();
  run.required = {"off=frspec"};
  OrderedJson json = to_json(run);
  json.erase("required");
  const auto again = run_of_json(json);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->required, run.required) << "and mtp in on follows from the windows";
}

TEST(StoredReport, TheFieldThatIsWrongIsNamed) {
  const auto message = [](const std::function<void(OrderedJson&)>& change) {
    OrderedJson json = to_json(good_run());
    change(json);
    const auto found = run_of_json(json);
    return found ? std::string() : found.error().message;
  };
  EXPECT_EQ(message([](OrderedJson&) {}), "");
  EXPECT_EQ(message([](OrderedJson& j) { j = 1; }), "the receipt: '' is no object");
  EXPECT_EQ(message([](OrderedJson& j) { j["format"] = "lockstep-ab-contexts-1"; }),
            "the receipt's format is 'lockstep-ab-contexts-1', not 'lockstep-ab-1'");
  EXPECT_EQ(message([](OrderedJson& j) { j["samples"][2].erase("steps"); }), "samples: 'steps' is missing");
  EXPECT_EQ(message([](OrderedJson& j) { j["samples"][2]["tokens"] = -1; }), "samples: 'tokens' must be a count");
  EXPECT_EQ(message([](OrderedJson& j) { j["samples"][2]["decode_tokens_per_second"] = 1e300; }),
            "samples: 'decode_tokens_per_second' is out of range");
  EXPECT_EQ(message([](OrderedJson& j) { j["samples"][2]["window"] = "x1"; }),
            "samples: 'window' is no window of the run");
  EXPECT_EQ(message([](OrderedJson& j) { j["samples"][2]["seed"] = 9; }), "samples: 'seed' is not among seeds");
  EXPECT_EQ(message([](OrderedJson& j) { j["samples"][1] = j["samples"][0]; }), "samples: 'seed' is twice in a window");
  EXPECT_EQ(message([](OrderedJson& j) { j["samples"][0]["gate"]["load"] = "high"; }),
            "samples.gate: 'load' must be a number");
  EXPECT_EQ(message([](OrderedJson& j) {
              j["seeds"] = {1, 1};
            }),
            "the receipt: 'seeds' must be 1 to 64 different numbers");
  EXPECT_EQ(message([](OrderedJson& j) { j["control"] = "c"; }), "the receipt: 'control' is no arm");
  EXPECT_EQ(message([](OrderedJson& j) { j["machine"]["processors"] = "two"; }),
            "the receipt.machine: 'processors' must be a count");
  EXPECT_NE(message([](OrderedJson& j) { j["order"][0] = "x1"; }), "");
  EXPECT_NE(message([](OrderedJson& j) { j["order"][0] = "on1 on2"; }), "");
  EXPECT_NE(message([](OrderedJson& j) { j["arms"][0]["name"] = "No"; }), "");
}

TEST(StoredReport, NumbersThatNoRunCanHaveAreRefused) {
  const std::vector<std::pair<const char*, OrderedJson>> changes = {
      {"/cell/temperature", -1},
      {"/cell/top_p", 7},
      {"/cell/max_tokens", 0},
      {"/cell/max_tokens", 2},
      {"/gate/max_busy", 1.5},
      {"/gate/timeout_seconds", -1},
      {"/gate/max_cpu_celsius", -300},
      {"/windows/1/start_seconds", -0.5},
      {"/samples/2/gate/load", -3},
      {"/samples/2/gate/busy", 2},
      {"/samples/2/gate/cpu_mhz", 1e300},
      {"/samples/2/gate/waited_seconds", -1},
      {"/samples/2/prefill_tokens", 17},
      {"/samples/2/steps", 5},
      {"/samples/2/ttft_seconds", 9},
      {"/samples/2/decode_seconds", 9},
      {"/samples/2/accepted/0", 5},
      {"/samples/2/drafted", {4, 2}},
  };
  for (const auto& [pointer, value] : changes) {
    SCOPED_TRACE(pointer);
    OrderedJson json = to_json(good_run());
    ASSERT_TRUE(run_of_json(json));
    json[OrderedJson::json_pointer(pointer)] = value;
    const auto run = run_of_json(json);
    ASSERT_FALSE(run);
    const std::string path = pointer;
    const std::string_view name =
        path.ends_with("/0") ? "accepted" : std::string_view(path).substr(path.rfind('/') + 1);
    if (path != "/cell/max_tokens" && path != "/samples/2/drafted") {
      EXPECT_NE(run.error().message.find(fmt::format("'{}'", name)), std::string::npos) << run.error().message;
    }
  }
}

TEST(StoredReport, TextsDoNothingWhereTheyArePrinted) {
  const std::string bad =
      "a\x1b[2J\x07\u0085\u202e\r\n# no heading | <script>x</script> `b` [l](http://h) **PASS** \xc3";
  report::Run run = good_run();
  run.model["name"] = bad;
  run.machine["processor"] = run.machine["system"] = bad;
  run.environment["LOCKSTEP_X"] = bad;
  run.mode = run.started = run.ended = run.version = run.commit = bad;
  run.arms[1].flags = {bad};
  run.records[0].error = bad;
  run.required = {"on=" + bad};
  for (Sample& sample : run.samples) {
    sample.finish = sample.digests.ids = bad;
    sample.gate.unread = {bad};
  }
  for (const std::string& text : {to_markdown(run), to_svg(run)}) {
    for (const char* never : {"\x1b", "\x07", "\xc2\x85", "\xe2\x80\xae", "\n# no"}) {
      EXPECT_EQ(text.find(never), std::string::npos) << never;
    }
  }
  EXPECT_EQ(to_svg(run).find("<script"), std::string::npos);
  const std::string title = to_markdown(run).substr(0, to_markdown(run).find('\n'));
  EXPECT_TRUE(title.starts_with("# a\\\\x1b\\[2J\\\\x07")) << title;
  for (const char* never : {" **PASS**", " [l](", " | ", " <"})
    EXPECT_EQ(title.find(never), std::string::npos) << title;
}

/// Replaces one value somewhere in the tree.
void damage(OrderedJson& json, std::mt19937& random) {
  static const std::vector<OrderedJson> kValues{
      nullptr, true, -1, 1e300, "", "x", OrderedJson::array(), OrderedJson::object(), {1, 2}, 18446744073709551615U};
  OrderedJson* at = &json;
  while (at->is_structured() && !at->empty() && random() % 8 != 0) {
    at = &std::next(at->begin(), static_cast<std::ptrdiff_t>(random() % at->size())).value();
  }
  *at = kValues[random() % kValues.size()];
}

TEST(StoredReport, DamagedOnesAreRefusedOrRendered) {
  std::mt19937 random(11);
  const std::vector<report::Run> all = runs();
  std::size_t refused = 0;
  for (int round = 0; round < 2000; ++round) {
    SCOPED_TRACE(round);
    OrderedJson json = to_json(all[random() % all.size()]);
    damage(json, random);
    const auto run = run_of_json(json);
    if (!run) {
      ++refused;
      EXPECT_FALSE(run.error().message.empty());
      continue;
    }
    const auto again = run_of_json(to_json(*run));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(to_markdown(*again), to_markdown(*run));
  }
  EXPECT_GT(refused, 500U);
  EXPECT_LT(refused, 2000U);
}

TEST(StoredReport, CommittedReceiptsAreWhatTheirSamplesSay) {
  std::size_t found = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(LOCKSTEP_SOURCE_DIR "/docs/receipts")) {
    fs::path path = entry.path();
    if (path.extension() != ".json" || path.stem() == "contexts") continue;
    SCOPED_TRACE(path.filename().string());
    ++found;
    const std::string text = text_of(path);
    const auto run = run_of_json(OrderedJson::parse(text));
    ASSERT_TRUE(run) << run.error().message;
    constexpr const char* kHint = "run ./scripts/receipts --render";
    EXPECT_EQ(to_json(*run).dump(2) + "\n", text) << kHint;
    EXPECT_EQ(to_markdown(*run), text_of(path.replace_extension(".md"))) << kHint;
    EXPECT_EQ(to_csv(*run), text_of(path.replace_extension(".csv"))) << kHint;
    EXPECT_EQ(to_svg(*run), text_of(path.replace_extension(".svg"))) << kHint;
  }
  EXPECT_GE(found, 6U);
}

/// Keys whose members are names of their own: variables and lanes.
bool has_free_keys(const std::string& key) {
  return key == "environment" || key == "lanes";
}

void each_key(const OrderedJson& json, const std::function<void(const std::string&)>& visit) {
  if (json.is_array()) {
    for (const OrderedJson& item : json) each_key(item, visit);
  }
  if (!json.is_object()) return;
  for (const auto& item : json.items()) {
    visit(item.key());
    if (!has_free_keys(item.key())) each_key(item.value(), visit);
  }
}

TEST(StoredReport, EveryFieldIsDocumented) {
  const std::string page = text_of(LOCKSTEP_SOURCE_DIR "/docs/ab.md");
  const std::string receipt = page.substr(0, page.find("## Context sweep"));
  std::set<std::string> names;
  const auto note = [&](const std::string& name) { names.insert(name); };
  for (report::Run& run : runs()) {
    run.machine = {{"processor", "none"}, {"system", "Linux"}, {"processors", 2}, {"memory_bytes", 1}};
    run.model = {{"name", "toy"}, {"config_sha256", ""}, {"inventory_sha256", ""}};
    each_key(to_json(run), note);
  }
  const std::string csv = to_csv(good_run());
  std::istringstream columns(csv.substr(0, csv.find('\n')));
  for (std::string column; std::getline(columns, column, ',');) note(column);
  for (const std::string& name : names) {
    const bool found =
        receipt.find("`" + name + "`") != std::string::npos || receipt.find("`" + name + "[]`") != std::string::npos;
    EXPECT_TRUE(found) << name << " is not in docs/ab.md";
  }
}

}  // namespace
}  // namespace lockstep::report
