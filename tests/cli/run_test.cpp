// `lockstep run` on the demo model.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "artifact/safetensors.hpp"
#include "base/thread_pool.hpp"
#include "cli/process.hpp"
#include "support/scratch.hpp"

namespace lockstep::test {
namespace {

Outcome run(std::vector<std::string> more, std::string input = {}) {
  std::vector<std::string> arguments{"run", "--no-think", "--max-tokens", "12"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run_lockstep(arguments, std::move(input));
}

bool is_one_complaint(const std::string& text) {
  return text.starts_with("lockstep: ") && text.ends_with('\n') && std::ranges::count(text, '\n') == 1;
}

TEST(Run, OnlyTheAnswerGoesToStandardOutput) {
  const Outcome result = run({"--temperature", "0", "-p", "What is a bank?"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_NE(result.out.find("bank"), std::string::npos) << result.out;
  EXPECT_EQ(run({"--temperature", "0"}, "What is a bank?").out, result.out);  // the prompt on standard input
}

TEST(Run, ASeedReproducesTheAnswer) {
  const std::vector<std::string> sampled{"--temperature", "1.5", "--top-p", "1", "--top-k", "0", "-p", "Tell me."};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), sampled.begin(), sampled.end());
    const Outcome result = run(more);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  const std::string seven = with({"--seed", "7"});
  EXPECT_EQ(with({"--seed", "7"}), seven);
  EXPECT_EQ(with({"--seed", "007"}), seven);  // decimal, not octal
  EXPECT_EQ(with({"--seed", "7", "--threads", "1", "--depth", "0"}), seven);
  EXPECT_EQ(with({"--seed", "7", "--disable-optimization", "all"}), seven);
  EXPECT_NE(with({"--seed", "8"}), seven);
}

TEST(Run, StopStringsArriveAsTheyWereTyped) {
  const std::string whole = run({"--temperature", "0", "-p", "What is a bank?"}).out;
  ASSERT_NE(whole.find("\n1. ("), std::string::npos) << whole;
  EXPECT_EQ(run({"--temperature", "0", "-p", "What is a bank?", "--stop", "1. ("}).out,
            whole.substr(0, whole.find("1. (")));
  // Neither is a list of "1" and " (", nor an option.
  EXPECT_EQ(run({"--temperature", "0", "-p", "What is a bank?", "--stop", "[1, (]"}).out, whole);
  EXPECT_EQ(run({"--temperature", "0", "-p", "What is a bank?", "--stop=--stats"}).out, whole);
}

TEST(Run, Statistics) {
  const Outcome result = run({"--temperature", "0", "--seed", "7", "--stats", "-p", "hello"});
  EXPECT_EQ(result.exit_code, 0);
  for (const char* part : {"prompt tokens", "seed 7", "lane mtp: armed; ", "n-gram table"}) {
    EXPECT_NE(result.err.find(part), std::string::npos) << part << "\n" << result.err;
  }
}

TEST(Run, WrongUsage) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"-p", ""}, "the prompt is empty"},
      {{"-p", "a", "--temperature", "nan"}, "--temperature: 'nan' is not a number from 0 to 1000000000"},
      {{"-p", "a", "--temperature", "inf"}, "--temperature: 'inf'"},
      {{"-p", "a", "--temperature", "-1"}, "--temperature: '-1' is not a number from 0 to"},
      {{"-p", "a", "--top-p", "nan"}, "--top-p: 'nan' is not a number from 0 to 1"},
      {{"-p", "a", "--min-p", "-inf"}, "--min-p: '-inf'"},
      {{"-p", "a", "--presence-penalty", "NAN"}, "--presence-penalty: 'NAN'"},
      {{"-p", "a", "--frequency-penalty", "1e999"}, "--frequency-penalty: '1e999'"},
      {{"-p", "a", "--top-k", "1.5"}, "--top-k: '1.5'"},
      {{"-p", "a", "--seed", "-1"}, "--seed: '-1'"},
      {{"-p", "a", "--seed", "18446744073709551616"}, "--seed: '18446744073709551616'"},
      {{"-p", "a", "--max-tokens", "0x10"}, "--max-tokens: '0x10'"},
      {{"-p", "a", "--depth", "5"}, "--depth: '5'"},
      {{"-p", "a", "--threads", "1025"}, "--threads: '1025'"},
      {{"-p", "a", "--stop=", "--stats"}, "a stop string is empty"},
      {{"-p", "a", "--isa="}, "--isa: the value is empty"},
      {{"-p", "a", "-m", ""}, "--model: the value is empty"},
      {{"-p", "a", "--model="}, "--model: the value is empty"},
      {{"-p", "a\xff"}, "--prompt: not valid UTF-8 at byte 1"},
      {{"-p", "a", "--system", "\xff"}, "--system: not valid UTF-8 at byte 0"},
      {{"-p", "a", "--stop", "\xff"}, "--stop: not valid UTF-8 at byte 0"},
      {{"-p", "a", "--effort", ""}, "--effort: the value is empty"},
      {{"-p", "a", "--effort", "zzz"},
       "--effort zzz: the chat template refuses the conversation: reasoning_effort must be"},
      {{"-p", "a", "--no-think", "--effort", "zzz"}, "--effort zzz: the chat template refuses"},
      {{"-p", "a", "--disable-optimization", ""}, "there is no optimization ''"},
      {{"-p", "a", "--disable-optimization="}, "there is no optimization ''"},
      {{"-p", "a", "--disable-optimization", ","}, "there is no optimization ''"},
      {{"-p", "a", "--disable-optimization", "mtp,"}, "there is no optimization ''"},
      {{"-p", "a", "--effort", "no\x1b[2J\xff"}, "--effort no\\x1b[2J\\xff: "},
      {{"-p", "a", "--disable-optimization", "[all]"}, "[all]"},
      {{"-p", "a", "--depth", "0", "--accept", "rejection"}, "needs speculative decoding"},
  };
  for (const auto& [arguments, message] : cases) {
    SCOPED_TRACE(message);
    const Outcome result = run(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(is_one_complaint(result.err)) << result.err;
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
  }
}

TEST(Run, LinksThatLeadNowhereAreSaidToBeThat) {
  const ScratchDirectory scratch;
  const std::string link = (scratch / "config.json").string();
  std::filesystem::create_symlink("nothing", link);
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"-m", link}, {"-m", scratch.path().string()}, {"--in-memory", link}}) {
    std::vector<std::string> arguments = {"-p", "a"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome result = run(arguments);
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.err.find(link + ": a symbolic link that leads nowhere"), std::string::npos) << result.err;
  }
}

TEST(Run, IllFormedTextIsNamedByItsSourceAndPlace) {
  EXPECT_EQ(run_lockstep({"run"}, "abc\xc3").err, "lockstep: standard input: not valid UTF-8 at byte 3\n");
  EXPECT_EQ(run_lockstep({"run", "--raw", "--max-tokens", "1", "-p", "a\xff"}).exit_code, 0);
}

TEST(Bench, LengthsBeyondTheContextAreRefused) {
  for (const auto& arguments : {std::vector<std::string>{"bench", "--prompt", "40000"},
                                {"bench", "--prompt", "0", "--depth", "32760", "--tokens", "8"},
                                {"bench", "--prompt", "0", "--depth", "32000", "--tokens", "100", "--width", "8"}}) {
    const Outcome outcome = run_lockstep(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_NE(outcome.err.find("context holds 32768"), std::string::npos) << outcome.err;
  }
}

TEST(Bench, AModelWithoutFiniteLogitsIsNotMeasured) {
  const ScratchDirectory scratch;
  std::filesystem::copy(LOCKSTEP_TEST_DATA "/toy-hf", scratch / "model");
  const std::filesystem::path path = scratch / "model" / "model.safetensors";
  artifact::TensorInfo head;
  {
    const auto file = artifact::SafetensorsFile::open(path).value();
    head = *file.find("lm_head.weight");
  }
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(head.offset));
  for (std::uint64_t i = 0; i < head.bytes; i += 2) file << '\xc0' << '\x7f';  // a bf16 NaN
  file.close();
  const Outcome outcome = run_lockstep({"bench", scratch / "model", "--prompt", "8", "--tokens", "1"});
  EXPECT_EQ(outcome.exit_code, 1) << outcome.out;
  EXPECT_NE(outcome.err.find("logits that are not finite"), std::string::npos) << outcome.err;
}

TEST(Run, AMissingModelIsAFailureThatNamesIt) {
  const Outcome result = run({"-p", "a", "-m", "no\x1b[2J\xff-model"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(is_one_complaint(result.err)) << result.err;
  EXPECT_NE(result.err.find("'no\\x1b[2J\\xff-model' (from --model)"), std::string::npos) << result.err;
}

TEST(Run, ErrorsNameTheFileByItsPath) {
  const ScratchDirectory scratch;
  const auto copy = [&] {
    std::filesystem::copy(LOCKSTEP_SOURCE_DIR "/models/demo", scratch.path(),
                          std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  };
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                           "mtplx_runtime.json", "model.safetensors.index.json"}) {
    copy();
    std::ofstream(scratch / name) << "{\"a\": ";
    const Outcome result = run({"-p", "a", "-m", scratch.path().string()});
    EXPECT_EQ(result.exit_code, 1) << name;
    EXPECT_TRUE(result.err.starts_with("lockstep: " + (scratch / name).string() + ": not valid JSON")) << result.err;
  }
  copy();
  std::ofstream(scratch / "chat_template.jinja") << "{% if %}";
  EXPECT_TRUE(
      run({"-p", "a", "-m", scratch.path().string()})
          .err.starts_with("lockstep: " + (scratch / "chat_template.jinja").string() + ": chat template: line 1: "));
}

TEST(Run, TemplateErrorsAreShownSafely) {
  const ScratchDirectory scratch;
  std::filesystem::copy(LOCKSTEP_SOURCE_DIR "/models/demo", scratch.path());
  std::ofstream(scratch / "chat_template.jinja") << "{{ raise_exception('no \x1b]0;title\x07 ' + 'long ' * 5000) }}";
  const Outcome result = run({"-p", "a", "-m", scratch.path().string()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(is_one_complaint(result.err));
  EXPECT_LT(result.err.size(), 2100U);
  EXPECT_NE(result.err.find("the chat template refuses the conversation: no \\x1b]0;title\\x07 long"),
            std::string::npos)
      << result.err;
}

TEST(Run, MoreThreadsThanProcessorsAreNotStarted) {
  const std::string most = std::to_string(usable_processors());
  const Outcome result = run({"--temperature", "0", "-p", "What is a bank?", "--threads", "1024", "--stats"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(result.err.starts_with("lockstep: --threads 1024: this process may use " + most + " processor"))
      << result.err;
  EXPECT_NE(result.err.find(", " + most + " thread"), std::string::npos) << result.err;
  EXPECT_EQ(result.out, run({"--temperature", "0", "-p", "What is a bank?"}).out);
}

}  // namespace
}  // namespace lockstep::test
