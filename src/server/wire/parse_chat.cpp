// POST /v1/chat/completions
#include <limits>

#include "server/wire/generation_request.hpp"
#include "server/wire/request_fields.hpp"
#include "text/chat_template.hpp"

namespace lockstep::server {
namespace {

class ChatParser {
 public:
  ChatParser(const OrderedJson& body, const RequestLimits& limits) : limits_(limits), reader_(body, "", problems_) {}

  Parsed<GenerationRequest> parse() {
    request_.api = Api::Chat;
    reader_.require("model");
    request_.model = reader_.string("model").value_or("");
    read_messages();
    read_tools();
    read_thinking();
    read_sampling(reader_, request_.sampling);
    read_openai_sampling(reader_, request_.sampling);
    read_stop(reader_, request_.stop);
    read_amounts();
    read_text_format(reader_, "response_format", limits_.strict);
    read_streaming();
    reader_.refuse("functions", "is not supported; use tools");
    reader_.refuse("function_call", "is not supported; use tool_choice");
    reader_.refuse("audio", "is not supported: this model writes text only");
    reader_.refuse("web_search_options", "is not supported");
    reader_.refuse("prediction", "is not supported");
    read_modalities();
    read_labels(reader_);
    reader_.string("verbosity");
    reader_.finish(limits_.strict);
    if (problems_.any()) return tl::unexpected(problems_.first());
    return std::move(request_);
  }

 private:
  void read_messages() {
    reader_.require("messages");
    const OrderedJson* messages = reader_.array("messages", limits_.messages);
    if (messages == nullptr) return;
    if (messages->empty()) reader_.complain("messages", "is empty");
    for (std::size_t i = 0; i < messages->size(); ++i) {
      request_.messages.push_back(message((*messages)[i], element_path("messages", i)));
    }
  }

  OrderedJson message(const OrderedJson& value, const std::string& path) {
    ObjectReader reader(value, path, problems_);
    reader.require("role");
    const std::string role = reader.word("role", {"system", "developer", "user", "assistant", "tool"}).value_or("");
    OrderedJson out = {{"role", role == "developer" ? "system" : role}};
    const OrderedJson* content = reader.find("content");
    if (role != "assistant") reader.require("content");
    out["content"] = content == nullptr
                         ? ""
                         : read_text(*content, reader.path("content"), limits_, {"text", "refusal"}, "", problems_);
    reader.string("name");
    if (role == "tool") {
      if (const auto id = reader.string("tool_call_id")) out["tool_call_id"] = *id;
    }
    if (role == "assistant") {
      auto reasoning = reader.string("reasoning_content");
      if (!reasoning) reasoning = reader.string("reasoning");
      if (reasoning) out["reasoning_content"] = *reasoning;
      read_calls(reader, out);
      reader.refuse("function_call", "is not supported; use tool_calls");
      reader.refuse("audio", kTextOnly);
      reader.string("refusal");
      reader.array("annotations", limits_.parts);
    }
    reader.finish(limits_.strict);
    return out;
  }

  void read_calls(ObjectReader& reader, OrderedJson& message) {
    const OrderedJson* calls = reader.array("tool_calls", limits_.tools);
    if (calls == nullptr) return;
    for (std::size_t i = 0; i < calls->size(); ++i) {
      ObjectReader call((*calls)[i], element_path(reader.path("tool_calls"), i), problems_);
      call.word("type", {"function"});
      call.require("function");
      const OrderedJson* function = call.object("function");
      if (function == nullptr) continue;
      ObjectReader fields(*function, call.path("function"), problems_);
      fields.require("name");
      append_call(message, call.string("id").value_or(""), fields.string("name").value_or(""),
                  read_arguments(fields.find("arguments"), fields.path("arguments"), problems_));
      fields.finish(limits_.strict);
      call.ignore({"index"});  // of a stream's deltas, which some clients repeat
      call.finish(limits_.strict);
    }
  }

  void read_tools() {
    const OrderedJson* tools = reader_.array("tools", limits_.tools);
    if (tools != nullptr && !tools->empty()) {
      request_.tools = OrderedJson::array();
      for (std::size_t i = 0; i < tools->size(); ++i) read_tool((*tools)[i], element_path("tools", i));
    }
    read_tool_choice(reader_, request_);
    request_.one_call = !reader_.boolean("parallel_tool_calls").value_or(true);
  }

  void read_tool(const OrderedJson& value, const std::string& path) {
    ObjectReader tool(value, path, problems_);
    tool.require("type");
    tool.word("type", {"function"});
    tool.require("function");
    const OrderedJson* function = tool.object("function");
    if (function == nullptr) return;
    ObjectReader fields(*function, tool.path("function"), problems_);
    request_.tools.push_back(make_tool(fields, "name", "parameters"));
    fields.boolean("strict");
    fields.finish(limits_.strict);
    read_cache_control(tool, limits_.strict);
    tool.finish(limits_.strict);
  }

  void read_thinking() {
    const auto effort = reader_.word("reasoning_effort", {"none", "minimal", "low", "medium", "high", "xhigh"});
    if (effort) set_effort(*effort, request_.variables);
    const OrderedJson* variables = reader_.object("chat_template_kwargs");
    if (variables == nullptr) return;
    for (const auto& [key, value] : variables->items()) {
      if (text::is_reserved_variable(key)) {
        reader_.complain("chat_template_kwargs." + key, "cannot be set: the name is the template's own");
      } else if (key == "enable_thinking" && value.is_null()) {
        continue;  // as if absent
      } else if (key == "enable_thinking" && !value.is_boolean()) {
        reader_.complain("chat_template_kwargs.enable_thinking", "must be true or false", "invalid_type");
      } else {
        request_.variables[key] = value;
      }
    }
  }

  void read_amounts() {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
    request_.max_tokens = reader_.integer("max_tokens", 1, kMost);
    if (const auto newer = reader_.integer("max_completion_tokens", 1, kMost)) request_.max_tokens = newer;
    request_.n = reader_.integer("n", 1, limits_.choices).value_or(1);
    request_.logprobs = reader_.boolean("logprobs").value_or(false);
    const auto top = reader_.integer("top_logprobs", 0, limits_.top_logprobs);
    if (top && !request_.logprobs) reader_.complain("top_logprobs", "needs logprobs to be true");
    request_.top_logprobs = top.value_or(0);
  }

  void read_streaming() {
    request_.stream = reader_.boolean("stream").value_or(false);
    const OrderedJson* options = reader_.object("stream_options");
    if (options == nullptr) return;
    if (!request_.stream) reader_.complain("stream_options", "needs stream to be true");
    ObjectReader fields(*options, "stream_options", problems_);
    request_.include_usage = fields.boolean("include_usage").value_or(false);
    fields.boolean("include_obfuscation");
    fields.finish(limits_.strict);
  }

  void read_modalities() {
    const OrderedJson* modalities = reader_.array("modalities", 8);
    if (modalities != nullptr && *modalities != OrderedJson::array({"text"})) {
      reader_.complain("modalities", "must be [\"text\"]", "unsupported_parameter");
    }
  }

  const RequestLimits& limits_;
  Problems problems_;
  ObjectReader reader_;
  GenerationRequest request_;
};

}  // namespace

Parsed<GenerationRequest> parse_chat(const OrderedJson& body, const RequestLimits& limits) {
  return ChatParser(body, limits).parse();
}

}  // namespace lockstep::server
