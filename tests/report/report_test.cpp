// Parity, the driver, and what is written of a run.
#include "report/report.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>

#include "report/driver.hpp"
#include "report/parity.hpp"
#include "report/run_fixture.hpp"
#include "report/svg.hpp"

namespace lockstep::report {
namespace {

using testing::good_run;
using testing::good_sample;

std::string only_failure(const report::Run& run) {
  const std::vector<std::string> found = failures(run);
  return found.size() == 1 ? found[0] : fmt::format("{} failures", found.size());
}

TEST(Parity, EqualAnswersPass) {
  EXPECT_EQ(failures(good_run()), std::vector<std::string>{});
  EXPECT_EQ(lanes_under_test(good_run(), 0), std::vector<std::string>{"mtp"});
  EXPECT_EQ(lanes_under_test(good_run(), 1), std::vector<std::string>{});
}

TEST(Parity, NamesTheFirstTokenThatDiffers) {
  report::Run run = good_run();
  run.samples[3].ids[1] = 77;
  EXPECT_EQ(only_failure(run), "seed 2: window off1 differs from on1: token 1 of the answer is 77, not 6");
  run = good_run();
  run.samples[3].ids.pop_back();
  EXPECT_EQ(only_failure(run), "seed 2: window off1 differs from on1: token 2 of the answer is nothing, not 2");
}

TEST(Parity, EveryDigestCountAndReasonCounts) {
  const auto failure = [](auto change) {
    report::Run run = good_run();
    change(run.samples[5]);
    return failures(run).size();
  };
  EXPECT_EQ(failure([](Sample& s) { s.digests.request = "x"; }), 1U);
  EXPECT_EQ(failure([](Sample& s) { s.digests.prompt_ids = "x"; }), 1U);
  EXPECT_EQ(failure([](Sample& s) { s.digests.ids = "x"; }), 1U);
  EXPECT_EQ(failure([](Sample& s) { s.digests.text = "x"; }), 1U);
  EXPECT_EQ(failure([](Sample& s) { s.digests.reasoning = "x"; }), 1U);
  EXPECT_EQ(failure([](Sample& s) { s.finish = "stop"; }), 1U);
  EXPECT_EQ(failure([](Sample& s) { ++s.tokens; }), 1U);
  EXPECT_EQ(failure([](Sample& s) { s.prefill_tokens = 8; }), 1U);
  EXPECT_EQ(failure([](Sample& s) { s.error = "no answer"; }), 1U);
}

TEST(Parity, ALaneUnderTestMustRun) {
  report::Run run = good_run();
  run.samples[0].lanes.clear();
  EXPECT_EQ(only_failure(run), "window on1, seed 1: lane mtp did not run");
  run = good_run();
  for (const std::size_t window : {0U, 3U}) run.records[window].lanes[0].verdict = "declined (no draft layer)";
  for (Sample& sample : run.samples) sample.lanes.clear();
  EXPECT_EQ(failures(run).size(), 2U + 4U) << "declined in two windows, absent in four samples";
  run = good_run();
  run.samples[2].lanes = {"mtp"};
  EXPECT_EQ(only_failure(run), "window off1, seed 1: lane mtp ran although it is off (--disable-optimization)");
  run = good_run();
  for (const std::size_t window : {1U, 2U}) run.records[window].lanes[0].verdict = "declined (depth 0)";
  EXPECT_EQ(lanes_under_test(run, 0), std::vector<std::string>{"mtp"}) << "armed here, declined there";
  EXPECT_EQ(lanes_under_test(run, 1), std::vector<std::string>{});
  EXPECT_EQ(failures(run), std::vector<std::string>{});
  run.samples[0].lanes.clear();
  EXPECT_EQ(only_failure(run), "window on1, seed 1: lane mtp did not run");
  run.records[3].lanes[0].verdict = "declined (no memory)";
  EXPECT_EQ(failures(run).size(), 2U) << "and it must be armed in every window of its arm";
  run = good_run();
  run.required = {"off=frspec"};
  EXPECT_EQ(failures(run).size(), 2U + 4U);
}

TEST(Parity, AnIncompleteRunFails) {
  report::Run run = good_run();
  run.complete = false;
  EXPECT_EQ(only_failure(run), "the run is incomplete");
}

/// A session whose answers the test decides.
class FakeSession : public Session {
 public:
  explicit FakeSession(std::size_t fails_at) : fails_at_(fails_at) { record_.lanes = {{"mtp", "armed"}}; }
  [[nodiscard]] const WindowRecord& record() const override { return record_; }
  Result<Sample> ask(std::uint64_t seed) override {
    if (asked_++ == fails_at_) return fail(ErrorKind::Internal, "the server was killed");
    return good_sample(0, seed, 100);
  }

 private:
  WindowRecord record_;
  std::size_t fails_at_, asked_ = 0;
};

report::Run planned() {
  report::Run run = good_run();
  run.records.clear();
  run.samples.clear();
  run.complete = false;
  return run;
}

DriverHooks hooks(std::function<Result<std::unique_ptr<Session>>(const Arm&)> open) {
  return {std::move(open), [] { return GateRecord{}; }, [](const report::Run&) {}};
}

TEST(Driver, RunsEveryWindowWithEverySeed) {
  report::Run run = planned();
  ASSERT_TRUE(drive(run, hooks([](const Arm&) { return std::make_unique<FakeSession>(99); })));
  EXPECT_TRUE(run.complete);
  EXPECT_EQ(run.records.size(), 4U);
  ASSERT_EQ(run.samples.size(), 8U);
  EXPECT_EQ(run.samples[5].window, 2U);
  EXPECT_EQ(run.samples[5].seed, 2U);
}

TEST(Driver, AFailingArmIsEnteredAndTheOthersRun) {
  report::Run run = planned();
  ASSERT_TRUE(drive(run, hooks([](const Arm& arm) -> Result<std::unique_ptr<Session>> {
                      if (arm.name == "off") return fail(ErrorKind::Limit, "not ready");
                      return std::make_unique<FakeSession>(1);
                    })));
  EXPECT_TRUE(run.complete);
  EXPECT_EQ(run.samples.size(), 4U);  // one good and one failed in each of the two windows of "on"
  const std::vector<std::string> found = failures(run);
  EXPECT_NE(std::ranges::find(found, "window off1: not ready"), found.end());
  EXPECT_NE(std::ranges::find(found, "window on1, seed 2: the server was killed"), found.end());
  EXPECT_FALSE(compare(measured(run, Metric::DecodeRate), 1, 0));
  EXPECT_NE(to_markdown(run).find("**FAIL**"), std::string::npos);
  EXPECT_NE(to_svg(run).find("FAIL"), std::string::npos);
}

TEST(Driver, WrongUsageAndInterruptsEndTheRun) {
  for (const ErrorKind kind : {ErrorKind::Usage, ErrorKind::Cancelled}) {
    report::Run run = planned();
    const Status status =
        drive(run, hooks([&](const Arm&) -> Result<std::unique_ptr<Session>> { return fail(kind, "x"); }));
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().kind, kind);
    EXPECT_FALSE(run.complete);
  }
}

TEST(Report, JsonSaysWhatHappened) {
  const OrderedJson json = to_json(good_run());
  EXPECT_EQ(json["format"], "lockstep-ab-1");
  EXPECT_EQ(json["verdict"], "PASS");
  EXPECT_EQ(json["samples"].size(), 8U);
  EXPECT_EQ(json["summary"][0]["acceptance_by_depth"], OrderedJson::array({0.5, 0.5}));
  const OrderedJson& decode = json["summary"][1]["decode_tokens_per_second"];
  EXPECT_EQ(decode["mean"], 81.5);
  EXPECT_EQ(decode["against_control"]["verdict"], "loss");
  EXPECT_NEAR(decode["against_control"]["change"].get<double>(), (81.0 / 101 + 82.0 / 102) / 2 - 1, 1e-12);
  // Less time is a gain: the wall time of "off" is longer.
  EXPECT_EQ(json["summary"][1]["wall_seconds"]["against_control"]["verdict"], "loss");
  EXPECT_NEAR(json["summary"][1]["wall_seconds"]["mean"].get<double>(), 0.5 + (3.0 / 81 + 3.0 / 82) / 2, 1e-12);
}

TEST(Report, WithoutAGateNothingIsSaidOfQuiet) {
  report::Run run = good_run();
  run.limits = {};
  for (Sample& sample : run.samples) {
    sample.gate.judged = false;
    sample.gate.unread = {"GPU temperature (C)"};
  }
  EXPECT_TRUE(to_json(run)["samples"][0]["gate"]["quiet"].is_null());
  EXPECT_NE(to_csv(run).find(",mtp,,0.25,"), std::string::npos) << to_csv(run);
  EXPECT_NE(to_markdown(run).find("There was no quiet gate; highest load average 0.25; not shown by this machine: GPU "
                                  "temperature (C)."),
            std::string::npos)
      << to_markdown(run);
}

TEST(Report, JsonHasTheParityOfEverySeed) {
  report::Run run = good_run();
  run.samples[3].ids[1] = 77;
  for (Sample& sample : run.samples) {
    if (sample.seed == 1 && sample.window > 0) sample.error = "no answer";
  }
  run.seeds.push_back(3);
  const OrderedJson parity = to_json(run)["parity"];
  ASSERT_EQ(parity.size(), 3U);
  EXPECT_EQ(parity[0]["equal"], true);
  EXPECT_EQ(parity[0]["answers"], 1);
  EXPECT_EQ(parity[0]["ids_sha256"], "ids1");
  EXPECT_EQ(parity[1]["equal"], false);
  EXPECT_EQ(parity[1]["answers"], 4);
  EXPECT_EQ(parity[1]["difference"], "window off1: token 1 of the answer is 77, not 6");
  EXPECT_TRUE(parity[2]["equal"].is_null());
}

TEST(Report, MarkdownNamesLanesUnderTestAndTheEnvironment) {
  report::Run run = good_run();
  EXPECT_NE(to_markdown(run).find("Lanes under test: `mtp` in on.\n"), std::string::npos) << to_markdown(run);
  run.environment["LOCKSTEP_ISA"] = "avx2";
  for (WindowRecord& record : run.records) record.lanes[0].verdict = "armed";
  EXPECT_NE(to_markdown(run).find("Environment: `LOCKSTEP_ISA=avx2`.\nNo lane was under test: engagement was not "
                                  "asserted.\n"),
            std::string::npos)
      << to_markdown(run);
  EXPECT_EQ(to_json(run)["environment"]["LOCKSTEP_ISA"], "avx2");
}

TEST(Report, AFailComparesNothing) {
  report::Run run = good_run();
  run.samples[3].digests.text = "another";
  const OrderedJson json = to_json(run);
  EXPECT_EQ(json["verdict"], "FAIL");
  for (const OrderedJson& arm : json["summary"]) {
    for (const Metric metric : kMetrics) {
      const OrderedJson& part = arm[std::string(metric_info(metric).key)];
      EXPECT_TRUE(part.contains("mean") && part["against_control"].is_null()) << part;
    }
  }
  const std::string csv = to_csv(run);
  EXPECT_EQ(csv.find(",PASS,"), std::string::npos) << csv;
  EXPECT_NE(csv.find(",FAIL,"), std::string::npos) << csv;
  for (const std::string& text : {json["summary"].dump(), to_markdown(run), csv, to_svg(run)}) {
    EXPECT_FALSE(std::regex_search(text, std::regex("\\b(gain|loss|within noise)\\b|\\| against"))) << text;
  }
  EXPECT_NE(to_markdown(run).find("No arm is compared with another"), std::string::npos);
}

TEST(Report, CsvHasALineASample) {
  report::Run run = good_run();
  run.samples[1].error = "say \"no\", twice";
  const std::string csv = to_csv(run);
  EXPECT_EQ(std::ranges::count(csv, '\n'), 9);
  EXPECT_NE(csv.find(",\"say \"\"no\"\", twice\"\n"), std::string::npos);
}

TEST(Report, MarkdownHasTheVerdicts) {
  const std::string text = to_markdown(good_run());
  EXPECT_NE(text.find("**PASS**"), std::string::npos);
  EXPECT_NE(
      text.find("| off | decode | -19.70 % | -20.94 % to -18.47 % | 0.00 % | 0.00 % | 0.00 % | 1.23 % | **loss** |"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("**loss**"), std::string::npos);
  EXPECT_NE(text.find("highest load average 0.25"), std::string::npos);
}

TEST(Report, ResponsesOfAnotherShapeAreErrors) {
  for (const char* text :
       {"{}", "[]", "1", R"({"choices":[{}],"lockstep":{"choices":[]}})",
        R"({"choices":[{"finish_reason":3}],"lockstep":{"choices":[{}]}})",
        R"({"choices":[{"finish_reason":"stop"}],"lockstep":{"request_sha256":"x","choices":[{"lanes":[1]}]}})"}) {
    EXPECT_FALSE(sample_of_response(Json::parse(text), 1)) << text;
  }
}

TEST(Charts, TicksCoverTheRange) {
  EXPECT_EQ(ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  for (const auto& [low, high] :
       std::vector<std::pair<double, double>>{{0, 0}, {5, 5}, {99.2, 103.7}, {0.001, 0.0017}, {1e6, 3e7}}) {
    const std::vector<double> found = ticks(low, high, 6);
    ASSERT_GE(found.size(), 2U) << low << " " << high;
    EXPECT_LT(found.size(), 16U);
    EXPECT_LE(found.front(), low);
    EXPECT_GE(found.back(), high);
  }
}

TEST(Charts, GrowWithTheLegend) {
  WindowChart chart{
      .title = "t", .subtitle = "", .unit = "u", .arms = {"a"}, .columns = {{"a1", 0, false, {}}}, .lines = {"1"}};
  const auto height = [&] {
    const std::string svg = window_chart(chart);
    return std::stoi(svg.substr(svg.find(" height=\"") + 9));
  };
  const int small = height();
  for (int seed = 2; seed <= 60; ++seed) chart.lines.push_back(std::to_string(seed));
  EXPECT_GE(height(), 60 * 20);
  EXPECT_LT(small, 500);
}

/// A number that follows `key` in the first element with `text`, or in the whole document.
double number_of(const std::string& svg, const std::string& key, const std::string& text = {}) {
  const std::size_t at = text.empty() ? 0 : svg.rfind("<text", svg.find(">" + text + "<"));
  return std::stod(svg.substr(svg.find(" " + key + "=\"", at) + key.size() + 3));
}

TEST(Charts, HaveRoomForTheirTexts) {
  const std::string name = "baseline-with-everything-off-too";
  const std::string seed = "18446744073709551615";
  WindowChart chart{.title = "t: " + name,
                    .subtitle = name + " against another: one that is long enough for a second line",
                    .unit = "u",
                    .arms = {name},
                    .columns = {{name + "1", 0, true, {0.0123}}, {name + "2", 0, true, {0.0124}}},
                    .lines = {seed}};
  const std::string svg = window_chart(chart);
  constexpr double kNarrow = 6;  // of a character, at least
  const auto fits = [&](const std::string& text) {
    const double end = number_of(svg, "x", text) + kNarrow * static_cast<double>(text.size());
    EXPECT_LT(end, number_of(svg, "width")) << text;
  };
  fits(name);
  fits(seed);
  EXPECT_EQ(svg.find(">" + chart.subtitle + "<"), std::string::npos) << "in two lines";
  // Labels of windows that are wider than their columns are turned.
  EXPECT_NE(svg.find("rotate(-90"), std::string::npos);
  EXPECT_GT(number_of(svg, "y", "windows in run order"),
            number_of(svg, "y", name + "1") + kNarrow * static_cast<double>(name.size()));
  // Ticks that are close to each other differ in their labels.
  EXPECT_NE(svg.find(">0.01230<"), std::string::npos) << svg;
  chart.columns[0].label = "a1";
  chart.columns[1].label = "a2";
  EXPECT_EQ(window_chart(chart).find("rotate"), std::string::npos);
}

TEST(Charts, TwentySeedsHaveLinesOfTheirOwn) {
  WindowChart chart{.title = "t", .subtitle = "", .unit = "u", .arms = {"a"}, .columns = {}, .lines = {}};
  for (int seed = 0; seed < 20; ++seed) chart.lines.push_back(std::to_string(seed));
  const std::string svg = window_chart(chart);
  std::set<std::string> styles;
  for (std::size_t at = svg.find("<polyline"); at != std::string::npos; at = svg.find("<polyline", at + 1)) {
    styles.insert(svg.substr(svg.find("stroke", at), svg.find("/>", at) - svg.find("stroke", at)));
  }
  EXPECT_EQ(styles.size(), 20U);
}

TEST(Charts, AreWellFormedWhateverTheNames) {
  report::Run run = good_run();
  run.model["name"] = "<&\"\x01>";
  const std::string svg = to_svg(run);
  EXPECT_TRUE(svg.starts_with("<svg xmlns="));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_NE(svg.find("&lt;&amp;&quot;\\x01&gt;"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  std::size_t lines = 0;
  for (std::size_t at = svg.find("<polyline"); at != std::string::npos; at = svg.find("<polyline", at + 1)) ++lines;
  EXPECT_EQ(lines, 4U);  // one a seed, and again in the legend
}

}  // namespace
}  // namespace lockstep::report
