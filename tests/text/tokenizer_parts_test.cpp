// The stages of the tokenizer against slow references: merging, splitting, normalisation.
#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <map>
#include <memory>

#include "text/tokenizer_bpe.hpp"
#include "text/tokenizer_split.hpp"
#include "text/tokenizer_test_support.hpp"
#include "text/unicode_nfc.hpp"
#include "text/utf8.hpp"

namespace lockstep::text {
namespace {

using Ids = std::vector<std::int32_t>;

/// Applies the lowest rule at its leftmost place until none applies.
Ids merge_by_hand(Ids ids, const std::vector<MergeRule>& rules) {
  while (true) {
    std::size_t best_rank = rules.size(), best_at = 0;
    for (std::size_t at = 0; at + 1 < ids.size(); ++at) {
      for (std::size_t rank = 0; rank < best_rank; ++rank) {
        if (rules[rank].left == ids[at] && rules[rank].right == ids[at + 1]) best_rank = rank, best_at = at;
      }
    }
    if (best_rank == rules.size()) return ids;
    ids[best_at] = rules[best_rank].merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
}

TEST(BytePairMerger, EqualsMergingByHand) {
  std::array<std::int32_t, 256> bytes;
  for (std::int32_t i = 0; i < 256; ++i) bytes[static_cast<std::size_t>(i)] = i;
  const std::uint64_t seed = 4711;
  SCOPED_TRACE(seed);
  SplitMix next(seed);
  for (int round = 0; round < 500; ++round) {
    std::vector<MergeRule> rules;
    std::map<std::pair<std::int32_t, std::int32_t>, bool> used;
    std::vector<std::int32_t> known{'a', 'b', 'c'};
    for (int i = 0; i < 12; ++i) {
      const MergeRule rule{known[next(known.size())], known[next(known.size())], 256 + i};
      if (used[{rule.left, rule.right}]) continue;
      used[{rule.left, rule.right}] = true;
      rules.push_back(rule);
      known.push_back(rule.merged);
    }
    const auto merger = BytePairMerger::create(bytes, rules).value();
    BytePairMerger::Scratch scratch;
    for (int text = 0; text < 20; ++text) {
      std::string piece;
      for (std::size_t i = next(30); i > 0; --i) piece += "abc"[next(3)];
      Ids merged;
      EXPECT_TRUE(merger.encode(piece, scratch, merged));
      EXPECT_EQ(merged, merge_by_hand(Ids(piece.begin(), piece.end()), rules)) << piece;
    }
  }
}

const auto kIgnore = [](std::string_view) { return Status{}; };

std::vector<std::string> split(const SplitPattern& pattern, std::string_view text) {
  std::vector<std::string> pieces;
  SplitPattern::Budget budget(text.size());
  const Status status = pattern.split(text, budget, [&](std::string_view piece) -> Status {
    pieces.emplace_back(piece);
    return {};
  });
  if (!status) ADD_FAILURE() << status.error().message;
  return pieces;
}

TEST(SplitPattern, MatchesAndGapsArePieces) {
  const auto pattern = SplitPattern::compile("\\d+").value();
  EXPECT_EQ(split(pattern, "ab12c3"), (std::vector<std::string>{"ab", "12", "c", "3"}));
  EXPECT_EQ(split(pattern, "xyz"), std::vector<std::string>{"xyz"});
  EXPECT_EQ(split(pattern, ""), std::vector<std::string>{});
}

TEST(SplitPattern, SpaceIsTheUnicodeProperty) {
  const auto pattern = SplitPattern::compile("[\\s]+|[^\\s]+|\\\\s").value();
  for (const char* space :
       {" ", "\t", "\x0B", "\xC2\x85", "\xC2\xA0", "\xE1\x9A\x80", "\xE2\x80\xA8", "\xE3\x80\x80"}) {
    EXPECT_EQ(split(pattern, std::string("a") + space + "b").size(), 3u) << space;
  }
  EXPECT_EQ(split(pattern,
                  "a\xE1\xA0\x8E"
                  "b")
                .size(),
            1u);  // U+180E
  EXPECT_EQ(split(pattern,
                  "a\xE2\x80\x8B"
                  "b")
                .size(),
            1u);  // U+200B
}

Status split_all(const SplitPattern& pattern, std::string_view text) {
  SplitPattern::Budget budget(text.size());
  return pattern.split(text, budget, kIgnore);
}

TEST(SplitPattern, WorkBeyondTheBudgetIsAnError) {
  const std::string long_text(20'000, 'a');
  const std::string spaces(20'000, ' ');
  // Exponential, quadratic over all matches, quadratic within one, over starts without a match, with one early start.
  for (const auto& [regex, text] : std::vector<std::pair<const char*, std::string>>{{"(?:a+)+$|b", long_text + "c"},
                                                                                    {"a(?=.*b)", long_text},
                                                                                    {"a(?=.*.*b)", long_text},
                                                                                    {"\\s*[xy]", spaces},
                                                                                    {"a(?=a*+b)", long_text},
                                                                                    {"a(?=(?>a*)b)", long_text},
                                                                                    {"a(?=\\X*b)", long_text},
                                                                                    {"a(?<!b.*?)", long_text}}) {
    SCOPED_TRACE(regex);
    const auto pattern = SplitPattern::compile(regex);
    if (!pattern) continue;  // a lookbehind without a fixed length is none in this library
    const Status status = split_all(*pattern, text);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().kind, ErrorKind::Limit);
  }
}

TEST(SplitPattern, TheBudgetIsOverAllCalls) {
  const auto pattern = SplitPattern::compile("a(?=.*b)").value();
  const std::string text(400, 'a');  // a fifth of the budget a call
  SplitPattern::Budget budget(text.size());
  int calls = 0;
  while (calls < 20 && pattern.split(text, budget, kIgnore)) ++calls;
  EXPECT_LT(calls, 20);
  EXPECT_GT(calls, 1);
}

TEST(SplitPattern, MatchingCanBeStopped) {
  const auto pattern = SplitPattern::compile("a(?=.*b)").value();
  const std::string text(100'000, 'a');
  int asked = 0;
  SplitPattern::Budget budget(text.size(), [&] { return ++asked == 3; });
  const Status status = pattern.split(text, budget, kIgnore);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::Cancelled);
  EXPECT_EQ(asked, 3);
}

TEST(SplitPattern, TextsMadeToBeSlowStayWithinTheBudgetOfTheRealPattern) {
  const std::string published(demo_tokenizer().split_pattern());
  const auto pattern = SplitPattern::compile(published).value();
  const std::vector<std::string> parts = {
      " ", "\n", "'", "a", "1", ".", "\xCC\x80", "\r", "\t", "z", "\xC2\xA0", "\xE6\xBC\xA2", "'r", "\n    "};
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    SplitMix next(seed);
    std::string unit;
    for (std::size_t i = 1 + next(8); i > 0; --i) unit += parts[next(parts.size())];
    std::string text;
    while (text.size() < 30'000) text += unit;
    // Ten times through with a budget for once: the margin is at least tenfold.
    SplitPattern::Budget budget(text.size());
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(pattern.split(text, budget, kIgnore)) << unit;
  }
  for (const char* unit : {" ", "\n", "\xE6\xBC\xA2", "a", "' 1 '"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    EXPECT_TRUE(split_all(pattern, text)) << unit;
  }
}

TEST(SplitPattern, DeepRecursionIsAnError) {
  const auto pattern = SplitPattern::compile("(?:\\((?R)*\\)|x)").value();
  const std::string text(1 << 20, '(');
  const Status status = split_all(pattern, text);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().kind, ErrorKind::Limit);
}

TEST(SplitPattern, RejectsPatternsItCannotUse) {
  EXPECT_EQ(SplitPattern::compile("").error().kind, ErrorKind::Invalid);
  EXPECT_EQ(SplitPattern::compile(std::string(5000, 'a')).error().kind, ErrorKind::Invalid);
  EXPECT_EQ(SplitPattern::compile("(").error().kind, ErrorKind::Invalid);
  EXPECT_EQ(SplitPattern::compile("a\\C").error().kind, ErrorKind::Invalid);
  EXPECT_EQ(SplitPattern::compile("\\s*").error().kind, ErrorKind::Unsupported);
  EXPECT_EQ(SplitPattern::compile("(a)\\1").error().kind, ErrorKind::Unsupported);
  EXPECT_EQ(SplitPattern::compile("a{33}").error().kind, ErrorKind::Unsupported);
  EXPECT_EQ(SplitPattern::compile("\\d{65535,}").error().kind, ErrorKind::Unsupported);
  EXPECT_TRUE(SplitPattern::compile("\\p{N}{1,3}|\\x{20AC}|\\x{1000}|a{32}|\\{99}|b{|c{,7}"));
}

std::string nfc_of_library(const std::string& text) {
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> out(
      utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str())), &std::free);
  return reinterpret_cast<const char*>(out.get());
}

TEST(Nfc, EqualsTheLibrary) {
  const std::uint64_t seed = 5;
  SCOPED_TRACE(seed);
  SplitMix next(seed);
  const std::vector<char32_t> interesting{'a',    'e',    0x300,  0x301, 0x323, 0x327,  0x345,  0x1100,  0x1161,
                                          0x11A8, 0xAC00, 0x212B, 0x958, 0x93C, 0x3099, 0x304B, 0x1D15F, 0x344,
                                          0xC5,   0x1E9B, 0xFB1D, 0x5BF, 0x5B4, 0x0DD9, 0x0DCF, 0x0DCA,  0x11935};
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (std::size_t i = 1 + next(12); i > 0; --i) {
      char32_t point = interesting[next(interesting.size())];
      if (next(8) == 0) point = static_cast<char32_t>(1 + next(0x2FFFF));
      if (point < 0xD800 || point > 0xDFFF) append_utf8(point, text);
    }
    EXPECT_EQ(to_nfc(text).value(), nfc_of_library(text));
  }
}

TEST(Nfc, TrivialTextIsLeftAlone) {
  EXPECT_TRUE(is_trivially_nfc("caf\xC3\xA9 \xCB\xBF"));
  EXPECT_FALSE(is_trivially_nfc("e\xCC\x80"));
  EXPECT_EQ(to_nfc("caf\xC3\xA9").value(), "caf\xC3\xA9");
}

}  // namespace
}  // namespace lockstep::text
