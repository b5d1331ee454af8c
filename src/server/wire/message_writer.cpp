// The answers of POST /v1/messages (Anthropic).
#include <optional>

#include "server/wire/writer.hpp"

namespace lockstep::server {
namespace {

class MessageWriter final : public AnswerWriter {
 public:
  using AnswerWriter::AnswerWriter;

  OrderedJson body(std::span<const ChoiceResult> choices, const Usage& usage) override {
    const ChoiceResult& choice = choices[0];
    OrderedJson out = envelope();
    for (const AnswerPart& part : choice.parts) out["content"].push_back(block(part));
    out["stop_reason"] = reason(choice.ending);
    out["stop_sequence"] = stop_sequence(choice);
    out["usage"] = usage_json(usage);
    out["lockstep"] = extension(head_, choices);
    return out;
  }

  std::string start(const Usage& usage) override {
    OrderedJson message = envelope();
    message["usage"] = usage_json(usage);
    return sse({{"type", "message_start"}, {"message", std::move(message)}}, "message_start");
  }

  std::string events(std::size_t /*choice*/, std::span<const AnswerEvent> events,
                     std::span<const TokenRecord> /*records*/) override {
    std::string out;
    for (const AnswerEvent& event : events) {
      switch (event.kind) {
        case AnswerEvent::Kind::Reasoning:
          out += open(AnswerPart::Kind::Reasoning);
          out += delta({{"type", "thinking_delta"}, {"thinking", event.text}});
          break;
        case AnswerEvent::Kind::Content:
          out += open(AnswerPart::Kind::Content);
          out += delta({{"type", "text_delta"}, {"text", event.text}});
          break;
        case AnswerEvent::Kind::CallBegin:
          out += close();
          out += begin({AnswerPart::Kind::Call, {}, event.text, event.call, false});
          break;
        case AnswerEvent::Kind::CallArguments:
          out += delta({{"type", "input_json_delta"}, {"partial_json", event.text}});
          break;
        case AnswerEvent::Kind::CallEnd:
          out += close();
          break;
      }
    }
    return out;
  }

  std::string finish(const ChoiceResult& /*choice*/) override { return close(); }

  std::string end(std::span<const ChoiceResult> choices, const Usage& usage) override {
    const ChoiceResult& choice = choices[0];
    OrderedJson last = {{"type", "message_delta"}};
    last["delta"] = {{"stop_reason", reason(choice.ending)}, {"stop_sequence", stop_sequence(choice)}};
    last["usage"] = usage_json(usage);
    last["lockstep"] = extension(head_, choices);
    return sse(last, "message_delta") + sse({{"type", "message_stop"}}, "message_stop");
  }

  std::string error(const ApiError& error) override { return sse(error_body(error, ErrorShape::Anthropic), "error"); }

  [[nodiscard]] std::string keep_alive(std::int64_t /*done*/, std::int64_t /*total*/) override {
    return sse({{"type", "ping"}}, "ping");
  }

 private:
  [[nodiscard]] OrderedJson envelope() const {
    return {
        {"id", "msg_" + head_.id},         {"type", "message"},      {"role", "assistant"},     {"model", head_.model},
        {"content", OrderedJson::array()}, {"stop_reason", nullptr}, {"stop_sequence", nullptr}};
  }

  /// Anthropic counts what came from a cache apart from the rest of the input.
  static OrderedJson usage_json(const Usage& usage) {
    return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage.cached_tokens},
            {"output_tokens", usage.completion_tokens}};
  }

  static std::string_view reason(Ending ending) {
    switch (ending) {
      case Ending::Length:
        return "max_tokens";
      case Ending::StopString:
        return "stop_sequence";
      case Ending::Calls:
        return "tool_use";
      default:
        return "end_turn";
    }
  }

  static OrderedJson stop_sequence(const ChoiceResult& choice) {
    return choice.ending == Ending::StopString ? OrderedJson(choice.stop_string) : OrderedJson();
  }

  [[nodiscard]] OrderedJson block(const AnswerPart& part) const {
    switch (part.kind) {
      case AnswerPart::Kind::Reasoning:
        return {{"type", "thinking"}, {"thinking", part.text}, {"signature", ""}};
      case AnswerPart::Kind::Content:
        return {{"type", "text"}, {"text", part.text}, {"citations", nullptr}};
      default:
        break;
    }
    OrderedJson out = {{"type", "tool_use"}, {"id", fmt::format("toolu_{}_{}", head_.id, part.call)}};
    out["name"] = part.name;
    // A call that was cut has no arguments that anybody should use.
    const Result<OrderedJson> input = parse_ordered_json(part.complete ? part.text : "{}", "arguments");
    out["input"] = input && input->is_object() ? *input : OrderedJson::object();
    return out;
  }

  std::string open(AnswerPart::Kind kind) {
    if (open_ == kind) return {};
    std::string out = close();
    return out + begin({kind, {}, {}, 0, false});
  }

  std::string begin(const AnswerPart& part) {
    open_ = part.kind;
    OrderedJson event = {{"type", "content_block_start"}, {"index", index_}, {"content_block", block(part)}};
    return sse(event, "content_block_start");
  }

  std::string delta(OrderedJson json) const {
    return sse({{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(json)}}, "content_block_delta");
  }

  std::string close() {
    if (!open_) return {};
    open_.reset();
    return sse({{"type", "content_block_stop"}, {"index", index_++}}, "content_block_stop");
  }

  std::size_t index_ = 0;
  std::optional<AnswerPart::Kind> open_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_message_writer(const GenerationRequest& request, AnswerHead head) {
  return std::make_unique<MessageWriter>(request, std::move(head));
}

}  // namespace lockstep::server
