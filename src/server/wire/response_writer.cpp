// The answers of POST /v1/responses. A whole body is made by the same code as the stream, with the events left out.
#include <optional>

#include "server/wire/writer.hpp"

namespace lockstep::server {
namespace {

class ResponseWriter final : public AnswerWriter {
 public:
  using AnswerWriter::AnswerWriter;

  OrderedJson body(std::span<const ChoiceResult> choices, const Usage& usage) override {
    streaming_ = false;
    for (const AnswerPart& part : choices[0].parts) {
      if (part.kind == AnswerPart::Kind::Call) {
        open_call(part.name);
        append(part.text);
        close(part.complete);
      } else {
        open_text(part.kind);
        append(part.text);
      }
    }
    close(choices[0].ending != Ending::Length);
    return whole(choices[0], usage);
  }

  std::string start(const Usage& /*usage*/) override {
    emit("response.created", {{"response", envelope("in_progress")}});
    emit("response.in_progress", {{"response", envelope("in_progress")}});
    return take();
  }

  std::string events(std::size_t /*choice*/, std::span<const AnswerEvent> events,
                     std::span<const TokenRecord> /*records*/) override {
    for (const AnswerEvent& event : events) {
      switch (event.kind) {
        case AnswerEvent::Kind::Reasoning:
          open_text(AnswerPart::Kind::Reasoning);
          append(event.text);
          break;
        case AnswerEvent::Kind::Content:
          open_text(AnswerPart::Kind::Content);
          append(event.text);
          break;
        case AnswerEvent::Kind::CallBegin:
          open_call(event.text);
          break;
        case AnswerEvent::Kind::CallArguments:
          append(event.text);
          break;
        case AnswerEvent::Kind::CallEnd:
          close(event.complete);
          break;
      }
    }
    return take();
  }

  std::string finish(const ChoiceResult& choice) override {
    close(choice.ending != Ending::Length);
    return take();
  }

  std::string end(std::span<const ChoiceResult> choices, const Usage& usage) override {
    const bool cut = choices[0].ending == Ending::Length;
    emit(cut ? "response.incomplete" : "response.completed", {{"response", whole(choices[0], usage)}});
    return take();
  }

  std::string error(const ApiError& error) override {
    OrderedJson response = envelope("failed");
    response["error"] = {{"code", "server_error"}, {"message", error.message}};
    response["output"] = output_;
    emit("response.failed", {{"response", std::move(response)}});
    return take();
  }

 private:
  struct Item {
    AnswerPart::Kind kind;
    OrderedJson json;  ///< as it stands in output
    std::string text;
  };

  void emit(std::string_view type, const OrderedJson& fields) {
    if (!streaming_) return;
    OrderedJson event = {{"type", type}, {"sequence_number", sequence_++}};
    event.update(fields);
    out_ += sse(event, type);
  }
  std::string take() { return std::exchange(out_, {}); }

  [[nodiscard]] std::string item_id(std::string_view prefix) const {
    return fmt::format("{}_{}_{}", prefix, head_.id, output_.size());
  }

  void open_text(AnswerPart::Kind kind) {
    if (item_ && item_->kind == kind) return;
    close(true);
    const bool reasoning = kind == AnswerPart::Kind::Reasoning;
    OrderedJson json = {{"id", item_id(reasoning ? "rs" : "msg")}, {"type", reasoning ? "reasoning" : "message"}};
    if (reasoning) {
      json["summary"] = OrderedJson::array();
    } else {
      json["role"] = "assistant";
    }
    json["status"] = "in_progress";
    json["content"] = OrderedJson::array();
    item_ = Item{kind, std::move(json), {}};
    added();
    emit_at("response.content_part.added", {{"part", part("")}}, true);
  }

  void open_call(const std::string& name) {
    close(true);
    OrderedJson json = {{"id", item_id("fc")}, {"type", "function_call"}, {"status", "in_progress"}};
    json["call_id"] = fmt::format("call_{}_{}", head_.id, output_.size());
    json["name"] = name;
    json["arguments"] = "";
    item_ = Item{AnswerPart::Kind::Call, std::move(json), {}};
    added();
  }

  void added() { emit("response.output_item.added", {{"output_index", output_.size()}, {"item", item_->json}}); }

  void append(const std::string& text) {
    if (!item_ || text.empty()) return;
    item_->text += text;
    OrderedJson fields = {{"delta", text}};
    if (item_->kind == AnswerPart::Kind::Content) fields["logprobs"] = OrderedJson::array();
    emit_at(delta_type(), fields, item_->kind != AnswerPart::Kind::Call);
  }

  [[nodiscard]] std::string_view delta_type() const {
    switch (item_->kind) {
      case AnswerPart::Kind::Reasoning:
        return "response.reasoning_text.delta";
      case AnswerPart::Kind::Call:
        return "response.function_call_arguments.delta";
      default:
        return "response.output_text.delta";
    }
  }

  /// Ends the open item, if there is one.
  void close(bool complete) {
    if (!item_) return;
    if (item_->kind == AnswerPart::Kind::Call) {
      emit_at("response.function_call_arguments.done", {{"name", item_->json["name"]}, {"arguments", item_->text}},
              false);
      item_->json["arguments"] = item_->text;
    } else {
      const bool reasoning = item_->kind == AnswerPart::Kind::Reasoning;
      OrderedJson fields = {{"text", item_->text}};
      if (!reasoning) fields["logprobs"] = OrderedJson::array();
      emit_at(reasoning ? "response.reasoning_text.done" : "response.output_text.done", fields, true);
      emit_at("response.content_part.done", {{"part", part(item_->text)}}, true);
      item_->json["content"] = OrderedJson::array({part(item_->text)});
    }
    item_->json["status"] = complete ? "completed" : "incomplete";
    emit("response.output_item.done", {{"output_index", output_.size()}, {"item", item_->json}});
    output_.push_back(std::move(item_->json));
    item_.reset();
  }

  [[nodiscard]] OrderedJson part(const std::string& text) const {
    if (item_->kind == AnswerPart::Kind::Reasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", OrderedJson::array()},
            {"logprobs", OrderedJson::array()}};
  }

  void emit_at(std::string_view type, const OrderedJson& fields, bool in_part) {
    OrderedJson all = {{"item_id", item_->json["id"]}, {"output_index", output_.size()}};
    if (in_part) all["content_index"] = 0;
    all.update(fields);
    emit(type, all);
  }

  [[nodiscard]] OrderedJson envelope(std::string_view status) const {
    OrderedJson out = {{"id", "resp_" + head_.id}, {"object", "response"}, {"created_at", head_.created}};
    out["status"] = status;
    out["background"] = false;
    out["error"] = nullptr;
    out["incomplete_details"] = nullptr;
    out["instructions"] = nullptr;
    out["max_output_tokens"] = nullptr;
    out["model"] = head_.model;
    out["output"] = OrderedJson::array();
    out["parallel_tool_calls"] = true;
    out["previous_response_id"] = nullptr;
    out["reasoning"] = {{"effort", nullptr}, {"summary", nullptr}};
    out["store"] = false;
    out["temperature"] = nullptr;
    out["text"] = {{"format", {{"type", "text"}}}};
    out["tool_choice"] = "auto";
    out["tools"] = OrderedJson::array();
    out["top_p"] = nullptr;
    out["truncation"] = "disabled";
    out["usage"] = nullptr;
    out["metadata"] = OrderedJson::object();
    out.update(request_.repeated);
    return out;
  }

  [[nodiscard]] OrderedJson whole(const ChoiceResult& choice, const Usage& usage) const {
    const bool cut = choice.ending == Ending::Length;
    OrderedJson out = envelope(cut ? "incomplete" : "completed");
    if (cut) out["incomplete_details"] = {{"reason", "max_output_tokens"}};
    out["output"] = output_;
    OrderedJson tokens = {{"input_tokens", usage.prompt_tokens}};
    tokens["input_tokens_details"] = {{"cached_tokens", usage.cached_tokens}};
    tokens["output_tokens"] = usage.completion_tokens;
    tokens["output_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
    tokens["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
    out["usage"] = std::move(tokens);
    out["lockstep"] = extension(head_, std::span(&choice, 1));
    return out;
  }

  bool streaming_ = true;
  std::int64_t sequence_ = 0;
  std::string out_;
  OrderedJson output_ = OrderedJson::array();
  std::optional<Item> item_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_response_writer(const GenerationRequest& request, AnswerHead head) {
  return std::make_unique<ResponseWriter>(request, std::move(head));
}

}  // namespace lockstep::server
