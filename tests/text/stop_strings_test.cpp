#include "text/stop_strings.hpp"

#include <gtest/gtest.h>

#include "text/tokenizer_test_support.hpp"
#include "text/utf8.hpp"

namespace lockstep::text {
namespace {

struct Outcome {
  std::string text, matched;
  bool operator==(const Outcome&) const = default;
};

Outcome run(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopMatcher matcher = StopMatcher::create(stops).value();
  Outcome outcome;
  for (const std::string& piece : pieces) outcome.text += matcher.push(piece);
  outcome.text += matcher.finish();
  outcome.matched = matcher.matched();
  return outcome;
}

/// The definition: the first byte that completes a stop string, and the longest that ends there.
Outcome by_definition(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::string longest;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop) && stop.size() > longest.size()) longest = stop;
    }
    if (!longest.empty()) return {text.substr(0, end - longest.size()), longest};
  }
  return {text, ""};
}

/// The longest tail of the text that a stop string starts with.
std::size_t open_tail(const std::vector<std::string>& stops, const std::string& text) {
  std::size_t longest = 0;
  for (const std::string& stop : stops) {
    for (std::size_t n = 1; n <= std::min(stop.size(), text.size()); ++n) {
      if (text.ends_with(stop.substr(0, n))) longest = std::max(longest, n);
    }
  }
  return longest;
}

TEST(StopMatcher, OverlapsAreFound) {
  EXPECT_EQ(run({"aab"}, {"aaab"}), (Outcome{"a", "aab"}));
  EXPECT_EQ(run({"aab"}, {"a", "a", "a", "b", "x"}), (Outcome{"a", "aab"}));
  EXPECT_EQ(run({"abab", "ba"}, {"xaba"}), (Outcome{"xa", "ba"}));
  EXPECT_EQ(run({"bcd", "abcd", "cd"}, {"xab", "cdy"}), (Outcome{"x", "abcd"}));
  EXPECT_EQ(run({"abc", "b"}, {"abc"}), (Outcome{"a", "b"}));
  EXPECT_EQ(run({"\n\nUser:"}, {"Hi\n", "\nUser", "s\n\nUser:"}), (Outcome{"Hi\n\nUsers", "\n\nUser:"}));
  EXPECT_EQ(run({}, {"a", "b"}), (Outcome{"ab", ""}));
}

TEST(StopMatcher, HeldTextIsReturnedAtTheEnd) {
  StopMatcher matcher = StopMatcher::create({"STOP"}).value();
  EXPECT_EQ(matcher.push("xST"), "x");
  EXPECT_EQ(matcher.push(""), "");
  EXPECT_EQ(matcher.finish(), "ST");
}

TEST(StopMatcher, NothingFollowsAStop) {
  StopMatcher matcher = StopMatcher::create({"##"}).value();
  EXPECT_EQ(matcher.push("a##b"), "a");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.push("c"), "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, EqualsTheDefinitionAtEverySplit) {
  const std::uint64_t seed = 62;
  SCOPED_TRACE(seed);
  SplitMix next(seed);
  const auto word = [&](std::size_t longest) {
    std::string text;
    for (std::size_t i = 1 + next(longest); i > 0; --i) text += "ab\xC3\xA9"[next(4)];
    return text;
  };
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> stops(1 + next(4));
    for (std::string& stop : stops) stop = word(6);
    const std::string text = word(24);
    const Outcome expected = by_definition(stops, text);
    EXPECT_EQ(run(stops, {text}), expected);
    StopMatcher matcher = StopMatcher::create(stops).value();
    std::string out, seen;
    for (const std::string& piece : random_cuts(text, next, 3)) {
      out += matcher.push(piece);
      seen += piece;
      // Never more and never less than the tail that may still become a stop string.
      if (matcher.stopped()) break;
      EXPECT_EQ(out, seen.substr(0, seen.size() - open_tail(stops, seen)));
    }
    EXPECT_EQ((Outcome{out + matcher.finish(), std::string(matcher.matched())}), expected);
  }
}

TEST(StopMatcher, WholeCharactersComeOut) {
  StopMatcher matcher = StopMatcher::create({"\u00e9\u00e8", "\u20ac\u20ac"}).value();
  for (const char* piece : {"\u00e9", "\u00e9", "\u00ea", "\u20ac", "\u20ad", "\u20ac"}) {
    EXPECT_TRUE(is_valid_utf8(matcher.push(piece)));
  }
  EXPECT_EQ(matcher.finish(), "\u20ac");
}

TEST(StopMatcher, RejectsUnusableStrings) {
  EXPECT_EQ(StopMatcher::create({"a", ""}).error().kind, ErrorKind::Invalid);
  EXPECT_EQ(StopMatcher::create({std::string(5000, 'a')}).error().kind, ErrorKind::Limit);
  EXPECT_EQ(StopMatcher::create(std::vector<std::string>(65, "a")).error().kind, ErrorKind::Limit);
}

TEST(StopMatcher, LongRepetitiveTextIsLinear) {
  const std::string stop = std::string(4095, 'a') + "b";
  StopMatcher matcher = StopMatcher::create({stop}).value();
  std::string out;
  for (int i = 0; i < 1024; ++i) out += matcher.push(std::string(1024, 'a'));
  EXPECT_EQ(out.size(), (std::size_t{1} << 20) - 4095);
  EXPECT_EQ(matcher.push("b"), "");
  EXPECT_TRUE(matcher.stopped());
}

}  // namespace
}  // namespace lockstep::text
