// Arms, orders and seeds.
#include "report/plan.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace lockstep::report {
namespace {

std::vector<Arm> arms(const std::vector<std::string>& names) {
  std::vector<Arm> out;
  for (const std::string& name : names) out.push_back({name, {}, {}});
  return out;
}

std::string labels(const std::string& order, const std::vector<std::string>& names) {
  const auto windows = parse_order(order, arms(names));
  if (!windows) return "error: " + windows.error().message;
  std::string out;
  for (const Window& window : *windows) out += fmt::format("{}{}:{}", out.empty() ? "" : " ", window.label, window.arm);
  return out;
}

TEST(Arms, AreEnvironmentThenFlags) {
  const auto arm = parse_arm("b2x=LOCKSTEP_ISA=avx2 EMPTY= --depth 0 X=1 '--stop=a b' \"q \\\" \\\\\" c\\ d ''");
  ASSERT_TRUE(arm) << arm.error().message;
  EXPECT_EQ(arm->name, "b2x");
  EXPECT_EQ(arm->environment,
            (std::vector<std::pair<std::string, std::string>>{{"LOCKSTEP_ISA", "avx2"}, {"EMPTY", ""}}));
  EXPECT_EQ(arm->flags, (std::vector<std::string>{"--depth", "0", "X=1", "--stop=a b", "q \" \\", "c d", ""}));
  EXPECT_EQ(parse_arm("a=")->flags.size(), 0U);
  EXPECT_EQ(parse_arm("a= \t ")->flags.size(), 0U);
}

TEST(Arms, WrongOnesAreRefused) {
  for (const std::string text : {"", "=", "a", "A=", "a1=", "1a=", "a b=", "a='open", "a=\"open", "a=end\\"}) {
    const auto arm = parse_arm(text);
    ASSERT_FALSE(arm) << text;
    EXPECT_EQ(arm.error().kind, ErrorKind::Usage) << text;
  }
  EXPECT_FALSE(parse_arm("a=" + std::string(kMaxArmBytes, 'x')));
  EXPECT_FALSE(parse_arm(std::string("a=x\0y", 5)));
}

TEST(Orders, LettersStandForArmsInTheirOrder) {
  EXPECT_EQ(labels("ABA", {"on", "off"}), "on1:0 off1:1 on2:0");
  EXPECT_EQ(labels("ABBA", {"on", "off"}), "on1:0 off1:1 off2:1 on2:0");
  EXPECT_EQ(labels(" ABCCBA ", {"x", "y", "z"}), "x1:0 y1:1 z1:2 z2:2 y2:1 x2:0");
}

TEST(Orders, ListsNameWindows) {
  EXPECT_EQ(labels("c1 a1 b1 b2 a2 c2", {"a", "b", "c"}), "c1:2 a1:0 b1:1 b2:1 a2:0 c2:2");
  EXPECT_EQ(labels("on,off, off on", {"on", "off"}), "on1:0 off1:1 off2:1 on2:0");
  EXPECT_EQ(labels("a", {"a"}), "a1:0");
}

TEST(Orders, SlashesAndDashesSeparate) {
  for (const std::string order : {"A/B/A", "A-B-A", "A B A", "A,B,A", " A / B-A "}) {
    EXPECT_EQ(labels(order, {"on", "off"}), "on1:0 off1:1 on2:0") << order;
  }
  for (const std::string order : {"on/off/on", "on-off-on", "on1/off1-on2"}) {
    EXPECT_EQ(labels(order, {"on", "off"}), "on1:0 off1:1 on2:0") << order;
  }
  // A dash inside the name of an arm stays.
  EXPECT_EQ(labels("a-b/a/b a-b7", {"a", "b", "a-b"}), "a-b1:2 a1:0 b1:1 a-b7:2");
  EXPECT_EQ(labels("b-a", {"a", "b", "a-b"}), "error: the order never runs arm 'a-b'");
  EXPECT_EQ(labels("A-B-x", {"a", "b"}), "error: the order names 'A', which is no arm");
  EXPECT_EQ(labels("/-/", {"a", "b"}), "error: the order is empty");
}

TEST(Orders, WrongOnesAreRefused) {
  const std::vector<std::string> names{"a", "b"};
  EXPECT_NE(labels("", names).find("empty"), std::string::npos);
  EXPECT_NE(labels("ABC", names).find("letter C"), std::string::npos);
  EXPECT_NE(labels("AA", names).find("never runs arm 'b'"), std::string::npos);
  EXPECT_NE(labels("a1 b1 d1", names).find("'d'"), std::string::npos);
  EXPECT_NE(labels("a1 b1 a1", names).find("'a1' twice"), std::string::npos);
  EXPECT_NE(labels("1 2", names).find("no arm"), std::string::npos);
  EXPECT_NE(labels(std::string(kMaxWindows, 'A') + "B", names).find("at most"), std::string::npos);
}

TEST(Seeds, AreNumbersAndRanges) {
  EXPECT_EQ(*parse_seeds("20260829-20260831"), (std::vector<std::uint64_t>{20260829, 20260830, 20260831}));
  EXPECT_EQ(*parse_seeds("7, 3 5-6"), (std::vector<std::uint64_t>{7, 3, 5, 6}));
  EXPECT_EQ(*parse_seeds("18446744073709551614-18446744073709551615"),
            (std::vector<std::uint64_t>{18446744073709551614U, 18446744073709551615U}));
  for (const std::string text :
       {"", ",", "x", "-1", "1-", "2-1", "1,1", "1-3,2", "0-18446744073709551615", "18446744073709551616", "0-64"}) {
    EXPECT_FALSE(parse_seeds(text)) << text;
  }
}

TEST(Plans, NoBytesBreakTheParsers) {
  std::mt19937 random(3);
  const std::string alphabet = "aAbB19-/_=,'\"\\ \t\n\0c";
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (std::size_t i = random() % 24; i > 0; --i) text += alphabet[random() % alphabet.size()];
    SCOPED_TRACE(testing::Message() << "round " << round << ": " << text);
    const auto arm = parse_arm(text);
    EXPECT_TRUE(!arm || !arm->name.empty());
    const auto windows = parse_order(text, arms({"a", "b"}));
    if (windows) {
      std::set<std::string> seen;
      for (const Window& window : *windows) EXPECT_TRUE(window.arm < 2 && seen.insert(window.label).second);
    }
    const auto seeds = parse_seeds(text);
    EXPECT_TRUE(!seeds || std::set(seeds->begin(), seeds->end()).size() == seeds->size());
  }
}

}  // namespace
}  // namespace lockstep::report
