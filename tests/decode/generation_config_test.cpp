#include "decode/generation_config.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <string>

#include "base/file.hpp"

namespace lockstep::decode {
namespace {

using Ids = std::vector<TokenId>;

Result<GenerationDefaults> parse(std::string_view text, const Ids& fallback = {}) {
  return parse_generation_config(parse_json(text, "text").value(), 1000, fallback);
}

TEST(GenerationConfig, ReadsTheUsualFile) {
  const auto defaults = parse(R"({"bos_token_id": 9, "do_sample": true, "eos_token_id": [12, 7, 12], "pad_token_id": 7,
                                  "temperature": 1.0, "top_k": 20, "top_p": 0.95, "transformers_version": "5.16.0"})");
  ASSERT_TRUE(defaults.has_value());
  EXPECT_EQ(defaults->sampler.temperature, 1.0);
  EXPECT_EQ(defaults->sampler.top_k, 20);
  EXPECT_EQ(defaults->sampler.top_p, 0.95);
  EXPECT_EQ(defaults->sampler.min_p, 0.0);
  EXPECT_EQ(defaults->stop_ids, (Ids{7, 12}));
  EXPECT_TRUE(defaults->warnings.empty());
}

TEST(GenerationConfig, NoSamplingMeansGreedy) {
  EXPECT_TRUE(parse(R"({"do_sample": false, "temperature": 0.7, "eos_token_id": 1})")->sampler.greedy());
  EXPECT_FALSE(parse(R"({"temperature": 0.7, "eos_token_id": 1})")->sampler.greedy());
  EXPECT_FALSE(
      parse(R"({"do_sample": null, "temperature": null, "top_k": null, "eos_token_id": 1})")->sampler.greedy());
}

TEST(GenerationConfig, StopIds) {
  EXPECT_EQ(parse(R"({"eos_token_id": 999})")->stop_ids, Ids{999});
  EXPECT_EQ(parse(R"({"eos_token_id": 999})", {5})->stop_ids, Ids{999});
  EXPECT_EQ(parse(R"({"eos_token_id": null})", {5, 3})->stop_ids, (Ids{3, 5}));
  EXPECT_EQ(parse(R"({"eos_token_id": []})", {5})->stop_ids, Ids{5});
  EXPECT_EQ(parse("{}", {5})->stop_ids, Ids{5});
  const auto none = parse("{}");
  ASSERT_TRUE(none.has_value());
  EXPECT_TRUE(none->stop_ids.empty());
  ASSERT_EQ(none->warnings.size(), 1U);
  EXPECT_NE(none->warnings[0].find("eos_token_id"), std::string::npos);
  for (const char* bad : {"1000", "-1", "1.5", "\"7\"", "true", "[3, 1000]", "[[1]]", "{}", "18446744073709551615"}) {
    const auto result = parse(std::string("{\"eos_token_id\": ") + bad + "}", {5});
    ASSERT_FALSE(result.has_value()) << bad;
    EXPECT_EQ(result.error().kind, ErrorKind::Invalid);
  }
}

TEST(GenerationConfig, WarnsAboutWhatItDoesNotDo) {
  const auto defaults = parse(R"({"eos_token_id": 1, "repetition_penalty": 1.05, "num_beams": 1, "typical_p": 1.0,
                                  "no_repeat_ngram_size": 3, "suppress_tokens": [4], "length_penalty": null})");
  ASSERT_TRUE(defaults.has_value());
  ASSERT_EQ(defaults->warnings.size(), 3U);
  EXPECT_NE(defaults->warnings[0].find("no_repeat_ngram_size"), std::string::npos);
  EXPECT_NE(defaults->warnings[1].find("repetition_penalty"), std::string::npos);
  EXPECT_NE(defaults->warnings[2].find("suppress_tokens"), std::string::npos);
}

TEST(GenerationConfig, WrongFieldsAreErrors) {
  for (const char* bad : {R"({"temperature": "1"})", R"({"temperature": -1})", R"({"top_p": 1.5})", R"({"top_k": 2.5})",
                          R"({"top_k": -3})", R"({"do_sample": 1})", R"({"min_p": []})", R"({"presence_penalty": {}})",
                          "[]", "3", "null"}) {
    const auto result = parse(bad, {1});
    ASSERT_FALSE(result.has_value()) << bad;
    EXPECT_NE(result.error().message.find("generation_config.json"), std::string::npos) << result.error().message;
  }
}

// Random edits of a valid file: an error or a valid result, never a crash.
TEST(GenerationConfig, SurvivesRandomEdits) {
  const std::string good = R"({"do_sample":true,"eos_token_id":[12,7],"temperature":1.0,"top_k":20,"top_p":0.95})";
  std::mt19937_64 random(6);
  for (int round = 0; round < 20'000; ++round) {
    std::string text = good;
    for (std::size_t edits = 1 + random() % 3; edits-- > 0;) {
      text[random() % text.size()] = "0123456789-.eE[]{},:\"ntf \x80"[random() % 26];
    }
    const auto json = parse_json(text, "text");
    if (!json) continue;
    const auto result = parse_generation_config(*json, 1000, Ids{});
    if (!result) continue;
    EXPECT_TRUE(checked_params(result->sampler, 1000).has_value()) << text;
    for (const TokenId id : result->stop_ids) EXPECT_TRUE(id >= 0 && id < 1000) << text;
  }
}

TEST(GenerationConfig, ReadsADirectory) {
  const auto directory = std::filesystem::path(::testing::TempDir()) / "generation_config_test";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  const auto missing = read_generation_config(directory, 1000, Ids{4});
  ASSERT_TRUE(missing.has_value());
  EXPECT_EQ(missing->stop_ids, Ids{4});
  EXPECT_EQ(missing->sampler.temperature, 1.0);
  ASSERT_TRUE(write_file(directory / "generation_config.json", R"({"eos_token_id": 3, "top_k": 7})").has_value());
  EXPECT_EQ(read_generation_config(directory, 1000, Ids{4})->sampler.top_k, 7);
  ASSERT_TRUE(write_file(directory / "generation_config.json", "{\"top_k\": ").has_value());
  EXPECT_FALSE(read_generation_config(directory, 1000, Ids{4}).has_value());
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace lockstep::decode
