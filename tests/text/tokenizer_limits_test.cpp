// Bounds of Tokenizer::encode(): the number of tokens, and being ended in the middle.
#include <gtest/gtest.h>

#include <random>

#include "text/tokenizer.hpp"

namespace lockstep::text {
namespace {

const Tokenizer& demo() {
  static const Tokenizer tokenizer = *Tokenizer::open(LOCKSTEP_SOURCE_DIR "/models/demo");
  return tokenizer;
}

/// Words, runs of one letter, added tokens, and texts that NFC makes shorter.
std::string random_text(std::mt19937_64& random) {
  static const std::vector<std::string> kParts = {
      "bank ", "aaaaaaaaaaaaaaaa",         "<|im_end|>", "\xE2\x84\xAA", "\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8",
      " 12",   "\xCE\xB1\xCC\x93\xCC\x81", "\xff",       "  \n",         "zq"};
  std::string text;
  for (std::size_t i = random() % 40; i > 0; --i) text += kParts[random() % kParts.size()];
  return text;
}

TEST(TokenizerLimits, MaxTokensIsExactAndLeastTokensIsABound) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const std::string text = random_text(random);
    const std::vector<std::int32_t> ids = *demo().encode(text);
    EXPECT_LE(demo().least_tokens(text.size()), ids.size());
    EXPECT_EQ(*demo().encode(text, {.max_tokens = ids.size()}), ids);
    if (ids.empty()) continue;
    const auto refused = demo().encode(text, {.max_tokens = ids.size() - 1});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::Limit);
  }
}

TEST(TokenizerLimits, ALongTextIsRefusedBeforeAnyWork) {
  std::size_t asked = 0;
  EncodeOptions options;
  options.max_tokens = 100;
  options.stop = [&] {
    ++asked;
    return false;
  };
  const auto refused = demo().encode(std::string(std::size_t{1} << 20, 'a'), options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "the text of 1048576 bytes has more than 100 tokens");
  EXPECT_EQ(asked, 0U);
}

TEST(TokenizerLimits, StopsInEveryPartOfTheWork) {
  const std::string texts[] = {std::string(300'000, 'a'),  // one piece to merge
                               [] {
                                 std::string t;
                                 for (int i = 0; i < 60'000; ++i) t += "a b ";
                                 return t;
                               }(),  // many pieces
                               [] {
                                 std::string t;
                                 for (int i = 0; i < 30'000; ++i) t += "<|im_end|>";
                                 return t;
                               }(),  // added tokens
                               [] {
                                 std::string t;
                                 for (int i = 0; i < 60'000; ++i) t += "e\xCC\x81 ";
                                 return t;
                               }()};  // normalisation
  for (const std::string& text : texts) {
    SCOPED_TRACE(text.substr(0, 12));
    const std::vector<std::int32_t> ids = *demo().encode(text);
    std::size_t asked = 0;
    std::size_t most = SIZE_MAX;
    EncodeOptions options;
    options.stop = [&] { return ++asked > most; };
    EXPECT_EQ(*demo().encode(text, options), ids);
    const std::size_t all = asked;
    ASSERT_GE(all, 4U);
    for (most = 0; most < all; most += 1 + all / 5) {
      asked = 0;
      const auto ended = demo().encode(text, options);
      ASSERT_FALSE(ended);
      EXPECT_EQ(ended.error().kind, ErrorKind::Cancelled);
      EXPECT_EQ(asked, most + 1);
    }
  }
}

}  // namespace
}  // namespace lockstep::text
