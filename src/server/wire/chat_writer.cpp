// The answers of POST /v1/chat/completions.
#include <map>

#include "server/wire/writer.hpp"
#include "text/utf8.hpp"

namespace lockstep::server {
namespace {

OrderedJson token_json(const TokenText& token) {
  OrderedJson bytes = OrderedJson::array();
  for (const char c : token.bytes) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", text::replace_invalid_utf8(token.bytes)}, {"logprob", token.logprob}, {"bytes", std::move(bytes)}};
}

OrderedJson logprobs_json(std::span<const TokenRecord> records) {
  OrderedJson content = OrderedJson::array();
  for (const TokenRecord& record : records) {
    OrderedJson entry = token_json(record.chosen);
    entry["top_logprobs"] = OrderedJson::array();
    for (const TokenText& other : record.top) entry["top_logprobs"].push_back(token_json(other));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

class ChatWriter final : public AnswerWriter {
 public:
  using AnswerWriter::AnswerWriter;

  OrderedJson body(std::span<const ChoiceResult> choices, const Usage& usage) override {
    OrderedJson out = envelope("chat.completion");
    out["choices"] = OrderedJson::array();
    for (const ChoiceResult& choice : choices) out["choices"].push_back(whole(choice));
    out["usage"] = openai_usage(usage);
    out["lockstep"] = extension(head_, choices);
    return out;
  }

  std::string start(const Usage& /*usage*/) override {
    std::string out;
    for (std::int64_t i = 0; i < request_.n; ++i) {
      out += chunk(static_cast<std::size_t>(i), {{"role", "assistant"}, {"content", ""}});
    }
    return out;
  }

  std::string events(std::size_t choice, std::span<const AnswerEvent> events,
                     std::span<const TokenRecord> records) override {
    std::vector<TokenRecord>& waiting = waiting_[choice];
    waiting.insert(waiting.end(), records.begin(), records.end());
    std::string out;
    for (std::size_t i = 0; i < events.size();) {
      // Neighbours of one kind share a chunk.
      AnswerEvent event = events[i++];
      while (i < events.size() && joins(event.kind) && events[i].kind == event.kind) event.text += events[i++].text;
      if (event.kind != AnswerEvent::Kind::CallEnd) out += chunk(choice, delta(event));
    }
    return out;
  }

  std::string finish(const ChoiceResult& choice) override {
    OrderedJson out = envelope("chat.completion.chunk");
    OrderedJson entry = {{"index", choice.index}, {"delta", OrderedJson::object()}};
    entry["logprobs"] = take_logprobs(choice.index);
    entry["finish_reason"] = openai_reason(choice.ending);
    out["choices"] = OrderedJson::array({std::move(entry)});
    if (request_.include_usage) out["usage"] = nullptr;
    out["lockstep"] = extension(head_, std::span(&choice, 1));
    return sse(out);
  }

  std::string end(std::span<const ChoiceResult> /*choices*/, const Usage& usage) override {
    std::string out;
    if (request_.include_usage) {
      OrderedJson last = envelope("chat.completion.chunk");
      last["choices"] = OrderedJson::array();
      last["usage"] = openai_usage(usage);
      out = sse(last);
    }
    return out + "data: [DONE]\n\n";
  }

  std::string error(const ApiError& error) override {
    return sse(error_body(error, ErrorShape::OpenAi)) + "data: [DONE]\n\n";
  }

 private:
  static bool joins(AnswerEvent::Kind kind) {
    return kind == AnswerEvent::Kind::Reasoning || kind == AnswerEvent::Kind::Content ||
           kind == AnswerEvent::Kind::CallArguments;
  }

  [[nodiscard]] std::string call_id(std::size_t choice, std::size_t call) const {
    return fmt::format("call_{}_{}_{}", head_.id, choice, call);
  }

  [[nodiscard]] OrderedJson envelope(std::string_view object) const {
    return {{"id", "chatcmpl-" + head_.id},
            {"object", object},
            {"created", head_.created},
            {"model", head_.model},
            {"system_fingerprint", head_.fingerprint}};
  }

  OrderedJson take_logprobs(std::size_t choice) {
    if (!request_.logprobs) return nullptr;
    return logprobs_json(std::exchange(waiting_[choice], {}));
  }

  std::string chunk(std::size_t choice, OrderedJson delta) {
    OrderedJson out = envelope("chat.completion.chunk");
    if (delta.contains("tool_calls") && delta["tool_calls"][0].contains("id")) {
      OrderedJson& call = delta["tool_calls"][0];
      call["id"] = call_id(choice, call["index"].get<std::size_t>());
    }
    OrderedJson entry = {{"index", choice}, {"delta", std::move(delta)}};
    entry["logprobs"] = waiting_[choice].empty() ? OrderedJson() : take_logprobs(choice);
    entry["finish_reason"] = nullptr;
    out["choices"] = OrderedJson::array({std::move(entry)});
    if (request_.include_usage) out["usage"] = nullptr;
    return sse(out);
  }

  static OrderedJson delta(const AnswerEvent& event) {
    if (event.kind == AnswerEvent::Kind::Reasoning) return {{"reasoning_content", event.text}};
    if (event.kind == AnswerEvent::Kind::Content) return {{"content", event.text}};
    OrderedJson call = {{"index", event.call}};
    if (event.kind == AnswerEvent::Kind::CallBegin) {
      call["id"] = nullptr;  // chunk() knows the choice
      call["type"] = "function";
      call["function"] = {{"name", event.text}, {"arguments", ""}};
    } else {
      call["function"] = {{"arguments", event.text}};
    }
    return {{"tool_calls", OrderedJson::array({std::move(call)})}};
  }

  [[nodiscard]] OrderedJson whole(const ChoiceResult& choice) const {
    OrderedJson message = {{"role", "assistant"}};
    const std::string content = choice.text_of(AnswerPart::Kind::Content);
    const std::string reasoning = choice.text_of(AnswerPart::Kind::Reasoning);
    OrderedJson calls = OrderedJson::array();
    for (const AnswerPart& part : choice.parts) {
      if (part.kind != AnswerPart::Kind::Call) continue;
      OrderedJson call = {{"id", call_id(choice.index, part.call)}, {"type", "function"}};
      call["function"] = {{"name", part.name}, {"arguments", part.text}};
      calls.push_back(std::move(call));
    }
    message["content"] = content.empty() && !calls.empty() ? OrderedJson() : OrderedJson(content);
    message["refusal"] = nullptr;
    if (!reasoning.empty()) message["reasoning_content"] = reasoning;
    if (!calls.empty()) message["tool_calls"] = std::move(calls);
    OrderedJson out = {{"index", choice.index}, {"message", std::move(message)}};
    out["logprobs"] = request_.logprobs ? logprobs_json(choice.records) : OrderedJson();
    out["finish_reason"] = openai_reason(choice.ending);
    return out;
  }

  std::map<std::size_t, std::vector<TokenRecord>> waiting_;  ///< log-probabilities without a chunk so far
};

}  // namespace

std::unique_ptr<AnswerWriter> make_chat_writer(const GenerationRequest& request, AnswerHead head) {
  return std::make_unique<ChatWriter>(request, std::move(head));
}

}  // namespace lockstep::server
