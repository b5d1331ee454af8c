// Outputs of Jinja2, as Transformers sets it up, for many small templates and for random conversations under templates
// of several styles (tools/make_template_vectors.py).

#include <gtest/gtest.h>

#include <string>

#include "base/file.hpp"
#include "base/json.hpp"
#include "text/chat_template.hpp"

namespace lockstep::text {
namespace {

const std::filesystem::path kFolder = std::filesystem::path(LOCKSTEP_TEST_DATA) / "template";

OrderedJson load(const std::filesystem::path& path) {
  const auto text = read_file(path, 1 << 24);
  EXPECT_TRUE(text) << path;
  auto json = parse_ordered_json(*text, path.string());
  EXPECT_TRUE(json) << json.error().message;
  return *std::move(json);
}

std::tm fixed_time() {
  std::tm time{};
  time.tm_year = 2026 - 1900;
  time.tm_mon = 2;
  time.tm_mday = 5;
  time.tm_hour = 7;
  time.tm_min = 8;
  time.tm_sec = 9;
  time.tm_wday = 4;
  time.tm_yday = 63;
  return time;
}

/// What a template makes of its variables: the text, or the error.
Result<Rendered> render(const std::string& source, const OrderedJson& messages, const ChatOptions& options) {
  const auto compiled = LOCKSTEP_TRY(ChatTemplate::compile(source));
  return compiled.render(messages, options);
}

void expect_outcome(const Result<Rendered>& got, const OrderedJson& wanted) {
  if (wanted.contains("text")) {
    ASSERT_TRUE(got) << got.error().message;
    EXPECT_EQ(got->text, wanted["text"].get<std::string>());
  } else {
    ASSERT_FALSE(got) << "rendered: " << got->text;
    const bool raised = wanted["error"].is_string();
    if (!raised) return;
    EXPECT_EQ(got.error().message, "the chat template refuses the conversation: " + wanted["error"].get<std::string>());
  }
}

TEST(JinjaVectors, Snippets) {
  const OrderedJson cases = load(kFolder / "snippets.json");
  ASSERT_GT(cases.size(), 700u);
  ChatOptions options;
  options.extra = cases[0]["context"];
  options.clock = fixed_time;
  for (std::size_t i = 1; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i]["template"].get<std::string>());
    expect_outcome(render(cases[i]["template"], OrderedJson::array(), options), cases[i]);
  }
}

TEST(JinjaVectors, Conversations) {
  const OrderedJson cases = load(kFolder / "conversations.json");
  ASSERT_GE(cases.size(), 120u);
  for (const OrderedJson& wanted : cases) {
    const std::string style = wanted["style"];
    SCOPED_TRACE(style + " " + wanted["messages"].dump());
    const auto source = read_file(kFolder / "styles" / (style + ".jinja"), 1 << 20);
    ASSERT_TRUE(source);
    ChatOptions options;
    options.extra = wanted["extra"];
    options.add_generation_prompt = wanted["add_generation_prompt"];
    options.tools = wanted.value("tools", OrderedJson());
    options.bos_token = "<s>";
    options.eos_token = "</s>";
    options.clock = fixed_time;
    expect_outcome(render(*source, wanted["messages"], options), wanted);
  }
}

}  // namespace
}  // namespace lockstep::text
