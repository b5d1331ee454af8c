#include "artifact/draft_vocabulary.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace lockstep::artifact {
namespace {

std::string error_of(const std::string& text) {
  const auto list = parse_draft_vocabulary(text, "list.json");
  return list ? "accepted" : list.error().message;
}

TEST(DraftVocabulary, IsReadBackAsItWasWritten) {
  DraftVocabulary list;
  list.vocab_size = 100;
  list.ids = {7, 99, 0, 31};
  list.counted = 1000;
  list.covered = 900;
  const auto again = parse_draft_vocabulary(draft_vocabulary_text(list), "list.json").value();
  EXPECT_EQ(again.ids, list.ids);
  EXPECT_EQ(again.vocab_size, 100);
  EXPECT_EQ(again.counted, 1000);
  EXPECT_EQ(again.covered, 900);
}

TEST(DraftVocabulary, WhatIsNoListIsRefusedWithTheReason) {
  const std::string start = R"({"format":"lockstep-frspec-1","vocab_size":10,)";
  EXPECT_EQ(error_of(start + R"("ids":[3]})"), "accepted");
  for (const auto& [text, reason] : std::vector<std::pair<std::string, std::string>>{
           {"", "list.json"},
           {"[1,2]", "not a JSON object"},
           {"{}", "format"},
           {R"({"format":"other","vocab_size":10,"ids":[3]})", "format is not lockstep-frspec-1"},
           {R"({"format":"lockstep-frspec-1","ids":[3]})", "vocab_size"},
           {R"({"format":"lockstep-frspec-1","vocab_size":0,"ids":[3]})", "outside 1.."},
           {R"({"format":"lockstep-frspec-1","vocab_size":99999999999,"ids":[3]})", "outside 1.."},
           {start + R"("x":1})", "ids is not a list"},
           {start + R"("ids":[]})", "ids is not a list"},
           {start + R"("ids":{"a":1}})", "ids is not a list"},
           {start + R"("ids":[3,10]})", "ids[1] is not a token id below 10"},
           {start + R"("ids":[-1]})", "ids[0] is not a token id"},
           {start + R"("ids":[1.0]})", "ids[0] is not a token id"},
           {start + R"("ids":["1"]})", "ids[0] is not a token id"},
           {start + R"("ids":[18446744073709551615]})", "ids[0] is not a token id"},
           {start + R"("ids":[4,5,4]})", "ids[2]: token 4 is in the list already"},
           {start + R"("counted":-1,"ids":[4]})", "not a count"},
           {start + R"("ids":[3],"ids":[4]})", "ids"}}) {
    EXPECT_NE(error_of(text).find(reason), std::string::npos) << text << ": " << error_of(text);
    EXPECT_NE(error_of(text).find("list.json"), std::string::npos) << text;
  }
}

TEST(DraftVocabulary, RanksByCountThenById) {
  const std::vector<std::uint64_t> counts{5, 0, 9, 5, 1, 0};
  EXPECT_EQ(rank_draft_vocabulary(counts, {}, 10)->ids, (std::vector<std::int32_t>{2, 0, 3, 4}));
  const auto three = rank_draft_vocabulary(counts, std::vector<std::int32_t>{5, 3, 5}, 3).value();
  EXPECT_EQ(three.ids, (std::vector<std::int32_t>{5, 3, 2}));
  EXPECT_EQ(three.counted, 20);
  EXPECT_EQ(three.covered, 14);
  EXPECT_EQ(rank_draft_vocabulary(counts, std::vector<std::int32_t>{5, 3}, 1)->ids, (std::vector<std::int32_t>{5}));
  EXPECT_FALSE(rank_draft_vocabulary(counts, std::vector<std::int32_t>{6}, 3));
  EXPECT_FALSE(rank_draft_vocabulary(std::vector<std::uint64_t>(4), {}, 3));
}

TEST(DraftVocabulary, RandomListsAreOrderedAndReadBack) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<std::uint64_t> counts(random() % 300 + 2);
    for (std::uint64_t& count : counts) count = random() % 8;
    counts[0] = 1;
    const std::size_t size = random() % 320 + 1;
    const auto list = rank_draft_vocabulary(counts, std::vector<std::int32_t>{1}, size).value();
    EXPECT_LE(list.ids.size(), size);
    EXPECT_EQ(std::set<std::int32_t>(list.ids.begin(), list.ids.end()).size(), list.ids.size());
    for (std::size_t i = 2; i < list.ids.size(); ++i) {
      const auto before = static_cast<std::size_t>(list.ids[i - 1]);
      const auto here = static_cast<std::size_t>(list.ids[i]);
      EXPECT_TRUE(counts[before] > counts[here] || (counts[before] == counts[here] && before < here));
    }
    EXPECT_EQ(parse_draft_vocabulary(draft_vocabulary_text(list), "x")->ids, list.ids);
  }
}

}  // namespace
}  // namespace lockstep::artifact
