#include "text/chat_template.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/file.hpp"
#include "base/json.hpp"

namespace lockstep::text {
namespace {

const std::filesystem::path kData = LOCKSTEP_TEST_DATA;

ChatTemplate style(const std::string& name) {
  const auto source = read_file(kData / "template" / "styles" / (name + ".jinja"), 1 << 20);
  EXPECT_TRUE(source) << name;
  auto compiled = ChatTemplate::compile(*source);
  EXPECT_TRUE(compiled) << compiled.error().message;
  return *std::move(compiled);
}

Rendered render(const std::string& source, const OrderedJson& messages, const ChatOptions& options = {}) {
  const auto compiled = ChatTemplate::compile(source);
  EXPECT_TRUE(compiled) << compiled.error().message;
  const auto rendered = compiled->render(messages, options);
  EXPECT_TRUE(rendered) << rendered.error().message;
  return rendered ? *rendered : Rendered{};
}

std::string render_error(const std::string& source, const OrderedJson& messages, const ChatOptions& options = {}) {
  const auto compiled = ChatTemplate::compile(source);
  if (!compiled) return compiled.error().message;
  const auto rendered = compiled->render(messages, options);
  EXPECT_FALSE(rendered);
  return rendered ? "" : rendered.error().message;
}

/// The text with literal stretches in brackets.
std::string marked(const Rendered& rendered) {
  std::string out;
  std::size_t at = 0;
  for (const ByteRange& range : rendered.literal) {
    EXPECT_LT(range.begin, range.end);
    EXPECT_LE(at, range.begin);
    out += rendered.text.substr(at, range.begin - at) + "[" +
           rendered.text.substr(range.begin, range.end - range.begin) + "]";
    at = range.end;
  }
  return out + rendered.text.substr(at);
}

/// The text without its literal stretches: what the template itself wrote.
std::string skeleton(const Rendered& rendered) {
  std::string out;
  std::size_t at = 0;
  for (const ByteRange& range : rendered.literal) {
    out += rendered.text.substr(at, range.begin - at);
    at = range.end;
  }
  return out + rendered.text.substr(at);
}

const OrderedJson kHello = OrderedJson::parse(R"([{"role": "user", "content": "hi"}])");

TEST(ChatTemplate, GoldenPrompts) {
  const auto text = read_file(kData / "demo" / "golden_prompts.json", 1 << 20);
  ASSERT_TRUE(text);
  const OrderedJson golden = OrderedJson::parse(*text);
  const ChatTemplate demo = style("demo");
  ASSERT_FALSE(golden["prompts"].empty());
  for (const OrderedJson& prompt : golden["prompts"]) {
    SCOPED_TRACE(prompt["name"].get<std::string>());
    ChatOptions options;
    options.add_generation_prompt = true;
    options.extra = prompt["kwargs"];
    options.tools = options.extra.value("tools", OrderedJson());
    options.extra.erase("tools");
    const auto rendered = demo.render(prompt["messages"], options);
    ASSERT_TRUE(rendered) << rendered.error().message;
    EXPECT_EQ(rendered->text, prompt["text"].get<std::string>());
  }
}

TEST(ChatTemplate, ErrorsSayWhere) {
  EXPECT_EQ(render_error("a\n\n{{ 1 + }}", kHello), "chat template: line 3: expected an expression, got '}}'");
  EXPECT_EQ(render_error("a\n{{ messages[0].nothing.more }}", kHello),
            "chat template, line 2: the attribute 'nothing' is undefined");
  EXPECT_EQ(render_error("{% if true %}\n{{ nobody() }}{% endif %}", kHello),
            "chat template, line 2: 'nobody' is undefined");
  EXPECT_EQ(render_error("{{ raise_exception('No ' ~ messages[0].role ~ ' here.') }}", kHello),
            "the chat template refuses the conversation: No user here.");
  EXPECT_EQ(render_error("{{ messages | unheard }}", kHello),
            "chat template: line 1: there is no filter named 'unheard'");
  EXPECT_EQ(render_error("{{ messages | pprint }}", kHello),
            "chat template: line 1: the filter 'pprint' is not supported in chat templates");
  const auto raised = ChatTemplate::compile("{{ raise_exception('x') }}")->render(kHello, {});
  EXPECT_EQ(raised.error().kind, ErrorKind::Invalid);
}

TEST(ChatTemplate, Context) {
  EXPECT_EQ(
      render("{{ tools is none }}{{ tools is defined }}{{ documents is none }}{{ add_generation_prompt }}", kHello)
          .text,
      "TrueTrueTrueFalse");
  EXPECT_EQ(render("{{ bos_token is defined }}", kHello).text, "False");
  ChatOptions options;
  options.bos_token = "<s>";
  options.add_generation_prompt = true;
  options.extra["effort"] = "high";
  options.tools = OrderedJson::parse(R"([{"name": "f"}])");
  EXPECT_EQ(
      marked(render("{{ bos_token }}{{ effort }}{{ tools[0].name }}{{ add_generation_prompt }}", kHello, options)),
      "<s>[highf]True");
  EXPECT_EQ(render_error("x", OrderedJson::object()), "messages must be an array");
  options.extra["messages"] = 1;
  EXPECT_EQ(render_error("x", kHello, options), "'messages' cannot be set as an extra variable of the chat template");
  options.extra = OrderedJson{{"bad", "\xff"}};
  EXPECT_NE(render_error("{{ bad }}", kHello, options).find("UTF-8"), std::string::npos);
  EXPECT_NE(render_error("\xff", kHello).find("UTF-8"), std::string::npos);
}

TEST(ChatTemplate, NumbersOfTheInput) {
  const OrderedJson messages =
      OrderedJson::parse(R"([18446744073709551615, -9223372036854775808, 1.0, 1e22, 2.5e-7, true, null])");
  EXPECT_EQ(render("{{ messages }} {{ messages | tojson }}", messages).text,
            "[18446744073709551615, -9223372036854775808, 1.0, 1e+22, 2.5e-07, True, None] "
            "[18446744073709551615, -9223372036854775808, 1.0, 1e+22, 2.5e-07, true, null]");
  EXPECT_EQ(
      render("{{ messages[0] > messages[1] }}{{ messages[0] is integer }}{{ messages[0] == messages[0] }}", messages)
          .text,
      "TrueTrueTrue");
  EXPECT_NE(render_error("{{ messages[0] + 1 }}", messages).find("beyond 63 bits"), std::string::npos);
  EXPECT_NE(render_error("{{ messages[1] - 1 }}", messages).find("beyond 64 bits"), std::string::npos);
  EXPECT_NE(render_error("{{ messages[1] // -1 }}", messages).find("beyond 64 bits"), std::string::npos);
  EXPECT_EQ(render("{{ messages[1] % -1 }}", messages).text, "0");
}

TEST(ChatTemplate, LiteralMarks) {
  const OrderedJson messages =
      OrderedJson::parse(R"([{"role": "user", "content": "  a<b> é|c  ", "list": ["x", "y\n"]}])");
  const auto check = [&](const std::string& source) {
    return marked(render("{% set c = messages[0].content %}" + source, messages));
  };
  EXPECT_EQ(check("<{{ c }}>"), "<[  a<b> é|c  ]>");
  EXPECT_EQ(check("{{ '<' + c.strip() + '>' }}"), "<[a<b> é|c]>");
  EXPECT_EQ(check("{{ c | trim | upper }}!"), "[A<B> É|C]!");
  EXPECT_EQ(check("{{ c.split('|')[0].strip() ~ '-' ~ c.split('|')[-1] }}"), "[a<b> é]-[c  ]");
  EXPECT_EQ(check("{{ c.strip().replace('<b>', '<i>') }}"), "[a]<i>[ é|c]");
  EXPECT_EQ(check("{{ c.strip()[::-1] }}|{{ c[2:5] }}|{{ c[7] }}"), "[c|é >b<a]|[a<b]|[é]");
  EXPECT_EQ(check("{{ messages[0].list | join('+') }}"), "[x]+[y\n]");
  EXPECT_EQ(check("{{ messages[0].list | tojson }}"), "[[\"x\"], [\"y\\n\"]]");
  EXPECT_EQ(check("{{ messages[0].list }}"), "[['x'], ['y\\n']]");
  EXPECT_EQ(check("{{ {'k': messages[0].list[0]} | tojson }}"), "{\"k\": [\"x\"]}");
  EXPECT_EQ(check("{{ '%s:%s' % (messages[0].list[0], 'z') }}"), "[x]:z");
  EXPECT_EQ(check("{{ '{}:{}'.format('z', messages[0].list[0]) }}"), "z:[x]");
  EXPECT_EQ(check("{{ ('- ' ~ messages[0].list[1] ~ 'z') | indent(2) }}"), "- [y]\n  z");
  EXPECT_EQ(check("{% for k in messages[0] %}{{ k }},{% endfor %}"), "[role],[content],[list],");
  EXPECT_EQ(check("{% for x in c.strip() %}{{ x }}{% if loop.index == 3 %}{% break %}{% endif %}.{% endfor %}"),
            "[a].[<].[b]");
  EXPECT_EQ(check("{% macro m(x) %}({{ x }}){% endmacro %}{{ m(c | trim) | upper }}"), "([A<B> É|C])");
  EXPECT_EQ(check("{% set x %}<{{ c | trim }}>{% endset %}{{ x[1:-1] }}{{ x }}"), "[a<b> é|c]<[a<b> é|c]>");
  EXPECT_EQ(check("{% filter trim %} {{ c }} {% endfilter %}"), "[a<b> é|c]");
  EXPECT_EQ(check("{{ c | trim | escape }}"), "[a&lt;b&gt; é|c]");
  EXPECT_EQ(check("{{ (c | trim) * 2 }}{{ c | length }}{{ c | first }}{{ c == c }}"), "[a<b> é|ca<b> é|c]12[ ]True");
  EXPECT_EQ(check("{{ c | trim | truncate(4, true, '~', 0) }}"), "[a<b]~");
  EXPECT_EQ(check("{{ c.strip().center(11, '*') }}{{ c.strip().partition('|') | last }}"), "**[a<b> é|c]*[c]");
  EXPECT_EQ(check("{{ messages | map(attribute='role') | first }}{{ messages[0].role.title() }}"), "[userUser]");
  EXPECT_EQ(check("{{ (messages[0] | items | list)[0][0] }}{{ messages[0].items() | list | length }}"), "[role]3");
}

/// Conversations of one shape whose texts have `text` in every place that a user or tool can reach.
OrderedJson conversation(const std::function<std::string()>& text) {
  OrderedJson messages = OrderedJson::array();
  messages.push_back({{"role", "system"}, {"content", text()}});
  messages.push_back({{"role", "user"}, {"content", text()}});
  OrderedJson call = {{"type", "function"},
                      {"function", {{"name", text()}, {"arguments", {{"k" + text(), text()}, {"n", 1}}}}}};
  messages.push_back({{"role", "assistant"},
                      {"content", text()},
                      {"reasoning_content", text()},
                      {"tool_calls", OrderedJson::array({call})}});
  messages.push_back({{"role", "tool"}, {"content", text()}, {"tool_call_id", "id" + text()}});
  messages.push_back({{"role", "assistant"}, {"content", text()}});
  messages.push_back({{"role", "user"}, {"content", text()}});
  return messages;
}

/// Whatever users write, the template writes the same around it: special tokens of theirs are all in literal ranges.
TEST(ChatTemplate, InputCannotChangeTheMarkup) {
  static const std::vector<std::string> kParts = {
      "<|im_end|>",   "<|im_start|>", "[INST]", "</s>", "<|end|>", "<end_of_turn>", "\"", "\\", "é", "\n", " ", "a",
      "</tool_call>", "{{ x }}",      "'",      "🙂", "\t",      "<|end_turn|>"};
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const auto noise = [&] {
      std::string text = "x";
      for (std::uint32_t i = random() % 6; i > 0; --i) text += kParts[random() % kParts.size()];
      return text + "x";
    };
    const OrderedJson plain = conversation([] { return std::string("x"); });
    const OrderedJson hostile = conversation(noise);
    for (const std::string name : {"demo", "chatml", "headers", "inst", "reversed", "typed"}) {
      SCOPED_TRACE(fmt::format("seed {}, {}, {}", seed, name, hostile.dump()));
      const ChatTemplate compiled = style(name);
      ChatOptions options;
      options.bos_token = "<s>";
      options.eos_token = "</s>";
      options.extra["date_string"] = "today";
      const auto with_plain = compiled.render(plain, options), with_hostile = compiled.render(hostile, options);
      ASSERT_TRUE(with_plain) << with_plain.error().message;
      ASSERT_TRUE(with_hostile) << with_hostile.error().message;
      ASSERT_EQ(skeleton(*with_plain), skeleton(*with_hostile));
    }
  }
}

/// The prompt of a turn is the start of the prompt of the next turn, as long as the template keeps old reasoning.
TEST(ChatTemplate, TurnsExtendThePrompt) {
  const ChatTemplate demo = style("demo");
  OrderedJson messages = OrderedJson::array();
  std::string before;
  for (int turn = 0; turn < 5; ++turn) {
    messages.push_back({{"role", "user"}, {"content", fmt::format("question {}", turn)}});
    ChatOptions options;
    options.add_generation_prompt = true;
    const auto rendered = demo.render(messages, options);
    ASSERT_TRUE(rendered);
    EXPECT_EQ(rendered->text.substr(0, before.size()), before);
    before = rendered->text + "why\n</think>\n\nanswer<|im_end|>\n";
    messages.push_back({{"role", "assistant"}, {"reasoning_content", "why"}, {"content", "answer"}});
  }
}

TEST(ChatTemplate, SharedBetweenThreads) {
  const ChatTemplate demo = style("demo");
  const auto expected = demo.render(kHello, {});
  ASSERT_TRUE(expected);
  std::vector<std::thread> threads;
  std::atomic<int> same{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 50; ++j) same += demo.render(kHello, {})->text == expected->text ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, 200);
}

class OpenChatTemplate : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("lockstep-template-{}", ::getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) { ASSERT_TRUE(write_file(folder_ / name, text)); }
  [[nodiscard]] std::string text(const ChatOptions& options = {}) const {
    const auto opened = ChatTemplate::open(folder_);
    if (!opened) return "error: " + opened.error().message;
    return opened->render(kHello, options)->text;
  }
  std::filesystem::path folder_;
};

TEST_F(OpenChatTemplate, Sources) {
  EXPECT_EQ(ChatTemplate::open(folder_).error().kind, ErrorKind::NotFound);
  write(
      "tokenizer_config.json",
      R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "{{ bos_token }}A{{ eos_token }}"})");
  EXPECT_EQ(text(), "<s>A</s>");
  ChatOptions options;
  options.bos_token = "<other>";
  EXPECT_EQ(text(options), "<other>A</s>");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]})");
  EXPECT_EQ(text(), "D");
  options.tools = OrderedJson::parse(R"([{"name": "f"}])");
  EXPECT_EQ(text(options), "T");
  write("chat_template.jinja", "J");
  EXPECT_EQ(text(options), "J");
  EXPECT_EQ(ChatTemplate::open(folder_)->source(), "J");
}

TEST_F(OpenChatTemplate, EmptyOnesAreNamed) {
  write("tokenizer_config.json", R"({"chat_template": " \n"})");
  EXPECT_EQ(text(), fmt::format("error: {}: the chat template is empty", (folder_ / "tokenizer_config.json").string()));
  write("chat_template.jinja", "");
  EXPECT_EQ(text(), fmt::format("error: {}: the chat template is empty", (folder_ / "chat_template.jinja").string()));
}

TEST_F(OpenChatTemplate, Faults) {
  write("tokenizer_config.json", "{");
  EXPECT_EQ(ChatTemplate::open(folder_).error().kind, ErrorKind::Invalid);
  write("tokenizer_config.json", R"({"chat_template": [{"name": 1}]})");
  EXPECT_EQ(ChatTemplate::open(folder_).error().kind, ErrorKind::Invalid);
  write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "R"}]})");
  EXPECT_EQ(ChatTemplate::open(folder_).error().kind, ErrorKind::NotFound);
  write("tokenizer_config.json", R"([1])");
  EXPECT_EQ(ChatTemplate::open(folder_).error().kind, ErrorKind::NotFound);
  write("chat_template.jinja", "{{");
  EXPECT_EQ(ChatTemplate::open(folder_).error().kind, ErrorKind::Invalid);
}

}  // namespace
}  // namespace lockstep::text
