// `lockstep tokenize` and `lockstep detokenize`.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/json.hpp"
#include "cli/process.hpp"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

/// A model directory with the demo tokenizer and nothing else that a tokenizer needs.
class TokenizeCommand : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::path(testing::TempDir()) / ("tokenize-" + std::to_string(::getpid()));
    fs::create_directories(directory_);
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
      fs::copy_file(fs::path(LOCKSTEP_SOURCE_DIR) / "models/demo" / name, directory_ / name,
                    fs::copy_options::overwrite_existing);
    }
    std::ofstream(directory_ / "config.json") << "{}";
  }
  void TearDown() override { fs::remove_all(directory_); }

  Outcome run(std::vector<std::string> arguments, std::string input = {}) const {
    arguments.insert(arguments.begin() + 1, {"--model", directory_.string()});
    return run_lockstep(std::move(arguments), std::move(input));
  }

  fs::path directory_;
};

TEST_F(TokenizeCommand, TextFromArgumentOrStandardInput) {
  const Outcome argument = run({"tokenize", "<think>\nbank"});
  EXPECT_EQ(argument.exit_code, 0) << argument.err;
  EXPECT_TRUE(argument.out.starts_with("6114 ")) << argument.out;
  EXPECT_EQ(run({"tokenize"}, "<think>\nbank").out, argument.out);
  EXPECT_EQ(run({"tokenize", ""}).out, "\n");
  EXPECT_EQ(run({"tokenize"}).out, "\n");
}

TEST_F(TokenizeCommand, JsonListsTheTokens) {
  const Outcome result = run({"tokenize", "--json", "a<|im_end|>"});
  const auto json = parse_json(result.out, "output");
  ASSERT_TRUE(json) << result.out << result.err;
  EXPECT_EQ((*json)["count"], 2);
  EXPECT_EQ((*json)["ids"][1], 6102);
  EXPECT_EQ((*json)["tokens"].dump(), R"(["a","<|im_end|>"])");
}

TEST_F(TokenizeCommand, NoSpecialTakesTagsAsText) {
  const Outcome result = run({"tokenize", "--no-special", "<|im_end|>"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out.find("6102"), std::string::npos);
  EXPECT_EQ(run({"detokenize", "--skip-special"}, result.out).out, "<|im_end|>");
}

TEST_F(TokenizeCommand, RoundTripThroughPipes) {
  const std::string text = "Zeile 1\r\n\n  日本 👍🏽 <think>\ttab\n";
  EXPECT_EQ(run({"detokenize"}, run({"tokenize"}, text).out).out, text);
  EXPECT_EQ(run({"detokenize"}, run({"tokenize", "--json"}, text).out).out, text);
  const Json expected{{"text", text}};
  EXPECT_EQ(run({"detokenize", "--json"}, run({"tokenize"}, text).out).out, expected.dump() + "\n");
}

TEST_F(TokenizeCommand, BytesThatAreNotUtf8AreReplaced) {
  EXPECT_EQ(run({"detokenize"}, run({"tokenize"}, "a\xff\xe2\x82z").out).out, "a\uFFFD\uFFFDz");
}

TEST_F(TokenizeCommand, IdsInEveryForm) {
  const std::string expected = "<think></think>";
  EXPECT_EQ(run({"detokenize", "6114", "6115"}).out, expected);
  EXPECT_EQ(run({"detokenize", "6114,6115"}).out, expected);
  EXPECT_EQ(run({"detokenize", "[6114, 6115]"}).out, expected);
  EXPECT_EQ(run({"detokenize"}, " 6114\n6115\n").out, expected);
  EXPECT_EQ(run({"detokenize"}, "{\"ids\": [6114, 6115]}").out, expected);
  EXPECT_EQ(run({"detokenize"}).out, "");
}

TEST_F(TokenizeCommand, TextInBracketsArrivesAsItIs) {
  for (const char* text : {"[a,b]", "[]", "[,]", "\x1f[a]", "-", "run"}) {
    EXPECT_EQ(run({"detokenize"}, run({"tokenize", text}).out).out, text);
  }
  EXPECT_EQ(run({"detokenize"}, run({"tokenize", "--", "--json"}).out).out, "--json");
  EXPECT_EQ(run({"detokenize", "[6114,,6115]"}).exit_code, 2);
}

TEST_F(TokenizeCommand, IdsBeyondTheVocabularyAreAFailure) {
  for (const char* ids : {"6116", "[2147483647]"}) {
    const Outcome result = run({"detokenize", ids});
    EXPECT_EQ(result.exit_code, 1) << ids;
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find("is not in the vocabulary of 6116 tokens"), std::string::npos) << result.err;
    EXPECT_EQ(run({"detokenize"}, ids).exit_code, 1);
  }
}

TEST_F(TokenizeCommand, WhatCannotBeIdsIsWrongUsage) {
  const struct {
    const char* input;
    const char* message;
  } cases[] = {
      {"1 x", "word 2 is 'x'"},
      {"99999999999", "not an id"},
      {"1.5", "not an id"},
      {"[1, -1]", "element 1 is -1"},
      {"[1, \"a\"]", "element 1 is \"a\""},
      {"[1, 4294967296]", "element 1"},
      {"{\"text\": \"a\"}", "expected a JSON list"},
      {"[1, 2", "token ids: not valid JSON"},
  };
  for (const auto& wrong : cases) {
    const Outcome result = run({"detokenize"}, wrong.input);
    EXPECT_EQ(result.exit_code, 2) << wrong.input;
    EXPECT_EQ(run({"detokenize", wrong.input}).exit_code, 2) << wrong.input;
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err.find(wrong.message), std::string::npos) << result.err;
  }
}

TEST_F(TokenizeCommand, MissingTokenizerIsNamed) {
  fs::remove(directory_ / "tokenizer.json");
  const Outcome result = run({"tokenize", "a"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("tokenizer.json"), std::string::npos) << result.err;
}

TEST_F(TokenizeCommand, MoreThanOneTextIsWrongUsage) {
  EXPECT_EQ(run({"tokenize", "a", "b"}).exit_code, 2);
}

}  // namespace
}  // namespace lockstep::test
