#include "text/reasoning.hpp"

#include <gtest/gtest.h>

#include "text/tokenizer_test_support.hpp"

namespace lockstep::text {
namespace {

struct Outcome {
  std::string reasoning, content;
  bool cut = false;  ///< the answer ended inside the block
  bool operator==(const Outcome&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  return out << '[' << outcome.reasoning << "][" << outcome.content << ']' << outcome.cut;
}

Outcome run(const ReasoningOptions& options, const std::vector<std::string>& pieces) {
  ReasoningSplitter splitter(options);
  Outcome outcome;
  const auto add = [&](const ReasoningSplitter::Delta& delta) {
    // Reasoning never follows content.
    EXPECT_TRUE(outcome.content.empty() || delta.reasoning.empty());
    outcome.reasoning += delta.reasoning;
    outcome.content += delta.content;
  };
  for (const std::string& piece : pieces) add(splitter.push(piece));
  add(splitter.finish());
  outcome.cut = splitter.in_reasoning();
  return outcome;
}

constexpr ReasoningOptions kOpen{.open = true, .tool_calls = false};
constexpr ReasoningOptions kOpenWithTools{.open = true, .tool_calls = true};
constexpr ReasoningOptions kClosed{.open = false, .tool_calls = false};

TEST(Reasoning, OpenBlock) {
  EXPECT_EQ(run(kOpen, {"I think.\n</think>\n\nYes."}), (Outcome{"I think.", "Yes.", false}));
  EXPECT_EQ(run(kOpen, {"\nI think.\n\nMore.</think>Yes.\n"}), (Outcome{"I think.\n\nMore.", "Yes.\n", false}));
  EXPECT_EQ(run(kOpen, {"</think>\n\n  indented"}), (Outcome{"", "  indented", false}));
  EXPECT_EQ(run(kOpen, {"a < b </thin k></think>c"}), (Outcome{"a < b </thin k>", "c", false}));
}

TEST(Reasoning, TheEndOfTheAnswerEndsTheBlock) {
  EXPECT_EQ(run(kOpen, {"I was cut"}), (Outcome{"I was cut", "", true}));
  EXPECT_EQ(run(kOpen, {"I was cut\n\n"}), (Outcome{"I was cut\n\n", "", true}));
  EXPECT_EQ(run(kOpen, {"I was cut</thi"}), (Outcome{"I was cut</thi", "", true}));
  EXPECT_EQ(run(kOpen, {""}), (Outcome{"", "", true}));
  EXPECT_EQ(run(kOpen, {"done</think>\n\n"}), (Outcome{"done", "", false}));
}

TEST(Reasoning, RepeatedOpeningTagIsDropped) {
  EXPECT_EQ(run(kOpen, {"<think>\nHm.\n</think>\n\nYes."}), (Outcome{"Hm.", "Yes.", false}));
  EXPECT_EQ(run(kOpen, {"<think><think>Hm.</think>"}), (Outcome{"<think>Hm.", "", false}));
  EXPECT_EQ(run(kOpen, {"So <think> is a tag.</think>"}), (Outcome{"So <think> is a tag.", "", false}));
}

TEST(Reasoning, ClosedBlock) {
  EXPECT_EQ(run(kClosed, {"Yes. </think> <think>"}), (Outcome{"", "Yes. </think> <think>", false}));
  EXPECT_EQ(run(kClosed, {"\n<think>\nHm.\n</think>\n\nYes."}), (Outcome{"Hm.", "Yes.", false}));
  EXPECT_EQ(run(kClosed, {"\n\nYes"}), (Outcome{"", "\n\nYes", false}));
  EXPECT_EQ(run(kClosed, {"\n"}), (Outcome{"", "\n", false}));
  EXPECT_EQ(run(kClosed, {"<thin"}), (Outcome{"", "<thin", false}));
  EXPECT_EQ(run(kClosed, {" <think>x"}), (Outcome{"", " <think>x", false}));
}

TEST(Reasoning, ACallEndsTheBlock) {
  const std::string call = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
  EXPECT_EQ(run(kOpenWithTools, {"Let me look.\n" + call}), (Outcome{"Let me look.", call, false}));
  EXPECT_EQ(run(kOpenWithTools, {call}), (Outcome{"", call, false}));
  EXPECT_EQ(run(kOpenWithTools, {"The <tool_call> tag, or <tool_call>\n<func>.</think>x"}),
            (Outcome{"The <tool_call> tag, or <tool_call>\n<func>.", "x", false}));
  EXPECT_EQ(run(kOpen, {"Let me look.\n" + call}), (Outcome{"Let me look.\n" + call, "", true}));
}

TEST(Reasoning, EverySplitGivesTheSame) {
  const std::vector<std::string> parts{"<think>", "</think>", "\n",          "\r\n",       "a", " ",     "<",
                                       "</",      "think>",   "<tool_call>", "<function=", "é", "<tool", "\n\n"};
  const std::uint64_t seed = 56;
  SCOPED_TRACE(seed);
  SplitMix next(seed);
  for (int round = 0; round < 20'000; ++round) {
    std::string text;
    for (std::size_t i = next(10); i > 0; --i) text += parts[next(parts.size())];
    const ReasoningOptions options{.open = next(2) == 0, .tool_calls = next(2) == 0};
    const Outcome whole = run(options, {text});
    EXPECT_EQ(run(options, random_cuts(text, next, 5)), whole) << text;
    const std::size_t cut = next(text.size() + 1);
    EXPECT_EQ(run(options, {text.substr(0, cut), text.substr(cut)}), whole) << text;
  }
}

TEST(Reasoning, TextThatCannotBeATagComesAtOnce) {
  ReasoningSplitter splitter(kOpenWithTools);
  EXPECT_EQ(splitter.push("abc").reasoning, "abc");
  EXPECT_EQ(splitter.push("d\n").reasoning, "d");
  EXPECT_EQ(splitter.push("e</th").reasoning, "\ne");
  EXPECT_EQ(splitter.push("x").reasoning, "</thx");
  EXPECT_EQ(splitter.push("</think>y").content, "y");
  EXPECT_EQ(splitter.push("</think>").content, "</think>");
}

}  // namespace
}  // namespace lockstep::text
