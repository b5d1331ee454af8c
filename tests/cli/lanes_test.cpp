// Lanes on the command line: what runs is reported, every switch works, and none changes a byte of an answer.
#include <gtest/gtest.h>

#include <fstream>

#include "base/json.hpp"
#include "cli/process.hpp"
#include "support/scratch.hpp"

namespace lockstep::test {
namespace {

const std::string kDemo = LOCKSTEP_SOURCE_DIR "/models/demo";
const std::vector<std::string> kNames{"mtp",   "gdn_capture", "ar_pipeline", "ple_cached_aux", "qsa_pooled_rowsel",
                                      "frspec"};

Outcome answer(std::vector<std::string> more, std::vector<std::pair<std::string, std::string>> environment = {}) {
  Command command;
  command.arguments = {LOCKSTEP_BINARY, "run", "-m",      kDemo,       "-p", "What does bank mean?", "--seed", "3",
                       "--max-tokens",  "24",  "--stats", "--threads", "1"};
  command.arguments.insert(command.arguments.end(), more.begin(), more.end());
  command.environment = std::move(environment);
  return run_process(command);
}

/// The line of a lane in the statistics.
std::string lane(const Outcome& outcome, const std::string& name) {
  const std::size_t at = outcome.err.find("lane " + name + ": ");
  if (at == std::string::npos) return "missing";
  const std::size_t begin = at + 7 + name.size();
  return outcome.err.substr(begin, outcome.err.find('\n', begin) - begin);
}

TEST(LanesCommandLine, NoSwitchChangesAnAnswerAndEachIsReported) {
  const Outcome expected = answer({});
  ASSERT_EQ(expected.exit_code, 0) << expected.err;
  ASSERT_FALSE(expected.out.empty() && expected.err.empty());
  EXPECT_TRUE(lane(expected, "mtp").starts_with("armed; ")) << expected.err;
  EXPECT_EQ(lane(expected, "ar_pipeline"), "declined (speculative decoding runs instead)");
  EXPECT_TRUE(lane(expected, "ple_cached_aux").starts_with("armed; products of ")) << expected.err;
  EXPECT_TRUE(lane(expected, "qsa_pooled_rowsel").starts_with("armed; ")) << expected.err;
  EXPECT_TRUE(lane(expected, "frspec").starts_with("declined (")) << expected.err;
  for (const std::string& name : kNames) {
    const Outcome got = answer({"--disable-optimization", name});
    EXPECT_EQ(got.out, expected.out) << name;
    EXPECT_EQ(lane(got, name), "off (--disable-optimization)");
  }
  const Outcome plain = answer({"--disable-optimization", "mtp"});
  EXPECT_TRUE(lane(plain, "ar_pipeline").starts_with("armed; ar_pipeline_active true, ar_pipeline_variant "))
      << plain.err;
  const Outcome all = answer({}, {{"LOCKSTEP_DISABLE", "all"}});
  EXPECT_EQ(all.out, expected.out);
  for (const std::string& name : kNames) EXPECT_EQ(lane(all, name), "off (LOCKSTEP_DISABLE)");
  EXPECT_NE(all.err.find("cpu scalar, "), std::string::npos) << all.err;
  const Outcome one = answer({}, {{"LOCKSTEP_QSA_POOLED_ROWSEL", "0"}});
  EXPECT_EQ(one.out, expected.out);
  EXPECT_EQ(lane(one, "qsa_pooled_rowsel"), "off (LOCKSTEP_QSA_POOLED_ROWSEL=0)");
}

TEST(LanesCommandLine, UnknownNamesAreWrongUsage) {
  for (const Outcome& got :
       {answer({"--disable-optimization", "mtp,warp"}), answer({}, {{"LOCKSTEP_DISABLE", "warp"}})}) {
    EXPECT_EQ(got.exit_code, 2);
    EXPECT_NE(got.err.find("there is no optimization 'warp'"), std::string::npos) << got.err;
    EXPECT_NE(got.err.find("qsa_pooled_rowsel"), std::string::npos) << got.err;
    EXPECT_TRUE(got.out.empty());
  }
}

TEST(LanesCommandLine, AStopStringEndsThePipelinedAnswerAtTheSameByte) {
  const Outcome plain = answer({"--depth", "0", "--disable-optimization", "ar_pipeline", "--stop", "e"});
  const Outcome piped = answer({"--depth", "0", "--stop", "e"});
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_EQ(piped.exit_code, 0) << piped.err;
  EXPECT_EQ(piped.out, plain.out);
}

TEST(FrspecCommand, MakesAListThatRunUses) {
  const ScratchDirectory scratch;
  std::ofstream(scratch / "corpus.txt") << "What does bank mean? A bank is a bank.\nIt is the side of a river.\n";
  const std::string list = (scratch / "list.json").string();
  const Outcome made = run_lockstep(
      {"frspec", "-m", kDemo, "--text", (scratch / "corpus.txt").string(), "--size", "300", "--out", list});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  EXPECT_TRUE(made.out.starts_with(list + ": ")) << made.out;
  std::ifstream file(list);
  const Json json = Json::parse(std::string(std::istreambuf_iterator<char>(file), {}));
  EXPECT_EQ(json["format"], "lockstep-frspec-1");
  EXPECT_EQ(json["vocab_size"], 6144);
  EXPECT_GT(json["ids"].size(), 10U);
  EXPECT_GT(json["counted"], 10);

  const Outcome expected = answer({});
  const Outcome got = answer({"--frspec", list});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  EXPECT_EQ(got.out, expected.out);
  EXPECT_TRUE(lane(got, "frspec").starts_with("armed; ")) << got.err;
  EXPECT_EQ(lane(got, "frspec").find("armed; 0 drafts"), std::string::npos) << got.err;
  EXPECT_TRUE(lane(answer({"--frspec", list, "--depth", "0"}), "frspec").starts_with("declined (")) << got.err;
  const Outcome off = answer({"--frspec", list}, {{"LOCKSTEP_FRSPEC", "0"}});
  EXPECT_EQ(lane(off, "frspec"), "off (LOCKSTEP_FRSPEC=0)");
}

TEST(FrspecCommand, CountsIdsAndTextAlike) {
  const ScratchDirectory scratch;
  const std::string text = "A river has two banks.\n";
  const Outcome ids = run_lockstep({"tokenize", "-m", kDemo}, text);
  ASSERT_EQ(ids.exit_code, 0);
  const auto make = [&](const std::string& how, const std::string& input, const std::string& name) {
    const Outcome made = run_lockstep({"frspec", "-m", kDemo, how, "-", "--out", (scratch / name).string()}, input);
    EXPECT_EQ(made.exit_code, 0) << made.err;
    std::ifstream file(scratch / name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(make("--ids", ids.out, "a"), make("--text", text, "b"));
}

TEST(FrspecCommand, RefusesWhatItCannotUse) {
  const ScratchDirectory scratch;
  const std::string out = (scratch / "list.json").string();
  EXPECT_EQ(run_lockstep({"frspec", "-m", kDemo, "--out", out}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"frspec", "-m", kDemo, "--ids", "-"}).exit_code, 2);
  std::ofstream(scratch / "corpus") << "1 2 3";
  const std::string corpus = (scratch / "corpus").string();
  EXPECT_EQ(run_lockstep({"frspec", "-m", kDemo, "--ids", corpus, "--out", corpus}).exit_code, 2);
  EXPECT_EQ(run_lockstep({"frspec", "-m", kDemo, "--ids", corpus, "--size", "0", "--out", out}).exit_code, 2);
  for (const std::string input : {"99999", "12 x", "-1", "4294967297"}) {
    const Outcome got = run_lockstep({"frspec", "-m", kDemo, "--ids", "-", "--out", out}, input);
    EXPECT_EQ(got.exit_code, 1) << input;
    EXPECT_NE(got.err.find("standard input: "), std::string::npos) << got.err;
  }
  const Outcome empty = run_lockstep({"frspec", "-m", kDemo, "--text", "-", "--out", out}, "");
  EXPECT_EQ(empty.exit_code, 1);
  EXPECT_NE(empty.err.find("no tokens"), std::string::npos) << empty.err;
  EXPECT_FALSE(std::filesystem::exists(out));
  for (const std::string content : {"", "{}", R"({"format":"lockstep-frspec-1","vocab_size":512,"ids":[1]})",
                                    R"({"format":"lockstep-frspec-1","vocab_size":6144,"ids":[1,1]})"}) {
    std::ofstream(out) << content;
    const Outcome got = answer({"--frspec", out});
    EXPECT_EQ(got.exit_code, 1) << content;
    EXPECT_NE(got.err.find(out), std::string::npos) << got.err;
  }
  EXPECT_EQ(answer({"--frspec", out + ".missing"}).exit_code, 1);
}

TEST(VerifyCommand, ListsEveryLaneWithVerdictAndEngagement) {
  const std::string toy = LOCKSTEP_TEST_DATA "/toy-pack";
  const std::vector<std::string> arguments{"verify", toy, "--tokens", "3", "--seconds", "30", "--threads", "1"};
  std::vector<std::string> with_json = arguments;
  with_json.insert(with_json.end(), {"--json", "--disable-optimization", "ple_cached_aux"});
  const Outcome json = run_lockstep(with_json);
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const Json receipt = Json::parse(json.out);
  ASSERT_EQ(receipt["lanes"].size(), kNames.size());
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    EXPECT_EQ(receipt["lanes"][i]["name"], kNames[i]);
    EXPECT_FALSE(receipt["lanes"][i]["verdict"].get<std::string>().empty());
  }
  EXPECT_GT(receipt["lanes"][0]["engaged"], 0);
  EXPECT_EQ(receipt["lanes"][3]["verdict"], "off (--disable-optimization)");
  EXPECT_EQ(receipt["lanes"][3]["engaged"], 0);
  EXPECT_GT(receipt["lanes"][4]["engaged"], 0);
  const Outcome table = run_lockstep(arguments);
  for (const std::string& name : kNames) EXPECT_NE(table.out.find("\n" + name + " "), std::string::npos) << table.out;
}

TEST(Frspec, CutListsAndStandardInputTwiceAreRefused) {
  const ScratchDirectory scratch;
  const std::string list = (scratch / "list.json").string();
  const auto count = [&](const std::string& ids) { return run_lockstep({"frspec", "--ids", "-", "--out", list}, ids); };
  for (const char* cut : {"[1,2", "1,2]", "[[1,2]]", "[1,2]]", "[1] [2"}) {
    const Outcome refused = count(cut);
    EXPECT_EQ(refused.exit_code, 1) << cut;
    EXPECT_TRUE(refused.err.starts_with("lockstep: standard input: the ")) << refused.err;
    EXPECT_FALSE(std::filesystem::exists(list)) << cut;
  }
  EXPECT_EQ(count("[1,2]\n[3]\n4 5").exit_code, 0);
  for (const char* second : {"--text", "--ids"}) {
    const Outcome twice = run_lockstep({"frspec", "--text", "-", second, "-", "--out", list});
    EXPECT_EQ(twice.exit_code, 2);
    EXPECT_NE(twice.err.find("standard input can be read only once"), std::string::npos) << twice.err;
  }
}

}  // namespace
}  // namespace lockstep::test
