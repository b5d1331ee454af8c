#include "text/tool_call.hpp"

#include <gtest/gtest.h>

#include "base/json.hpp"
#include "text/tokenizer_test_support.hpp"
#include "text/utf8.hpp"

namespace lockstep::text {

std::ostream& operator<<(std::ostream& out, const ToolCall& call) {
  return out << call.name << ' ' << call.arguments << (call.complete ? "" : " (cut)");
}

namespace {

const ToolSchemas& schemas() {
  static const ToolSchemas kSchemas = ToolSchemas::from_json(OrderedJson::parse(R"([
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
      "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
      "o": {"type": "object"}, "a": {"type": "array"}, "u": {}, "sn": {"type": ["string", "null"]},
      "any": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, "e": {"enum": ["x", 1, null]}, "c": {"const": true},
      "ref": {"$ref": "#/x"}, "half": {"anyOf": [{"type": "string"}, {"$ref": "#/x"}]}}}}},
    {"name": "flat", "input_schema": {"properties": {"s": {"type": "string"}}}},
    {"name": "odd", "parameters": 7}, 5, {"function": []}])"));
  return kSchemas;
}

std::string value_call(const std::string& key, const std::string& value) {
  return "<tool_call>\n<function=f>\n<parameter=" + key + ">\n" + value + "\n</parameter>\n</function>\n</tool_call>";
}

/// The arguments of a single complete call.
std::string arguments_of(const std::string& text) {
  const ToolCallAnswer answer = parse_tool_calls(text, schemas());
  if (answer.calls.size() != 1 || !answer.calls[0].complete || !answer.content.empty()) return "not one call";
  return answer.calls[0].arguments;
}

TEST(ToolCall, OneCall) {
  const ToolCallAnswer answer = parse_tool_calls(
      "I look it up.\n\n<tool_call>\n<function=lookup>\n<parameter=word>\nlantern\n</parameter>\n<parameter=limit>\n3\n"
      "</parameter>\n</function>\n</tool_call>");
  EXPECT_EQ(answer.content, "I look it up.");
  EXPECT_EQ(answer.calls, (std::vector<ToolCall>{{"lookup", R"({"word":"lantern","limit":3})", true}}));
}

TEST(ToolCall, SeveralCallsAndText) {
  const std::string call = "<tool_call>\n<function=f>\n</function>\n</tool_call>";
  ToolCallAnswer answer = parse_tool_calls(call + "\n" + call + "\n\nDone.\n");
  EXPECT_EQ(answer.content, "Done.\n");
  EXPECT_EQ(answer.calls, (std::vector<ToolCall>{{"f", "{}", true}, {"f", "{}", true}}));
  answer = parse_tool_calls("<tool_call><function=a></function><function=b></function></tool_call>");
  EXPECT_EQ(answer.calls, (std::vector<ToolCall>{{"a", "{}", true}, {"b", "{}", true}}));
}

TEST(ToolCall, EventsKeepTheOrder) {
  using Kind = ToolCallEvent::Kind;
  ToolCallParser parser;
  const auto events = parser.push("a\n<tool_call>\n<function=f>\n</function>\n</tool_call>\nb");
  EXPECT_EQ(events, (std::vector<ToolCallEvent>{{Kind::Text, 0, "a", false},
                                                {Kind::Begin, 0, "f", false},
                                                {Kind::Arguments, 0, "{}", false},
                                                {Kind::End, 0, "", true},
                                                {Kind::Text, 0, "b", false}}));
}

TEST(ToolCall, ValuesFollowTheSchema) {
  EXPECT_EQ(arguments_of(value_call("s", "12")), R"({"s":"12"})");
  EXPECT_EQ(arguments_of(value_call("s", "{\"a\": \"b\"}")), R"({"s":"{\"a\": \"b\"}"})");
  EXPECT_EQ(arguments_of(value_call("i", " 12 ")), R"({"i":12})");
  EXPECT_EQ(arguments_of(value_call("i", "twelve")), R"({"i":"twelve"})");
  EXPECT_EQ(arguments_of(value_call("i", "1.5")), R"({"i":"1.5"})");
  EXPECT_EQ(arguments_of(value_call("i", std::string("1\0", 2))), R"({"i":"1\u0000"})");
  EXPECT_EQ(arguments_of(value_call("n", "12")), R"({"n":12})");
  EXPECT_EQ(arguments_of(value_call("n", "-1.5e3")), R"({"n":-1.5e3})");
  EXPECT_EQ(arguments_of(value_call("b", "True")), R"({"b":true})");
  EXPECT_EQ(arguments_of(value_call("b", "false")), R"({"b":false})");
  EXPECT_EQ(arguments_of(value_call("b", "1")), R"({"b":"1"})");
  EXPECT_EQ(arguments_of(value_call("o", "{\"a\": [1]}")), R"({"o":{"a": [1]}})");
  EXPECT_EQ(arguments_of(value_call("o", "{\"a\": [1}")), R"({"o":"{\"a\": [1}"})");
  EXPECT_EQ(arguments_of(value_call("a", "[1, 2]")), R"({"a":[1, 2]})");
  EXPECT_EQ(arguments_of(value_call("sn", "None")), R"({"sn":null})");
  EXPECT_EQ(arguments_of(value_call("sn", "12")), R"({"sn":"12"})");
  EXPECT_EQ(arguments_of(value_call("any", "true")), R"({"any":true})");
  EXPECT_EQ(arguments_of(value_call("any", "null")), R"({"any":"null"})");
  EXPECT_EQ(arguments_of(value_call("e", "x")), R"({"e":"x"})");
  EXPECT_EQ(arguments_of(value_call("e", "1")), R"({"e":1})");
  EXPECT_EQ(arguments_of(value_call("c", "True")), R"({"c":true})");
}

TEST(ToolCall, ValuesOfUnknownTypeAreJsonIfTheyAreNoString) {
  for (const char* key : {"u", "ref", "half", "not_declared"}) {
    const std::string name = "{\"" + std::string(key) + "\":";
    EXPECT_EQ(arguments_of(value_call(key, "12")), name + "12}");
    EXPECT_EQ(arguments_of(value_call(key, "012")), name + "\"012\"}");
    EXPECT_EQ(arguments_of(value_call(key, "null")), name + "null}");
    EXPECT_EQ(arguments_of(value_call(key, "True")), name + "\"True\"}");
    EXPECT_EQ(arguments_of(value_call(key, "\"quoted\"")), name + "\"\\\"quoted\\\"\"}");
    EXPECT_EQ(arguments_of(value_call(key, "{}")), name + "{}}");
    EXPECT_EQ(arguments_of(value_call(key, std::string(1000, '[') + std::string(1000, ']'))),
              name + '"' + std::string(1000, '[') + std::string(1000, ']') + "\"}");
  }
}

TEST(ToolCall, OneLineEndOnEachSideBelongsToTheTags) {
  EXPECT_EQ(arguments_of(value_call("s", "")), R"({"s":""})");
  EXPECT_EQ(arguments_of(value_call("s", "\n a \n")), R"({"s":"\n a \n"})");
  EXPECT_EQ(arguments_of("<tool_call><function=f><parameter=s>a</parameter></function></tool_call>"), R"({"s":"a"})");
  EXPECT_EQ(arguments_of("<tool_call><function=f><parameter=s>\r\na\n</parameter></function></tool_call>"),
            R"({"s":"a"})");
  EXPECT_EQ(arguments_of("<tool_call><function=f><parameter=s>\n</parameter></function></tool_call>"), R"({"s":""})");
}

TEST(ToolCall, ClosingTagsInsideValues) {
  EXPECT_EQ(arguments_of(value_call("s", "a</parameter>b")), R"({"s":"a</parameter>b"})");
  EXPECT_EQ(arguments_of(value_call("s", "a\n</parameter>\nb")), R"({"s":"a\n</parameter>\nb"})");
  EXPECT_EQ(arguments_of(value_call("s", "a</function>b</tool_call>")), R"({"s":"a</function>b</tool_call>"})");
  EXPECT_EQ(arguments_of(value_call("s", "<parameter=s>\nx")), R"({"s":"<parameter=s>\nx"})");
  EXPECT_EQ(arguments_of(value_call("s", "</parameter>" + std::string(80, ' ') + "</function>x")),
            "{\"s\":\"</parameter>" + std::string(80, ' ') + "</function>x\"}");
}

TEST(ToolCall, MissingTagsAreToleratedWhereTheMeaningIsClear) {
  EXPECT_EQ(arguments_of("<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n</tool_call>"), R"({"s":"a"})");
  EXPECT_EQ(arguments_of("<tool_call>\n<function=f>\n<parameter=s>\na\n</function>\n</tool_call>"), R"({"s":"a"})");
  EXPECT_EQ(arguments_of("<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n</function>"), R"({"s":"a"})");
  EXPECT_EQ(arguments_of("<tool_call>\n<function=f>\n<parameter=s>\na\n</function>\n"), R"({"s":"a"})");
  EXPECT_EQ(arguments_of("<tool_call>\n<function=f>\nnoise <b> <parameter=\n>\n</function>\n</tool_call>"), "{}");
  EXPECT_EQ(arguments_of("<tool_call>\n<function=f>\n</function>\n</tool_c"), "{}");
}

TEST(ToolCall, ARepeatedParameterIsDropped) {
  EXPECT_EQ(arguments_of("<tool_call><function=f><parameter=s>a</parameter><parameter=s>b</parameter><parameter=i>1"
                         "</parameter></function></tool_call>"),
            R"({"s":"a","i":1})");
}

TEST(ToolCall, CutCallsAreIncomplete) {
  const auto cut = [](const std::string& text) { return parse_tool_calls(text, schemas()).calls; };
  EXPECT_EQ(cut("<tool_call>\n<function=f>\n<parameter=s>\nab"), (std::vector<ToolCall>{{"f", R"({"s":"ab)", false}}));
  EXPECT_EQ(cut("<tool_call>\n<function=f>\n<parameter=i>\n12"), (std::vector<ToolCall>{{"f", R"({"i":)", false}}));
  EXPECT_EQ(cut("<tool_call>\n<function=f>\n<parameter=s>\nab\n</parameter>\n"),
            (std::vector<ToolCall>{{"f", R"({"s":"ab")", false}}));
  EXPECT_EQ(cut("<tool_call>\n<function=f>\n"), (std::vector<ToolCall>{{"f", "{", false}}));
}

TEST(ToolCall, MentionsOfTagsAreText) {
  for (const std::string text :
       {"Use <tool_call> like this.", "<tool_call>", "<tool_call>\n{\"name\": 1}\n</tool_call>", "</tool_call>",
        "<function=f>", "<tool_call>\n<function=", "<tool_call>\n<function=>", "<tool_call>\n<function=a\nb>",
        "a\n\n<b>\n", "\n"}) {
    const ToolCallAnswer answer = parse_tool_calls(text, schemas());
    EXPECT_EQ(answer.content, text);
    EXPECT_TRUE(answer.calls.empty());
  }
  const std::string long_name = "<tool_call><function=" + std::string(300, 'n') + ">";
  EXPECT_EQ(parse_tool_calls(long_name).content, long_name);
}

ToolCallAnswer parse_pieces(const std::vector<std::string>& pieces) {
  ToolCallParser parser(schemas());
  ToolCallAnswer answer;
  for (const std::string& piece : pieces) append_events(parser.push(piece), answer);
  append_events(parser.finish(), answer);
  return answer;
}

TEST(ToolCall, EveryByteSplitOfATranscript) {
  const std::string text =
      "Größe:\n\n<tool_call>\n<function=f>\n<parameter=s>\n日本 </parameter> \"q\"\n\n</parameter>\n<parameter=i>\n42\n"
      "</parameter>\n<parameter=o>\n{\"k\": "
      "[true]}\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n"
      "</function>\n</tool_call>\n\nFertig <tool_call> ü";
  const ToolCallAnswer whole = parse_tool_calls(text, schemas());
  ASSERT_EQ(whole.calls.size(), 2u);
  EXPECT_EQ(whole.calls[0].arguments, R"({"s":"日本 </parameter> \"q\"\n","i":42,"o":{"k": [true]}})");
  EXPECT_EQ(whole.content, "Größe:Fertig <tool_call> ü");
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const ToolCallAnswer answer = parse_pieces({text.substr(0, cut), text.substr(cut)});
    EXPECT_EQ(answer.content, whole.content) << cut;
    EXPECT_EQ(answer.calls, whole.calls) << cut;
    // A cut answer still yields well-formed calls or a prefix of the arguments.
    const ToolCallAnswer half = parse_tool_calls(text.substr(0, cut), schemas());
    for (std::size_t i = 0; i < half.calls.size(); ++i) {
      EXPECT_TRUE(!half.calls[i].complete || half.calls[i] == whole.calls[i]) << half.calls[i];
    }
  }
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  EXPECT_EQ(parse_pieces(bytes).calls, whole.calls);
}

TEST(ToolCall, RandomTextAtRandomSplits) {
  const std::vector<std::string> parts{"<tool_call>",
                                       "</tool_call>",
                                       "<function=f>",
                                       "<function=",
                                       "</function>",
                                       "<parameter=s>",
                                       "<parameter=i>",
                                       "<parameter=u>",
                                       "</parameter>",
                                       "\n",
                                       " ",
                                       "a",
                                       "12",
                                       "\"",
                                       "<",
                                       ">",
                                       "\r\n",
                                       "é",
                                       "</",
                                       "{}",
                                       "<parameter="};
  const std::uint64_t seed = 57;
  SCOPED_TRACE(seed);
  SplitMix next(seed);
  std::size_t complete = 0;
  for (int round = 0; round < 30'000; ++round) {
    std::string text = next(2) == 0 ? "<tool_call>\n<function=f>\n" : "";
    for (std::size_t i = next(16); i > 0; --i) text += parts[next(parts.size())];
    const ToolCallAnswer whole = parse_tool_calls(text, schemas());
    const ToolCallAnswer pieces = parse_pieces(random_cuts(text, next, 6));
    EXPECT_EQ(pieces.content, whole.content) << text;
    EXPECT_EQ(pieces.calls, whole.calls) << text;
    for (const ToolCall& call : whole.calls) {
      if (!call.complete) continue;
      ++complete;
      EXPECT_TRUE(parse_json(call.arguments, "arguments", {.unique_keys = true})) << text;
    }
  }
  EXPECT_GT(complete, 1000u);
}

TEST(ToolCall, StringValuesStream) {
  ToolCallParser parser(schemas());
  parser.push("<tool_call>\n<function=f>\n<parameter=s>\n");
  for (int i = 0; i < 1000; ++i) {
    const auto events = parser.push("some text ");
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].text, "some text ");
  }
}

TEST(ToolCall, HostileLengthIsLinear) {
  std::string text = "<tool_call><function=f>";
  for (int i = 0; i < 30'000; ++i) text += "<parameter=k" + std::to_string(i) + ">x</parameter>";
  text += "</function></tool_call>";
  for (const char* part : {"</parameter>", "<tool_call>", "\n", "<tool_call> <function=", "</parameter>\n\n\n<"}) {
    for (int i = 0; i < 20'000; ++i) text += part;
    text += "<tool_call><function=f><parameter=s>";
  }
  const ToolCallAnswer answer = parse_pieces({text});
  ASSERT_GE(answer.calls.size(), 2u);
  EXPECT_TRUE(answer.calls[0].complete);
  EXPECT_GT(answer.calls[0].arguments.size(), 300'000u);
}

}  // namespace
}  // namespace lockstep::text
