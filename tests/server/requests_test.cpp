// The request parsers: what they make of each API's fields, and what they say about wrong ones.
#include <gtest/gtest.h>

#include <random>

#include "server/wire/generation_request.hpp"

namespace lockstep::server {
namespace {

constexpr RequestLimits kLimits{.messages = 8, .parts = 8, .tools = 4, .prompts = 4, .choices = 4};

const char* base_of(Api api) {
  switch (api) {
    case Api::Completions:
      return R"({"model": "m", "prompt": "p"})";
    case Api::Responses:
      return R"({"model": "m", "input": "p"})";
    case Api::Messages:
      return R"({"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "p"}]})";
    default:
      return R"({"model": "m", "messages": [{"role": "user", "content": "p"}]})";
  }
}

Parsed<GenerationRequest> parse_with(Api api, const std::string& fields, bool strict = false) {
  OrderedJson body = OrderedJson::parse(base_of(api));
  body.update(OrderedJson::parse(fields));
  RequestLimits limits = kLimits;
  limits.strict = strict;
  return parse_request(api, body.dump(), limits);
}

TEST(Requests, WrongFieldsAreNamed) {
  const struct {
    Api api;
    std::string fields, param;
  } cases[] = {
      {Api::Chat, R"({"model": 5})", "model"},
      {Api::Chat, R"({"model": null})", "model"},
      {Api::Chat, R"({"messages": null})", "messages"},
      {Api::Chat, R"({"messages": []})", "messages"},
      {Api::Chat, R"({"messages": {}})", "messages"},
      {Api::Chat, R"({"messages": [1]})", "messages[0]"},
      {Api::Chat, R"({"messages": [1,1,1,1,1,1,1,1,1]})", "messages"},
      {Api::Chat, R"({"messages": [{"role": "king", "content": ""}]})", "messages[0].role"},
      {Api::Chat, R"({"messages": [{"role": "user"}]})", "messages[0].content"},
      {Api::Chat, R"({"messages": [{"role": "user", "content": 7}]})", "messages[0].content"},
      {Api::Chat, R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})",
       "messages[0].content[0].type"},
      {Api::Chat, R"({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]})",
       "messages[0].content[0].text"},
      {Api::Chat, R"({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f",
                      "arguments": "{"}}]}]})",
       "messages[0].tool_calls[0].function.arguments"},
      {Api::Chat, R"({"temperature": 2.5})", "temperature"},
      {Api::Chat, R"({"temperature": "hot"})", "temperature"},
      {Api::Chat, R"({"top_p": -0.1})", "top_p"},
      {Api::Chat, R"({"min_p": 2})", "min_p"},
      {Api::Chat, R"({"top_k": 1.5})", "top_k"},
      {Api::Chat, R"({"presence_penalty": 3})", "presence_penalty"},
      {Api::Chat, R"({"frequency_penalty": -3})", "frequency_penalty"},
      {Api::Chat, R"({"logit_bias": {"x": 1}})", "logit_bias"},
      {Api::Chat, R"({"logit_bias": {"5": 101}})", "logit_bias.5"},
      {Api::Chat, R"({"logit_bias": {"13": 1, "0013": -5}})", "logit_bias"},
      {Api::Chat, R"({"seed": "a"})", "seed"},
      {Api::Chat, R"({"n": 0})", "n"},
      {Api::Chat, R"({"n": 5})", "n"},
      {Api::Chat, R"({"max_tokens": 0})", "max_tokens"},
      {Api::Chat, R"({"max_tokens": 18446744073709551615})", "max_tokens"},
      {Api::Chat, R"({"max_completion_tokens": -1})", "max_completion_tokens"},
      {Api::Chat, R"({"top_logprobs": 2})", "top_logprobs"},
      {Api::Chat, R"({"logprobs": true, "top_logprobs": 21})", "top_logprobs"},
      {Api::Chat, R"({"stop": [1]})", "stop[0]"},
      {Api::Chat, R"({"stop": [""]})", "stop"},
      {Api::Chat, R"({"stop": 1})", "stop"},
      {Api::Chat, R"({"stream": 1})", "stream"},
      {Api::Chat, R"({"stream_options": {}})", "stream_options"},
      {Api::Chat, R"({"response_format": {"type": "json_object"}})", "response_format.type"},
      {Api::Chat, R"({"response_format": {"type": "json_schema", "json_schema": {}}})", "response_format.type"},
      {Api::Chat, R"({"tool_choice": "required"})", "tool_choice"},
      {Api::Chat, R"({"tools": [{"type": "function"}]})", "tools[0].function"},
      {Api::Chat, R"({"tools": [{"type": "function", "function": {"name": "a b"}}]})", "tools[0].function.name"},
      {Api::Chat, R"({"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]})",
       "tools[0].function.parameters"},
      {Api::Chat, R"({"reasoning_effort": "much"})", "reasoning_effort"},
      {Api::Chat, R"({"chat_template_kwargs": {"messages": []}})", "chat_template_kwargs.messages"},
      {Api::Chat, R"({"chat_template_kwargs": {"enable_thinking": 0}})", "chat_template_kwargs.enable_thinking"},
      {Api::Chat, R"({"functions": [{}]})", "functions"},
      {Api::Chat, R"({"modalities": ["audio"]})", "modalities"},
      {Api::Completions, R"({"prompt": null})", "prompt"},
      {Api::Completions, R"({"prompt": []})", "prompt"},
      {Api::Completions, R"({"prompt": [[]]})", "prompt[0]"},
      {Api::Completions, R"({"prompt": [1, -1]})", "prompt[1]"},
      {Api::Completions, R"({"prompt": ["a", {}]})", "prompt[1]"},
      {Api::Completions, R"({"best_of": 2})", "best_of"},
      {Api::Completions, R"({"suffix": "x"})", "suffix"},
      {Api::Completions, R"({"logprobs": 21})", "logprobs"},
      {Api::Completions, R"({"max_tokens": 0})", "max_tokens"},
      {Api::Responses, R"({"input": null})", "input"},
      {Api::Responses, R"({"input": [{"type": "item_reference"}]})", "input[0].type"},
      {Api::Responses, R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})",
       "input[0].content[0].type"},
      {Api::Responses, R"({"previous_response_id": "resp_1"})", "previous_response_id"},
      {Api::Responses, R"({"include": ["message.output_text.logprobs", 5]})", "include[0]"},
      {Api::Responses, R"({"include": ["reasoning.encrypted_content"]})", "include[0]"},
      {Api::Responses, R"({"include": ["foo"]})", "include[0]"},
      {Api::Responses, R"({"reasoning": {"summary": "auto"}})", "reasoning.summary"},
      {Api::Responses, R"({"metadata": {"a": "b", "c": 5}})", "metadata.c"},
      {Api::Chat, R"({"metadata": {"a": 5}})", "metadata.a"},
      {Api::Responses, R"({"include": [1]})", "include[0]"},
      {Api::Responses, R"({"background": true})", "background"},
      {Api::Responses, R"({"text": {"format": {"type": "json_schema"}}})", "text.format.type"},
      {Api::Responses, R"({"tools": [{"type": "web_search"}]})", "tools[0].type"},
      {Api::Responses, R"({"reasoning": {"effort": "huge"}})", "reasoning.effort"},
      {Api::Responses, R"({"truncation": "auto"})", "truncation"},
      {Api::Messages, R"({"max_tokens": null})", "max_tokens"},
      {Api::Messages, R"({"messages": [{"role": "system", "content": "x"}]})", "messages[0].role"},
      {Api::Messages, R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})",
       "messages[0].content[0].type"},
      {Api::Messages, R"({"thinking": {"type": "perhaps"}})", "thinking.type"},
      {Api::Messages, R"({"tool_choice": {"type": "any"}})", "tool_choice.type"},
      {Api::Messages, R"({"stop_sequences": ["x"], "system": 4})", "system"},
      {Api::Messages, R"({"stop_sequences": "x"})", "stop_sequences"},
      {Api::Messages, R"({"stop_sequences": ["x", ""]})", "stop_sequences"},
      {Api::Messages, R"({"metadata": {"user_id": 5}})", "metadata.user_id"},
      {Api::Messages, R"({"tools": [{"name": "f"}]})", "tools[0].input_schema"},
      {Api::Messages, R"({"temperature": 1.1})", "temperature"},
      {Api::Messages, R"({"thinking": {"type": "enabled"}})", "thinking.budget_tokens"},
  };
  for (const auto& wrong : cases) {
    SCOPED_TRACE(wrong.fields);
    const auto parsed = parse_with(wrong.api, wrong.fields);
    ASSERT_FALSE(parsed.has_value());
    EXPECT_EQ(parsed.error().status, 400);
    EXPECT_EQ(parsed.error().param, wrong.param) << parsed.error().message;
    EXPECT_FALSE(parsed.error().message.empty());
    EXPECT_FALSE(parsed.error().code.empty());
  }
}

TEST(Requests, UnknownFieldsAreErrorsInStrictModeOnly) {
  for (const Api api : {Api::Chat, Api::Completions, Api::Responses, Api::Messages}) {
    EXPECT_TRUE(parse_with(api, R"({"frobnicate": 1})").has_value());
    const auto strict = parse_with(api, R"({"frobnicate": 1})", true);
    ASSERT_FALSE(strict.has_value());
    EXPECT_EQ(strict.error().param, "frobnicate");
    EXPECT_TRUE(parse_with(api, "{}", true).has_value());
  }
}

TEST(Requests, ChatFields) {
  const auto parsed = parse_with(Api::Chat, R"({
      "messages": [
        {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
        {"role": "user", "content": "hi", "name": "u"},
        {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
          {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": \"x\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"}],
      "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}],
      "parallel_tool_calls": false, "temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "seed": -1,
      "presence_penalty": 1, "frequency_penalty": -1, "logit_bias": {"7": -100}, "stop": ["a", "b"], "n": 2,
      "max_tokens": 5, "max_completion_tokens": 6, "logprobs": true, "top_logprobs": 2, "stream": true,
      "stream_options": {"include_usage": true}, "reasoning_effort": "high",
      "chat_template_kwargs": {"enable_thinking": false}, "user": "me", "metadata": {}, "response_format": {"type": "text"}})",
                                 true);
  ASSERT_TRUE(parsed.has_value()) << parsed.error().param << " " << parsed.error().message;
  const GenerationRequest& request = *parsed;
  EXPECT_EQ(request.messages.dump(),
            R"([{"role":"system","content":"Be brief."},{"role":"user","content":"hi"},)"
            R"({"role":"assistant","content":"","reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function",)"
            R"("function":{"name":"f","arguments":{"b":1,"a":"x"}}}]},)"
            R"({"role":"tool","content":"42","tool_call_id":"c1"}])");
  EXPECT_EQ(request.tools.dump(),
            R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object"}}}])");
  EXPECT_EQ(request.variables.dump(), R"({"reasoning_effort":"xhigh","enable_thinking":false})");
  EXPECT_EQ(request.sampling.seed, UINT64_MAX);
  EXPECT_EQ(request.sampling.logit_bias.at(7), -100);
  EXPECT_EQ(request.max_tokens, 6);
  EXPECT_EQ(request.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(request.one_call && request.stream && request.include_usage && request.logprobs);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.top_logprobs, 2);
}

TEST(Requests, ToolChoiceNoneTakesTheToolsAway) {
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f"}}])";
  EXPECT_TRUE(parse_with(Api::Chat, "{" + tools + R"(, "tool_choice": "none"})")->tools.is_null());
  EXPECT_FALSE(parse_with(Api::Chat, "{" + tools + R"(, "tool_choice": "auto"})")->tools.is_null());
  EXPECT_TRUE(parse_with(Api::Messages, R"({"tools": [{"name": "f", "input_schema": {}}],
                                            "tool_choice": {"type": "none"}})")
                  ->tools.is_null());
}

TEST(Requests, CompletionPrompts) {
  using Ids = std::vector<decode::TokenId>;
  const auto prompts = [](const std::string& prompt) {
    return parse_with(Api::Completions, R"({"prompt": )" + prompt + "}")->prompts;
  };
  EXPECT_EQ(prompts(R"("a")"), (std::vector<GenerationRequest::Prompt>{"a"}));
  EXPECT_EQ(prompts(R"(["a", "b"])"), (std::vector<GenerationRequest::Prompt>{"a", "b"}));
  EXPECT_EQ(prompts("[1, 2]"), (std::vector<GenerationRequest::Prompt>{Ids{1, 2}}));
  EXPECT_EQ(prompts(R"([[1], "b"])"), (std::vector<GenerationRequest::Prompt>{Ids{1}, "b"}));
  EXPECT_EQ(parse_with(Api::Completions, "{}")->max_tokens, 16);
}

TEST(Requests, ResponsesInputItemsBecomeMessages) {
  const auto parsed = parse_with(Api::Responses, R"({"instructions": "Be brief.", "max_output_tokens": 9, "input": [
      {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
      {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok", "annotations": []}]},
      {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "c", "output": "42"}]})");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().param << " " << parsed.error().message;
  EXPECT_EQ(parsed->messages.dump(),
            R"([{"role":"system","content":"Be brief."},{"role":"user","content":"hi"},)"
            R"({"role":"assistant","content":"ok","reasoning_content":"hm","tool_calls":[{"id":"c","type":"function",)"
            R"("function":{"name":"f","arguments":{}}}]},{"role":"tool","content":"42","tool_call_id":"c"}])");
  EXPECT_EQ(parsed->max_tokens, 9);
}

TEST(Requests, AnthropicBlocksBecomeMessages) {
  const auto parsed = parse_with(Api::Messages, R"({
      "system": [{"type": "text", "text": "A"}, {"type": "text", "text": "B", "cache_control": {"type": "ephemeral"}}],
      "max_tokens": 4096, "thinking": {"type": "enabled", "budget_tokens": 2000}, "stop_sequences": ["x"],
      "tools": [{"name": "f", "input_schema": {"type": "object"}}],
      "tool_choice": {"type": "auto", "disable_parallel_tool_use": true},
      "messages": [{"role": "user", "content": "hi"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""},
          {"type": "text", "text": "ok"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "42"},
          {"type": "text", "text": "go on"}]}]})");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().param << " " << parsed.error().message;
  EXPECT_EQ(parsed->messages.dump(),
            R"([{"role":"system","content":"A\nB"},{"role":"user","content":"hi"},)"
            R"({"role":"assistant","content":"ok","reasoning_content":"hm","tool_calls":[{"id":"t","type":"function",)"
            R"("function":{"name":"f","arguments":{"a":1}}}]},{"role":"tool","content":"42","tool_call_id":"t"},)"
            R"({"role":"user","content":"go on"}])");
  EXPECT_FALSE(parsed->variables.contains("enable_thinking"));
  EXPECT_TRUE(parsed->one_call);
  EXPECT_EQ(parse_with(Api::Messages, "{}")->variables["enable_thinking"], false);
}

TEST(Requests, BodiesThatAreNoObjects) {
  const struct {
    std::string body;
    int status;
  } cases[] = {{"", 400},           {"[]", 400},
               {"{", 400},          {"nul", 400},
               {"{\"a\":1}x", 400}, {"{\"model\":\"a\",\"model\":\"b\"}", 400},
               {"\"x\"", 400},      {"{\"a\":\"\xff\"}", 400}};
  for (const auto& wrong : cases) {
    const auto parsed = parse_request(Api::Chat, wrong.body, kLimits);
    ASSERT_FALSE(parsed.has_value()) << wrong.body;
    EXPECT_EQ(parsed.error().status, wrong.status) << wrong.body;
  }
  const std::string deep = R"({"model": "m", "messages": )" + std::string(100000, '[');
  EXPECT_EQ(parse_request(Api::Chat, deep, kLimits).error().status, 413);
}

/// Random JSON from the words that requests use, so that it gets far into the parsers.
class RandomJson {
 public:
  explicit RandomJson(std::uint64_t seed) : random_(seed) {}
  OrderedJson value(int depth) {
    switch (pick(depth > 0 ? 9 : 6)) {
      case 0:
        return nullptr;
      case 1:
        return pick(2) == 0;
      case 2:
        return static_cast<std::int64_t>(random_());
      case 3:
        return std::ldexp(static_cast<double>(pick(1000)), static_cast<int>(pick(200)) - 100);
      case 4:
      case 5:
        return word();
      case 6: {
        OrderedJson out = OrderedJson::array();
        for (std::size_t n = pick(4); n > 0; --n) out.push_back(value(depth - 1));
        return out;
      }
      default: {
        OrderedJson out = OrderedJson::object();
        for (std::size_t n = pick(8); n > 0; --n) out[word()] = value(depth - 1);
        return out;
      }
    }
  }

 private:
  std::size_t pick(std::size_t n) { return random_() % n; }
  std::string word() {
    static const std::vector<std::string> kWords = {"model",          "messages",
                                                    "role",           "content",
                                                    "user",           "assistant",
                                                    "tool",           "type",
                                                    "text",           "tools",
                                                    "function",       "name",
                                                    "arguments",      "{}",
                                                    "input",          "prompt",
                                                    "stop",           "tool_calls",
                                                    "thinking",       "system",
                                                    "message",        "function_call",
                                                    "reasoning",      "output",
                                                    "input_schema",   "max_tokens",
                                                    "logit_bias",     "stream",
                                                    "stream_options", "response_format",
                                                    "parameters",     "tool_result",
                                                    "tool_use",       "1"};
    return kWords[pick(kWords.size())];
  }
  std::mt19937_64 random_;
};

TEST(Requests, RandomBodiesAreAnsweredOrRefused) {
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE(seed);
    RandomJson random(seed);
    OrderedJson body = random.value(4);
    for (const Api api : {Api::Chat, Api::Completions, Api::Responses, Api::Messages}) {
      OrderedJson mixed = OrderedJson::parse(base_of(api));
      if (body.is_object()) mixed.update(body);
      for (const OrderedJson& one : {body, mixed}) {
        const auto parsed = parse_request(api, one.dump(), kLimits);
        if (parsed) continue;
        EXPECT_EQ(parsed.error().status, 400) << one.dump();
        EXPECT_FALSE(parsed.error().message.empty());
        EXPECT_TRUE(error_body(parsed.error(), error_shape(api)).contains("error"));
      }
    }
  }
}

TEST(Requests, ErrorShapes) {
  const ApiError error{400, "invalid_value", "messages[0].role", "must be one of 'a'", 0};
  EXPECT_EQ(error_body(error, ErrorShape::OpenAi).dump(),
            R"({"error":{"message":"must be one of 'a'","type":"invalid_request_error","param":"messages[0].role",)"
            R"("code":"invalid_value"}})");
  EXPECT_EQ(error_body(error, ErrorShape::Anthropic).dump(),
            R"({"type":"error","error":{"type":"invalid_request_error","message":"messages[0].role: must be one of )"
            R"('a'"}})");
  const struct {
    engine::RefusalReason reason;
    int status;
  } refusals[] = {{engine::RefusalReason::Invalid, 400},
                  {engine::RefusalReason::TooLarge, 413},
                  {engine::RefusalReason::QueueFull, 429},
                  {engine::RefusalReason::Draining, 503},
                  {engine::RefusalReason::Poisoned, 503}};
  for (const auto& one : refusals) EXPECT_EQ(from_refusal({one.reason, "why", 0, 0, 3}).status, one.status);
}

}  // namespace
}  // namespace lockstep::server
