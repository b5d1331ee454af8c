// Every field of every request against every kind of value: taken, or refused with the field's path.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/fixture.hpp"
#include "server/wire/generation_request.hpp"

namespace lockstep::test {
namespace {

using server::Api;

/// The kinds by letter. 'n' is null, which stands for an absent field.
struct Value {
  char kind;
  const char* json;
};
constexpr Value kValues[] = {{'s', R"("x")"},
                             {'s', R"("NaN")"},
                             {'f', "0.5"},
                             {'i', "1"},
                             {'i', "1.0"},
                             {'b', "true"},
                             {'n', "null"},
                             {'l', "[]"},
                             {'o', "{}"},
                             {'h', "1e300"},
                             {'h', "-1e300"},
                             {'h', "18446744073709551616"},
                             {'h', "-9223372036854775809"}};

struct Field {
  const char* pointer;  ///< JSON pointer into the body
  const char* takes;    ///< kinds that are taken
};

/// "/messages/0/name" as "messages[0].name"; the keys of logit_bias are names.
std::string path_of(const std::string& pointer) {
  std::string out;
  for (std::size_t at = 1; at <= pointer.size();) {
    const std::size_t end = std::min(pointer.find('/', at), pointer.size());
    const std::string part = pointer.substr(at, end - at);
    if (part.find_first_not_of("0123456789") == std::string::npos && out != "logit_bias") {
      out += "[" + part + "]";
    } else {
      out += (out.empty() ? "" : ".") + part;
    }
    at = end + 1;
  }
  return out;
}

const char* const kChat = R"({"model": "m", "logit_bias": {"7": 1}, "stream": true, "messages": [
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {"role": "assistant", "content": "ok", "tool_calls": [
      {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "tool", "tool_call_id": "c", "content": "42"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]})";

const std::vector<Field> kChatFields = {{"/model", "s"},
                                        {"/messages", ""},
                                        {"/messages/0", ""},
                                        {"/messages/0/role", ""},
                                        {"/messages/0/content", "sl"},
                                        {"/messages/0/content/0", ""},
                                        {"/messages/0/content/0/type", ""},
                                        {"/messages/0/content/0/text", "s"},
                                        {"/messages/0/name", "sn"},
                                        {"/messages/1/content", "sln"},
                                        {"/messages/1/reasoning_content", "sn"},
                                        {"/messages/1/reasoning", "sn"},
                                        {"/messages/1/refusal", "sn"},
                                        {"/messages/1/annotations", "ln"},
                                        {"/messages/1/function_call", "lon"},
                                        {"/messages/1/audio", "lon"},
                                        {"/messages/1/tool_calls", "ln"},
                                        {"/messages/1/tool_calls/0", ""},
                                        {"/messages/1/tool_calls/0/id", "sn"},
                                        {"/messages/1/tool_calls/0/type", "n"},
                                        {"/messages/1/tool_calls/0/function", ""},
                                        {"/messages/1/tool_calls/0/function/name", "s"},
                                        {"/messages/1/tool_calls/0/function/arguments", "on"},
                                        {"/messages/2/tool_call_id", "sn"},
                                        {"/messages/2/content", "sl"},
                                        {"/tools", "ln"},
                                        {"/tools/0", ""},
                                        {"/tools/0/type", ""},
                                        {"/tools/0/function", ""},
                                        {"/tools/0/function/name", "s"},
                                        {"/tools/0/function/description", "sn"},
                                        {"/tools/0/function/parameters", "on"},
                                        {"/tools/0/function/strict", "bn"},
                                        {"/tool_choice", "n"},
                                        {"/parallel_tool_calls", "bn"},
                                        {"/max_tokens", "in"},
                                        {"/max_completion_tokens", "in"},
                                        {"/n", "in"},
                                        {"/logprobs", "bn"},
                                        {"/top_logprobs", "n"},
                                        {"/response_format", "n"},
                                        {"/response_format/type", ""},
                                        {"/stream", "bn"},
                                        {"/stream_options", "on"},
                                        {"/stream_options/include_usage", "bn"},
                                        {"/stream_options/include_obfuscation", "bn"},
                                        {"/reasoning_effort", "n"},
                                        {"/chat_template_kwargs", "on"},
                                        {"/chat_template_kwargs/enable_thinking", "bn"},
                                        {"/chat_template_kwargs/messages", ""},
                                        {"/chat_template_kwargs/tools", ""},
                                        {"/chat_template_kwargs/add_generation_prompt", ""},
                                        {"/chat_template_kwargs/bos_token", ""},
                                        {"/chat_template_kwargs/raise_exception", ""},
                                        {"/chat_template_kwargs/namespace", ""},
                                        {"/chat_template_kwargs/loop", ""},
                                        {"/functions", "lon"},
                                        {"/function_call", "lon"},
                                        {"/audio", "lon"},
                                        {"/web_search_options", "lon"},
                                        {"/prediction", "lon"},
                                        {"/modalities", "n"},
                                        {"/verbosity", "sn"}};

const std::vector<Field> kSampling = {{"/temperature", "fin"},
                                      {"/top_p", "fin"},
                                      {"/min_p", "fin"},
                                      {"/top_k", "in"},
                                      {"/presence_penalty", "fin"},
                                      {"/frequency_penalty", "fin"},
                                      {"/seed", "in"},
                                      {"/logit_bias", "on"},
                                      {"/logit_bias/7", "fi"}};
const std::vector<Field> kLabels = {{"/user", "sn"},
                                    {"/metadata", "on"},
                                    {"/metadata/a", "sn"},
                                    {"/store", "bn"},
                                    {"/service_tier", "sn"},
                                    {"/safety_identifier", "sn"},
                                    {"/prompt_cache_key", "sn"},
                                    {"/prompt_cache_retention", "sn"}};

const char* const kCompletion = R"({"model": "m", "logit_bias": {"7": 1}, "prompt": ["p"], "stream": true})";
const std::vector<Field> kCompletionFields = {
    {"/model", "s"},    {"/prompt", "s"},          {"/prompt/0", "si"},
    {"/echo", "bn"},    {"/max_tokens", "in"},     {"/n", "in"},
    {"/best_of", "in"}, {"/logprobs", "in"},       {"/stop", "sln"},
    {"/stream", "bn"},  {"/stream_options", "on"}, {"/stream_options/include_usage", "bn"},
    {"/suffix", "lon"}, {"/response_format", "n"}};

const char* const kResponse = R"({"model": "m", "logit_bias": {"7": 1}, "input": [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "42"}],
    "tools": [{"type": "function", "name": "f", "parameters": {}}]})";
const std::vector<Field> kResponseFields = {{"/model", "s"},
                                            {"/input", "s"},
                                            {"/input/0", ""},
                                            {"/input/0/type", "n"},
                                            {"/input/0/role", ""},
                                            {"/input/0/content", "sl"},
                                            {"/input/0/content/0/type", ""},
                                            {"/input/0/content/0/text", "s"},
                                            {"/input/0/id", "sn"},
                                            {"/input/0/status", "sn"},
                                            {"/input/0/phase", "sn"},
                                            {"/input/1/content", "sln"},
                                            {"/input/1/encrypted_content", "sn"},
                                            {"/input/2/call_id", "sn"},
                                            {"/input/2/name", "s"},
                                            {"/input/2/arguments", "on"},
                                            {"/input/3/call_id", "sn"},
                                            {"/input/3/output", "sl"},
                                            {"/instructions", "sn"},
                                            {"/tools", "ln"},
                                            {"/tools/0", ""},
                                            {"/tools/0/type", ""},
                                            {"/tools/0/name", "s"},
                                            {"/tools/0/description", "sn"},
                                            {"/tools/0/parameters", "on"},
                                            {"/tools/0/strict", "bn"},
                                            {"/tool_choice", "n"},
                                            {"/parallel_tool_calls", "bn"},
                                            {"/max_tool_calls", "in"},
                                            {"/max_output_tokens", "in"},
                                            {"/stream", "bn"},
                                            {"/stream_options", "on"},
                                            {"/stream_options/include_obfuscation", "bn"},
                                            {"/include", "ln"},
                                            {"/reasoning", "on"},
                                            {"/reasoning/effort", "n"},
                                            {"/reasoning/summary", "lon"},
                                            {"/reasoning/generate_summary", "lon"},
                                            {"/text", "on"},
                                            {"/text/format", "n"},
                                            {"/text/verbosity", "sn"},
                                            {"/truncation", "n"},
                                            {"/previous_response_id", "lon"},
                                            {"/conversation", "lon"},
                                            {"/background", "lon"},
                                            {"/prompt", "lon"},
                                            {"/top_logprobs", "lon"}};

const char* const kMessage = R"({"model": "m", "logit_bias": {"7": 1}, "max_tokens": 8, "messages": [
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": ""},
      {"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "42"}]}],
    "tools": [{"name": "f", "input_schema": {}}]})";
const std::vector<Field> kMessageFields = {{"/model", "s"},
                                           {"/messages", ""},
                                           {"/messages/0", ""},
                                           {"/messages/0/role", ""},
                                           {"/messages/0/content", "sl"},
                                           {"/messages/0/content/0", ""},
                                           {"/messages/0/content/0/type", ""},
                                           {"/messages/0/content/0/text", "s"},
                                           {"/messages/0/content/0/cache_control", "on"},
                                           {"/messages/1/content/0/thinking", "sn"},
                                           {"/messages/1/content/0/signature", "sn"},
                                           {"/messages/1/content/1/id", "sn"},
                                           {"/messages/1/content/1/name", "s"},
                                           {"/messages/1/content/1/input", "on"},
                                           {"/messages/2/content/0/tool_use_id", "sn"},
                                           {"/messages/2/content/0/content", "sln"},
                                           {"/messages/2/content/0/is_error", "bn"},
                                           {"/system", "sln"},
                                           {"/tools", "ln"},
                                           {"/tools/0", ""},
                                           {"/tools/0/type", "n"},
                                           {"/tools/0/name", "s"},
                                           {"/tools/0/description", "sn"},
                                           {"/tools/0/input_schema", "o"},
                                           {"/tool_choice", "n"},
                                           {"/tool_choice/type", ""},
                                           {"/thinking", "n"},
                                           {"/thinking/type", ""},
                                           {"/stop_sequences", "ln"},
                                           {"/stream", "bn"},
                                           {"/mcp_servers", "lon"},
                                           {"/container", "lon"},
                                           {"/output_format", "lon"},
                                           {"/output_config", "on"},
                                           {"/output_config/effort", "n"},
                                           {"/output_config/format", "lon"},
                                           {"/metadata", "on"},
                                           {"/metadata/user_id", "sn"},
                                           {"/context_management", "on"},
                                           {"/cache_control", "on"},
                                           {"/service_tier", "sn"},
                                           {"/inference_geo", "sn"}};

/// The body with one field replaced, as text: a number keeps the form in which it is written here.
std::string body_with(const char* base, const Field& field, const char* value) {
  OrderedJson body = OrderedJson::parse(base);
  body[OrderedJson::json_pointer(field.pointer)] = "@value@";
  std::string text = body.dump();
  return text.replace(text.find("\"@value@\""), 9, value);
}

void check(const char* what, const char* base, const std::vector<std::vector<Field>>& groups,
           const std::function<server::Parsed<void>(const std::string&)>& parse) {
  ASSERT_TRUE(parse(base)) << what;
  for (const std::vector<Field>& group : groups) {
    for (const Field& field : group) {
      for (const Value& value : kValues) {
        SCOPED_TRACE(fmt::format("{} {} = {}", what, field.pointer, value.json));
        const bool taken = std::string_view(field.takes).find(value.kind) != std::string_view::npos;
        const auto parsed = parse(body_with(base, field, value.json));
        EXPECT_EQ(parsed.has_value(), taken) << (parsed ? "taken" : parsed.error().message);
        if (parsed) continue;
        EXPECT_EQ(parsed.error().status, 400);
        EXPECT_TRUE(parsed.error().param.starts_with(path_of(field.pointer))) << parsed.error().param;
        // A number out of range is not said to be of the wrong kind.
        if (value.kind == 'h' && std::string_view(field.takes).find('i') != std::string_view::npos) {
          EXPECT_NE(parsed.error().message.find("between"), std::string::npos) << parsed.error().message;
        }
      }
    }
  }
}

TEST(Fields, EveryKindOfValueInEveryField) {
  const auto parser = [](Api api) {
    return [api](const std::string& body) -> server::Parsed<void> {
      const auto parsed = server::parse_request(api, body, {});
      if (!parsed) return tl::unexpected(parsed.error());
      return {};
    };
  };
  const std::vector<Field> stop = {{"/stop", "sln"}};
  check("chat", kChat, {kChatFields, kSampling, kLabels, stop}, parser(Api::Chat));
  check("completions", kCompletion, {kCompletionFields, kSampling, kLabels}, parser(Api::Completions));
  check("responses", kResponse, {kResponseFields, kSampling, kLabels}, parser(Api::Responses));
  check("messages", kMessage, {kMessageFields, kSampling, {{"/max_tokens", "i"}}}, parser(Api::Messages));
}

/// Pointers to all objects of a value whose fields this program names.
void add_objects(const OrderedJson& value, const std::string& pointer, std::vector<std::string>& out) {
  for (const char* free : {"/logit_bias", "/parameters", "/input_schema", "/messages/1/content/1/input"}) {
    if (pointer.ends_with(free)) return;
  }
  if (value.is_object()) out.push_back(pointer);
  if (!value.is_structured()) return;
  for (const auto& [key, inner] : value.items()) add_objects(inner, pointer + "/" + key, out);
}

TEST(Fields, UnknownOnesAreErrorsInStrictModeInEveryObject) {
  const std::tuple<Api, const char*, const char*> cases[] = {
      {Api::Chat, kChat, R"({"stream_options": {"include_usage": true}, "response_format": {"type": "text"}})"},
      {Api::Completions, kCompletion, R"({"stream_options": {}})"},
      {Api::Responses, kResponse, R"({"reasoning": {}, "text": {"format": {"type": "text"}}, "stream_options": {}})"},
      {Api::Messages, kMessage,
       R"({"thinking": {"type": "adaptive"}, "metadata": {}, "output_config": {}, "tool_choice": {"type": "auto"},
           "cache_control": {}, "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}]})"},
      {Api::Chat, kChat,
       R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"ttl": "5m"}}]}],
           "tools": [{"type": "function", "function": {"name": "f"}, "cache_control": {}}]})"},
      {Api::Messages, kMessage,
       R"({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content":
           [{"type": "text", "text": "a", "cache_control": {}}]}]}]})"}};
  for (const auto& [api, base, more] : cases) {
    OrderedJson body = OrderedJson::parse(base);
    body.update(OrderedJson::parse(more));
    server::RequestLimits strict;
    strict.strict = true;
    const auto known = server::parse_request(api, body.dump(), strict);
    ASSERT_TRUE(known) << known.error().param << known.error().message;
    std::vector<std::string> objects;
    add_objects(body, "", objects);
    ASSERT_GE(objects.size(), 2U);
    for (const std::string& object : objects) {
      OrderedJson changed = body;
      changed[OrderedJson::json_pointer(object)]["frobnicate"] = 1;
      EXPECT_TRUE(server::parse_request(api, changed.dump(), {})) << object;
      const auto refused = server::parse_request(api, changed.dump(), strict);
      ASSERT_FALSE(refused) << object;
      EXPECT_EQ(refused.error().param, path_of(object + "/frobnicate"));
      EXPECT_EQ(refused.error().code, "unknown_field");
    }
  }
}

TEST(Fields, OfTheRoutesWithoutGeneration) {
  const TestServer server("x");
  const auto parser = [&](const char* path) {
    return [&server, path](const std::string& body) -> server::Parsed<void> {
      const Reply reply = ask(server.port(), "POST", path, body);
      if (reply.status == 200) return {};
      const OrderedJson error = reply.json()["error"];
      return tl::unexpected(
          server::ApiError{reply.status, "", error["param"].is_null() ? "" : error["param"], error["message"], 0});
    };
  };
  check("tokenize", R"({"content": "a"})",
        {{{"/content", "s"}, {"/with_pieces", "bn"}, {"/parse_special", "bn"}, {"/model", "sn"}}}, parser("/tokenize"));
  check("tokenize", R"({"prompt": "a", "content": "b"})", {{{"/prompt", "sn"}}}, parser("/tokenize"));
  check("detokenize", R"({"tokens": [5]})",
        {{{"/tokens", "l"}, {"/tokens/0", "i"}, {"/skip_special_tokens", "bn"}, {"/model", "sn"}}},
        parser("/detokenize"));
}

TEST(Fields, KindsBesideAnArrayAreNamed) {
  const auto message = [](Api api, const char* base, const Field& field, const char* value) {
    const auto parsed = server::parse_request(api, body_with(base, field, value), {});
    return parsed ? "taken" : parsed.error().param + " " + parsed.error().message;
  };
  EXPECT_EQ(message(Api::Chat, kChat, {"/stop", ""}, "5"), "stop must be a string or an array, not number");
  EXPECT_EQ(message(Api::Responses, kResponse, {"/input", ""}, "5"), "input must be a string or an array, not number");
  EXPECT_EQ(message(Api::Completions, kCompletion, {"/prompt", ""}, "{}"),
            "prompt must be a string or an array, not object");
  EXPECT_EQ(message(Api::Messages, kMessage, {"/messages/0/content", ""}, "5"),
            "messages[0].content must be a string or an array, not number");
  EXPECT_EQ(message(Api::Messages, kMessage, {"/stop_sequences", ""}, R"("x")"),
            "stop_sequences must be an array, not string");
}

/// The budget of thinking, with and without max_tokens.
TEST(Fields, BudgetsOfThinkingAreThoseOfTheApi) {
  const auto message = [](const char* thinking, const char* max_tokens, bool counting) {
    OrderedJson body = OrderedJson::parse(kMessage);
    body["thinking"] = OrderedJson::parse(thinking);
    body["max_tokens"] = OrderedJson::parse(max_tokens);
    const auto parsed = server::parse_message(body, {}, counting);
    return parsed ? "taken" : parsed.error().param + " " + parsed.error().message;
  };
  const char* const least = R"({"type": "enabled", "budget_tokens": 1024})";
  EXPECT_EQ(message(least, "1025", false), "taken");
  EXPECT_EQ(message(least, "null", true), "taken");
  EXPECT_EQ(message(least, "1024", false),
            "thinking.budget_tokens is 1024; it must be less than max_tokens, which is 1024");
  EXPECT_EQ(message(least, "5", true), "thinking.budget_tokens is 1024; it must be less than max_tokens, which is 5");
  EXPECT_EQ(message(R"({"type": "enabled"})", "4096", false), "thinking.budget_tokens is required");
  EXPECT_EQ(message(R"({"type": "enabled"})", "null", true), "thinking.budget_tokens is required");
  EXPECT_EQ(message(R"({"type": "enabled", "budget_tokens": 1023})", "4096", false),
            "thinking.budget_tokens is 1023; it must be a whole number between 1024 and 9223372036854775807");
  EXPECT_EQ(message(R"({"type": "enabled", "budget_tokens": "2000"})", "4096", false),
            "thinking.budget_tokens must be an integer, not string");
  EXPECT_EQ(message(R"({"type": "disabled", "budget_tokens": 1})", "4096", false).substr(0, 22),
            "thinking.budget_tokens");
  EXPECT_EQ(message(R"({"type": "adaptive"})", "8", false), "taken");
  EXPECT_EQ(message(R"({"type": "disabled"})", "8", false), "taken");
}

TEST(Fields, NumbersOutOfRangeAreSaidToBeThat) {
  const auto message = [](const char* field, const char* value) {
    OrderedJson body = OrderedJson::parse(kChat);
    std::string text = body.dump();
    text.insert(1, fmt::format("\"{}\":{},", field, value));
    const auto parsed = server::parse_request(Api::Chat, text, {});
    return parsed ? "taken" : parsed.error().param + " " + parsed.error().message;
  };
  EXPECT_EQ(message("seed", "18446744073709551616"),
            "seed is 1.8446744073709552e+19; it must be a whole number between -9223372036854775808 and "
            "18446744073709551615");
  EXPECT_EQ(message("seed", "18446744073709551615"), "taken");
  EXPECT_EQ(message("max_tokens", "1e30"),
            "max_tokens is 1e+30; it must be a whole number between 1 and 9223372036854775807");
  EXPECT_EQ(message("max_tokens", "1e3"), "taken");
  EXPECT_EQ(message("top_k", "1.5"), "top_k is 1.5; it must be a whole number between -1 and 2147483647");
  for (const char* key : {"05", "+5", "-0", " 5", "5.0", "2147483648", ""}) {
    OrderedJson body = OrderedJson::parse(kChat);
    body["logit_bias"] = OrderedJson::object({{key, 1}});
    const auto parsed = server::parse_request(Api::Chat, body.dump(), {});
    ASSERT_FALSE(parsed) << key;
    EXPECT_EQ(parsed.error().message, fmt::format("has the key '{}', which is no token id", key));
  }
  std::string many;
  for (int i = 0; i < 1025; ++i) many += fmt::format("{}\"{}\":1", i == 0 ? "" : ",", i);
  EXPECT_EQ(message("logit_bias", ("{" + many + "}").c_str()),
            "logit_bias the request's body: the JSON object 'logit_bias' has more than 1024 members");
  EXPECT_EQ(message("x", ("[0, [], {\"y\": [[{\"z\": 1}], {" + many + "}]}]").c_str()).substr(0, 10), "x[2].y[1] ")
      << "arrays count, what ended does not";
  EXPECT_EQ(message("x", ("[{}, " + std::string(100, '[') + std::string(100, ']') + "]").c_str()).substr(0, 1), " ")
      << "depth is no field's fault";
  EXPECT_NE(message("temperature", "1e999").find("1e999"), std::string::npos);
  std::string values = "[0";
  for (int i = 0; i < (1 << 20); ++i) values += ",0";
  EXPECT_EQ(message("x", (values + "]").c_str()), " the request's body: JSON with more than 1048576 values");
  EXPECT_NE(message("temperature", "NaN"), "taken");
}

}  // namespace
}  // namespace lockstep::test
