#include "server/wire/writer.hpp"

namespace lockstep::server {

std::string AnswerWriter::keep_alive(std::int64_t done, std::int64_t total) {
  // A line that begins with a colon is a comment of server-sent events.
  return total == 0 ? ": queued\n\n" : fmt::format(": prompt {}/{}\n\n", done, total);
}

std::unique_ptr<AnswerWriter> make_writer(const GenerationRequest& request, AnswerHead head) {
  switch (request.api) {
    case Api::Completions:
      return make_completion_writer(request, std::move(head));
    case Api::Responses:
      return make_response_writer(request, std::move(head));
    case Api::Messages:
      return make_message_writer(request, std::move(head));
    default:
      return make_chat_writer(request, std::move(head));
  }
}

std::string dump(const OrderedJson& json) {
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string sse(const OrderedJson& json, std::string_view name) {
  const std::string event = name.empty() ? "" : fmt::format("event: {}\n", name);
  return fmt::format("{}data: {}\n\n", event, dump(json));
}

OrderedJson openai_usage(const Usage& usage) {
  OrderedJson out;
  out["prompt_tokens"] = usage.prompt_tokens;
  out["completion_tokens"] = usage.completion_tokens;
  out["total_tokens"] = usage.prompt_tokens + usage.completion_tokens;
  out["prompt_tokens_details"] = {{"cached_tokens", usage.cached_tokens}};
  out["completion_tokens_details"] = {{"reasoning_tokens", usage.reasoning_tokens}};
  return out;
}

std::string_view openai_reason(Ending ending) {
  switch (ending) {
    case Ending::Length:
      return "length";
    case Ending::Calls:
      return "tool_calls";
    default:
      return "stop";
  }
}

}  // namespace lockstep::server
