// E6: whatever the tokens cut, and however events are batched, a stream's deltas joined are the whole answer.
#include <gtest/gtest.h>

#include <random>

#include "server/client.hpp"
#include "server/wire/assembler.hpp"
#include "server/wire/writer.hpp"

namespace lockstep::server {
namespace {

using test::sse_events;

const std::string kTranscript =
    "The user wants é\xF0\x9F\x98\x80. Mention of <tool_call> here.\n</think>\n\nLet me look — 日本.\n\n"
    "<tool_call>\n<function=search>\n<parameter=query>\nbank </parameter> \"é\"\n\n</parameter>\n"
    "<parameter=limit>\n12\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=none>\n</function>\n</tool_call>";

text::ToolSchemas schemas() {
  return text::ToolSchemas::from_json(OrderedJson::parse(R"([{"type": "function", "function": {"name": "search",
      "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}}}}])"));
}

AnswerAssembler assembler(const std::vector<std::string>& stops = {}, bool one_call = false) {
  return AnswerAssembler({true, true, true, one_call, schemas()}, *text::StopMatcher::create(stops));
}

/// Events of a text that is pushed in these pieces.
std::vector<AnswerEvent> run(AnswerAssembler machine, const std::vector<std::string>& pieces) {
  std::vector<AnswerEvent> events;
  for (const std::string& piece : pieces) {
    machine.push(piece, events);
    if (machine.ended()) break;
  }
  machine.finish(events);
  return events;
}

std::vector<AnswerPart> parts_of(const std::vector<AnswerEvent>& events) {
  std::vector<AnswerPart> parts;
  append_events(events, parts);
  return parts;
}

TEST(Assembler, TakesAnAnswerApart) {
  const auto parts = parts_of(run(assembler(), {kTranscript}));
  ASSERT_EQ(parts.size(), 4U);
  EXPECT_EQ(parts[0].text, "The user wants é\xF0\x9F\x98\x80. Mention of <tool_call> here.");
  EXPECT_EQ(parts[1].text, "Let me look — 日本.");
  EXPECT_EQ(parts[2].name, "search");
  EXPECT_EQ(parts[2].text, R"({"query":"bank </parameter> \"é\"\n","limit":12})");
  EXPECT_TRUE(parts[2].complete);
  EXPECT_EQ(parts[3].name, "none");
}

TEST(Assembler, EveryCutGivesTheSame) {
  for (const bool one_call : {false, true}) {
    for (const std::vector<std::string>& stops :
         {std::vector<std::string>{}, {"日本"}, {"query>\nbank"}, {"zzz", "</function>"}}) {
      const auto expected = parts_of(run(assembler(stops, one_call), {kTranscript}));
      for (std::size_t cut = 0; cut <= kTranscript.size(); ++cut) {
        SCOPED_TRACE(cut);
        EXPECT_EQ(parts_of(run(assembler(stops, one_call), {kTranscript.substr(0, cut), kTranscript.substr(cut)})),
                  expected);
      }
      std::vector<std::string> bytes;
      for (const char c : kTranscript) bytes.emplace_back(1, c);
      EXPECT_EQ(parts_of(run(assembler(stops, one_call), bytes)), expected);
    }
  }
}

TEST(Assembler, StopStringsAreLookedForInTheContentOnly) {
  const auto parts = parts_of(run(assembler({"look"}), {kTranscript}));
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[1].text, "Let me ");
  EXPECT_EQ(parts_of(run(assembler({"Mention"}), {kTranscript})).size(), 4U);
}

TEST(Assembler, OneCallEndsTheAnswer) {
  AnswerAssembler machine = assembler({}, true);
  std::vector<AnswerEvent> events;
  machine.push(kTranscript, events);
  EXPECT_TRUE(machine.ended());
  machine.finish(events);
  EXPECT_EQ(parts_of(events).size(), 3U);
}

TEST(Assembler, ACutCallIsIncomplete) {
  const auto parts = parts_of(run(assembler(), {kTranscript.substr(0, kTranscript.find("bank") + 4)}));
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_FALSE(parts[2].complete);
  EXPECT_EQ(parts[2].text, R"({"query":"bank)");
}

// ---- streams against whole bodies ----

ChoiceResult choice_of(const std::vector<AnswerEvent>& events, Ending ending) {
  ChoiceResult choice;
  choice.parts = parts_of(events);
  choice.ending = ending;
  choice.summary.tokens = 5;
  return choice;
}

/// A random grouping of events into calls of events().
std::string stream(AnswerWriter& writer, const std::vector<AnswerEvent>& events, const ChoiceResult& choice,
                   const Usage& usage, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string out = writer.start(usage);
  for (std::size_t at = 0; at < events.size();) {
    const std::size_t n = std::min<std::size_t>(1 + random() % 4, events.size() - at);
    out += writer.events(0, std::span(events).subspan(at, n), {});
    at += n;
  }
  out += writer.finish(choice);
  return out + writer.end(std::span(&choice, 1), usage);
}

OrderedJson join_chat(const std::string& text) {
  OrderedJson message = {
      {"role", ""}, {"content", ""}, {"reasoning_content", ""}, {"tool_calls", OrderedJson::array()}};
  for (const auto& event : sse_events(text)) {
    if (event.data == "[DONE]") continue;
    const OrderedJson chunk = OrderedJson::parse(event.data);
    for (const OrderedJson& choice : chunk["choices"]) {
      const OrderedJson& delta = choice["delta"];
      if (delta.contains("role")) message["role"] = delta["role"];
      for (const char* key : {"content", "reasoning_content"}) {
        if (delta.contains(key)) message[key] = message[key].get<std::string>() + delta[key].get<std::string>();
      }
      if (!choice["finish_reason"].is_null()) message["finish_reason"] = choice["finish_reason"];
      if (!delta.contains("tool_calls")) continue;
      const OrderedJson& call = delta["tool_calls"][0];
      const auto index = call["index"].get<std::size_t>();
      if (call.contains("id")) {
        EXPECT_EQ(index, message["tool_calls"].size());
        message["tool_calls"].push_back({{"id", call["id"]},
                                         {"type", call["type"]},
                                         {"function", {{"name", call["function"]["name"]}, {"arguments", ""}}}});
      }
      OrderedJson& function = message["tool_calls"][index]["function"];
      function["arguments"] =
          function["arguments"].get<std::string>() + call["function"]["arguments"].get<std::string>();
    }
  }
  return message;
}

AnswerHead head() {
  AnswerHead head;
  head.id = "0123";
  head.model = "demo";
  return head;
}

class Streams : public testing::Test {
 protected:
  void check(Api api, const std::function<void(const std::string&, const OrderedJson&)>& compare) {
    GenerationRequest request;
    request.api = api;
    request.stream = true;
    request.include_usage = true;
    for (std::size_t cut = 0; cut <= kTranscript.size(); cut += 1) {
      SCOPED_TRACE(cut);
      const auto events = run(assembler(), {kTranscript.substr(0, cut), kTranscript.substr(cut)});
      const ChoiceResult choice = choice_of(events, Ending::Calls);
      const Usage usage{10, 4, 5, 2};
      const std::string text = stream(*make_writer(request, head()), events, choice, usage, cut);
      compare(text, make_writer(request, head())->body(std::span(&choice, 1), usage));
      if (HasFailure()) return;
    }
  }
};

TEST_F(Streams, Chat) {
  check(Api::Chat, [](const std::string& text, const OrderedJson& body) {
    const OrderedJson joined = join_chat(text);
    const OrderedJson& message = body["choices"][0]["message"];
    EXPECT_EQ(joined["role"], "assistant");
    EXPECT_EQ(joined["content"], message["content"]);
    EXPECT_EQ(joined["reasoning_content"], message["reasoning_content"]);
    EXPECT_EQ(joined["tool_calls"], message["tool_calls"]);
    EXPECT_EQ(joined["finish_reason"], body["choices"][0]["finish_reason"]);
    EXPECT_TRUE(text.ends_with("data: [DONE]\n\n"));
    const auto events = sse_events(text);
    EXPECT_EQ(OrderedJson::parse(events[events.size() - 2].data)["usage"], body["usage"]);
  });
}

TEST_F(Streams, Responses) {
  check(Api::Responses, [](const std::string& text, const OrderedJson& body) {
    OrderedJson output = OrderedJson::array();
    std::int64_t number = 0;
    std::map<std::string, std::string> joined;
    for (const auto& event : sse_events(text)) {
      const OrderedJson json = OrderedJson::parse(event.data);
      EXPECT_EQ(json["type"], event.name);
      EXPECT_EQ(json["sequence_number"], number++);
      if (event.name.ends_with(".delta")) joined[json["item_id"]] += json["delta"].get<std::string>();
      if (event.name == "response.output_item.done") output.push_back(json["item"]);
      if (event.name == "response.completed") {
        EXPECT_EQ(json["response"], body);
      }
    }
    EXPECT_EQ(output, body["output"]);
    for (const OrderedJson& item : output) {
      const std::string whole = item["type"] == "function_call" ? item["arguments"] : item["content"][0]["text"];
      EXPECT_EQ(joined[item["id"]], whole);
    }
  });
}

TEST_F(Streams, Messages) {
  check(Api::Messages, [](const std::string& text, const OrderedJson& body) {
    OrderedJson content = OrderedJson::array();
    std::string input;
    OrderedJson last;
    for (const auto& event : sse_events(text)) {
      const OrderedJson json = OrderedJson::parse(event.data);
      EXPECT_EQ(json["type"], event.name);
      if (event.name == "content_block_start") {
        EXPECT_EQ(json["index"], content.size());
        content.push_back(json["content_block"]);
        input.clear();
      } else if (event.name == "content_block_delta") {
        const OrderedJson& delta = json["delta"];
        const std::string key = delta["type"] == "thinking_delta" ? "thinking" : "text";
        if (delta["type"] == "input_json_delta") {
          input += delta["partial_json"].get<std::string>();
        } else {
          content.back()[key] = content.back()[key].get<std::string>() + delta[key].get<std::string>();
        }
      } else if (event.name == "content_block_stop" && content.back()["type"] == "tool_use") {
        content.back()["input"] = OrderedJson::parse(input);
      } else if (event.name == "message_delta") {
        last = json;
      }
    }
    EXPECT_EQ(content, body["content"]);
    EXPECT_EQ(last["delta"]["stop_reason"], body["stop_reason"]);
    EXPECT_EQ(last["usage"], body["usage"]);
  });
}

TEST(Writer, CompletionWithLogprobs) {
  GenerationRequest request;
  request.api = Api::Completions;
  request.logprobs = true;
  request.stream = true;
  const std::vector<TokenRecord> records = {{{"a", -0.5}, true, {{"a", -0.5}, {"b", -1}}}, {{"é", -2}, true, {}}};
  const std::vector<AnswerEvent> events = {{AnswerEvent::Kind::Content, 0, "aé", false}};
  ChoiceResult choice = choice_of(events, Ending::Length);
  choice.records = records;
  const auto writer = make_writer(request, head());
  const std::string text = writer->start({}) + writer->events(0, events, records) + writer->finish(choice);
  const OrderedJson chunk = OrderedJson::parse(sse_events(text)[0].data);
  const OrderedJson body = make_writer(request, head())->body(std::span(&choice, 1), {});
  EXPECT_EQ(chunk["choices"][0]["logprobs"], body["choices"][0]["logprobs"]);
  EXPECT_EQ(body["choices"][0]["logprobs"].dump(),
            R"({"tokens":["a","é"],"token_logprobs":[-0.5,-2.0],"top_logprobs":[{"a":-0.5,"b":-1.0},{}],)"
            R"("text_offset":[0,1]})");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
}

TEST(Writer, ErrorsInStreams) {
  GenerationRequest request;
  const ApiError error{500, "internal_error", "", "the model failed", 0};
  const std::string chat = make_chat_writer(request, head())->error(error);
  EXPECT_EQ(OrderedJson::parse(sse_events(chat)[0].data)["error"]["type"], "server_error");
  EXPECT_TRUE(chat.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(sse_events(make_message_writer(request, head())->error(error))[0].name, "error");
  const auto failed = sse_events(make_response_writer(request, head())->error(error));
  EXPECT_EQ(failed[0].name, "response.failed");
}

}  // namespace
}  // namespace lockstep::server
