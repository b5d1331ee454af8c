#include "text/utf8.hpp"

#include <gtest/gtest.h>

#include "text/tokenizer_test_support.hpp"
#include "text/utf8_stream.hpp"

namespace lockstep::text {
namespace {

std::string random_bytes(SplitMix& next, std::size_t longest) {
  // Bytes at the borders of the ranges that decide about well-formedness.
  static constexpr unsigned char kBorders[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF,
                                               0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE,
                                               0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
  std::string bytes;
  for (std::size_t i = next(longest + 1); i > 0; --i) bytes += static_cast<char>(kBorders[next(sizeof kBorders)]);
  return bytes;
}

TEST(Utf8, EveryScalarValueRoundTrips) {
  for (char32_t point = 0; point < 0x110000; ++point) {
    if (point >= 0xD800 && point <= 0xDFFF) continue;
    std::string text;
    append_utf8(point, text);
    const Utf8Unit unit = next_utf8(text);
    ASSERT_EQ(unit.kind, Utf8Kind::Valid);
    ASSERT_EQ(unit.code_point, point);
    ASSERT_EQ(unit.length, text.size());
    for (std::size_t cut = 1; cut < text.size(); ++cut) {
      ASSERT_EQ(next_utf8(std::string_view(text).substr(0, cut)).kind, Utf8Kind::Truncated);
    }
  }
}

TEST(Utf8, IllFormedSequences) {
  for (const char* text :
       {"\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE0\x80\x80", "\xF0\x8F\xBF\xBF", "\x80", "\xFF", "a\xC3"}) {
    EXPECT_FALSE(is_valid_utf8(text)) << text;
  }
  EXPECT_TRUE(is_valid_utf8("h\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"));
  // One replacement per maximal subpart: the example of the Unicode standard, table 3-8.
  EXPECT_EQ(replace_invalid_utf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\uFFFD\uFFFD\uFFFD"
            "b\uFFFD"
            "c\uFFFD\uFFFD"
            "d");
}

TEST(Utf8, ReplacementIsValidAndKeepsValidText) {
  const std::uint64_t seed = 8;
  SCOPED_TRACE(seed);
  SplitMix next(seed);
  for (int round = 0; round < 20'000; ++round) {
    const std::string bytes = random_bytes(next, 12);
    const std::string replaced = replace_invalid_utf8(bytes);
    EXPECT_TRUE(is_valid_utf8(replaced));
    EXPECT_EQ(replaced == bytes, is_valid_utf8(bytes));
  }
}

TEST(Utf8Stream, PiecesAreValidAndAddUp) {
  const std::uint64_t seed = 9;
  SCOPED_TRACE(seed);
  SplitMix next(seed);
  for (int round = 0; round < 20'000; ++round) {
    const std::string bytes = random_bytes(next, 20);
    Utf8Stream stream;
    std::string out;
    for (const std::string& piece : random_cuts(bytes, next, 4)) {
      const std::string part = stream.push(piece);
      EXPECT_TRUE(is_valid_utf8(part));
      out += part;
    }
    out += stream.finish();
    EXPECT_EQ(out, replace_invalid_utf8(bytes));
    EXPECT_EQ(stream.finish(), "");
  }
}

TEST(Utf8Stream, HoldsBackNothingButAnUnfinishedCharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("ab\xF0\x9F"), "ab");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80"), "\xF0\x9F\x98\x80");
  EXPECT_EQ(stream.push("\xE2\x82"), "");
  EXPECT_EQ(stream.push("x"), "\uFFFDx");
  EXPECT_EQ(stream.push("\xC3"), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

TEST(Detokenizer, EqualsDecodingAtOnce) {
  const std::uint64_t seed = 10;
  SCOPED_TRACE(seed);
  SplitMix next(seed);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::int32_t> ids;
    // Low ids are single bytes, which make broken characters; the last ones are added tokens and padding rows.
    for (std::size_t i = next(20); i > 0; --i) {
      ids.push_back(static_cast<std::int32_t>(next(3) == 0 ? 6090 + next(60) : next(next(2) == 0 ? 256 : 6100)));
    }
    for (const bool skip_special : {false, true}) {
      Detokenizer detokenizer(demo_tokenizer(), skip_special);
      std::string out;
      for (const std::int32_t id : ids) {
        const std::string part = detokenizer.push(id);
        EXPECT_TRUE(is_valid_utf8(part));
        out += part;
      }
      out += detokenizer.finish();
      EXPECT_EQ(out, demo_tokenizer().decode(ids, skip_special));
    }
  }
}

}  // namespace
}  // namespace lockstep::text
