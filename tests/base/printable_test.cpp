#include "base/printable.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace lockstep {
namespace {

TEST(Printable, PlainTextStaysAsItIs) {
  for (const char* text : {"", "config.json: not a JSON object", "größer, 日本, 👍🏽, a\\b 'c'"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, LineBreaksAndTabsBecomeSpaces) {
  EXPECT_EQ(printable("a\nb\tc\r\n\n"), "a b c");
}

TEST(Printable, WhatATerminalWouldObeyIsEscaped) {
  EXPECT_EQ(printable("\x1b[2J\a\x7f"), "\\x1b[2J\\x07\\x7f");
  EXPECT_EQ(printable("\u009b31m"), "\\u{9b}31m");  // CSI as one C1 control
  EXPECT_EQ(printable("a\u202eb\u2066c\u200f\u2028"), "a\\u{202e}b\\u{2066}c\\u{200f}\\u{2028}");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a\\x00b");
}

TEST(Printable, BytesThatAreNotUtf8AreEscaped) {
  EXPECT_EQ(printable("a\xff\xc0\x80z"), "a\\xff\\xc0\\x80z");
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");                    // cut off
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond U+10FFFF
  EXPECT_EQ(printable("\xe0\x80\xaf"), "\\xe0\\x80\\xaf");           // an overlong slash
}

TEST(Printable, LongTextKeepsItsTwoEnds) {
  const std::string text = "start" + std::string(100000, 'x') + "end";
  const std::string shown = printable(text, 100);
  EXPECT_EQ(shown.size(), 100U);
  EXPECT_TRUE(shown.starts_with("startxxx"));
  EXPECT_TRUE(shown.ends_with("xxxend"));
  EXPECT_NE(shown.find(" ... "), std::string::npos);
}

TEST(Printable, AnyBytesGiveOneBoundedLineThatIsPrintableItself) {
  std::mt19937 random(20261129);
  for (int round = 0; round < 2000; ++round) {
    std::string text(random() % 300, '\0');
    for (char& c : text) c = static_cast<char>(random());
    const std::string shown = printable(text, 120);
    SCOPED_TRACE(round);
    EXPECT_LE(shown.size(), 120U);
    EXPECT_EQ(printable(shown, 120), shown);
    EXPECT_TRUE(std::ranges::none_of(shown, [](unsigned char c) { return c < 0x20 || c == 0x7f; }));
  }
}

}  // namespace
}  // namespace lockstep
