// POST /v1/responses: text, function tools, no stored state.
#include <limits>

#include "server/wire/generation_request.hpp"
#include "server/wire/request_fields.hpp"

namespace lockstep::server {
namespace {

constexpr std::string_view kNothingStored = "is not supported: responses are not stored; send the whole conversation";
constexpr std::string_view kNoLogprobs = "is not supported here; use /v1/chat/completions";
constexpr std::string_view kNoSummary = "is not supported: the reasoning itself is in the response";

std::string why_not_included(const std::string& what) {
  if (what == "message.output_text.logprobs") return std::string(kNoLogprobs);
  if (what == "reasoning.encrypted_content") {
    return "is not supported: reasoning items have their text in 'content' and can be sent back as they are";
  }
  return fmt::format("'{}' is not supported", what.substr(0, 64));
}

class ResponseParser {
 public:
  ResponseParser(const OrderedJson& body, const RequestLimits& limits)
      : limits_(limits), body_(body), reader_(body, "", problems_) {}

  Parsed<GenerationRequest> parse() {
    request_.api = Api::Responses;
    reader_.require("model");
    request_.model = reader_.string("model").value_or("");
    if (const auto instructions = reader_.string("instructions")) {
      request_.messages.push_back({{"role", "system"}, {"content", *instructions}});
    }
    read_input();
    read_tools();
    read_reasoning();
    read_sampling(reader_, request_.sampling);
    read_openai_sampling(reader_, request_.sampling);
    request_.max_tokens = reader_.integer("max_output_tokens", 1, std::numeric_limits<std::int64_t>::max());
    request_.stream = reader_.boolean("stream").value_or(false);
    read_text();
    refuse_state();
    read_labels(reader_);
    read_include();
    if (const OrderedJson* options = reader_.object("stream_options")) {
      ObjectReader fields(*options, "stream_options", problems_);
      fields.boolean("include_obfuscation");
      fields.finish(limits_.strict);
    }
    reader_.word("truncation", {"disabled"});
    reader_.finish(limits_.strict);
    if (problems_.any()) return tl::unexpected(problems_.first());
    repeat_fields();
    return std::move(request_);
  }

 private:
  void read_input() {
    reader_.require("input");
    const OrderedJson* input = reader_.find("input");
    if (input == nullptr) return;
    if (input->is_string()) {
      request_.messages.push_back({{"role", "user"}, {"content", *input}});
      return;
    }
    if (reader_.array("input", limits_.messages, kStringOrArray) == nullptr) return;
    if (input->empty()) reader_.complain("input", "is empty");
    for (std::size_t i = 0; i < input->size(); ++i) read_item((*input)[i], element_path("input", i));
  }

  void read_item(const OrderedJson& value, const std::string& path) {
    ObjectReader item(value, path, problems_);
    for (const char* label : {"id", "status", "phase"}) item.string(label);
    const std::string type =
        item.word("type", {"message", "function_call", "function_call_output", "reasoning"}).value_or("message");
    if (type == "message") {
      read_message(item);
    } else if (type == "function_call") {
      item.require("name");
      append_call(assistant(), item.string("call_id").value_or(""), item.string("name").value_or(""),
                  read_arguments(item.find("arguments"), item.path("arguments"), problems_));
    } else if (type == "function_call_output") {
      OrderedJson message = {{"role", "tool"}, {"content", text(item, "output")}};
      if (const auto id = item.string("call_id")) message["tool_call_id"] = *id;
      request_.messages.push_back(std::move(message));
    } else {
      read_reasoning_item(item);
    }
    item.finish(limits_.strict);
  }

  void read_message(ObjectReader& item) {
    item.require("role");
    const std::string role = item.word("role", {"system", "developer", "user", "assistant"}).value_or("");
    const std::string content = text(item, "content");
    if (role == "assistant" && continues_assistant()) {
      OrderedJson& message = request_.messages.back();
      message["content"] = message["content"].get<std::string>() + content;
      return;
    }
    request_.messages.push_back({{"role", role == "developer" ? "system" : role}, {"content", content}});
  }

  void read_reasoning_item(ObjectReader& item) {
    std::string reasoning;
    for (const char* key : {"content", "summary"}) {
      const OrderedJson* parts = item.find(key);
      if (parts == nullptr || !reasoning.empty()) continue;
      reasoning = server::read_text(*parts, item.path(key), limits_, {"reasoning_text", "summary_text"}, "", problems_);
    }
    item.string("encrypted_content");
    assistant()["reasoning_content"] = reasoning;
  }

  std::string text(ObjectReader& item, std::string_view key) {
    item.require(key);
    const OrderedJson* content = item.find(key);
    if (content == nullptr) return {};
    return server::read_text(*content, item.path(key), limits_, {"input_text", "output_text", "text", "refusal"}, "",
                             problems_);
  }

  /// Reasoning, text and calls of one turn come as separate items; the template wants them as one message.
  [[nodiscard]] bool continues_assistant() const {
    return !request_.messages.empty() && request_.messages.back()["role"] == "assistant";
  }
  OrderedJson& assistant() {
    if (!continues_assistant()) request_.messages.push_back({{"role", "assistant"}, {"content", ""}});
    return request_.messages.back();
  }

  void read_tools() {
    const OrderedJson* tools = reader_.array("tools", limits_.tools);
    if (tools != nullptr && !tools->empty()) {
      request_.tools = OrderedJson::array();
      for (std::size_t i = 0; i < tools->size(); ++i) {
        ObjectReader tool((*tools)[i], element_path("tools", i), problems_);
        tool.require("type");
        const std::optional<std::string> type = tool.string("type");
        if (type && *type != "function") {
          tool.complain("type", "must be 'function': there are no built-in tools here", "unsupported_parameter");
          continue;
        }
        request_.tools.push_back(make_tool(tool, "name", "parameters"));
        tool.boolean("strict");
        tool.ignore({"defer_loading"});
        tool.finish(limits_.strict);
      }
    }
    read_tool_choice(reader_, request_);
    request_.one_call = !reader_.boolean("parallel_tool_calls").value_or(true);
    reader_.integer("max_tool_calls", 1, std::numeric_limits<std::int64_t>::max());
  }

  void read_reasoning() {
    const OrderedJson* reasoning = reader_.object("reasoning");
    if (reasoning == nullptr) return;
    ObjectReader fields(*reasoning, "reasoning", problems_);
    const auto effort = fields.word("effort", {"none", "minimal", "low", "medium", "high", "xhigh"});
    if (effort) set_effort(*effort, request_.variables);
    fields.refuse("summary", kNoSummary);
    fields.refuse("generate_summary", kNoSummary);
    fields.finish(limits_.strict);
  }

  void read_text() {
    const OrderedJson* text = reader_.object("text");
    if (text == nullptr) return;
    ObjectReader fields(*text, "text", problems_);
    read_text_format(fields, "format", limits_.strict);
    fields.string("verbosity");
    fields.finish(limits_.strict);
  }

  /// What a response could have more of. Nothing of it is made here.
  void read_include() {
    const OrderedJson* include = reader_.array("include", 64);
    for (std::size_t i = 0; include != nullptr && i < include->size(); ++i) {
      const OrderedJson& one = (*include)[i];
      if (!one.is_string()) {
        reader_.complain(element_path("include", i), fmt::format("must be a string, not {}", one.type_name()),
                         "invalid_type");
      } else {
        reader_.complain(element_path("include", i), why_not_included(one.get_ref<const std::string&>()),
                         "unsupported_parameter");
      }
    }
  }

  void refuse_state() {
    reader_.refuse("previous_response_id", kNothingStored);
    reader_.refuse("conversation", kNothingStored);
    reader_.refuse("background", "is not supported");
    reader_.refuse("prompt", "is not supported; send instructions and input");
    reader_.refuse("top_logprobs", kNoLogprobs);
  }

  void repeat_fields() {
    for (const char* key : {"instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "temperature",
                            "tool_choice", "tools", "top_p", "reasoning", "user"}) {
      const auto found = body_.find(key);
      if (found != body_.end()) request_.repeated[key] = *found;
    }
  }

  const RequestLimits& limits_;
  const OrderedJson& body_;
  Problems problems_;
  ObjectReader reader_;
  GenerationRequest request_;
};

}  // namespace

Parsed<GenerationRequest> parse_response(const OrderedJson& body, const RequestLimits& limits) {
  return ResponseParser(body, limits).parse();
}

}  // namespace lockstep::server
