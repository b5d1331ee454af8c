// POST /v1/messages and /v1/messages/count_tokens (Anthropic)
#include <limits>

#include "server/wire/generation_request.hpp"
#include "server/wire/request_fields.hpp"

namespace lockstep::server {
namespace {

class MessageParser {
 public:
  MessageParser(const OrderedJson& body, const RequestLimits& limits) : limits_(limits), reader_(body, "", problems_) {}

  Parsed<GenerationRequest> parse(bool counting) {
    request_.api = Api::Messages;
    reader_.require("model");
    request_.model = reader_.string("model").value_or("");
    read_system();
    read_messages();
    read_tools();
    if (!counting) reader_.require("max_tokens");
    request_.max_tokens = reader_.integer("max_tokens", 1, std::numeric_limits<std::int64_t>::max());
    read_thinking();
    read_sampling(reader_, request_.sampling, 1);
    read_openai_sampling(reader_, request_.sampling);
    read_stop_sequences(reader_, request_.stop);
    request_.stream = reader_.boolean("stream").value_or(false);
    reader_.refuse("mcp_servers", "is not supported");
    reader_.refuse("container", "is not supported");
    reader_.refuse("output_format", "is not supported yet: it needs constrained decoding");
    reader_.object("context_management");
    read_cache_control(reader_, limits_.strict);
    for (const char* key : {"service_tier", "inference_geo"}) reader_.string(key);
    read_metadata();
    read_output_config();
    reader_.finish(limits_.strict);
    if (problems_.any()) return tl::unexpected(problems_.first());
    return std::move(request_);
  }

 private:
  void read_system() {
    const OrderedJson* system = reader_.find("system");
    if (system == nullptr) return;
    const std::string text = read_text(*system, "system", limits_, {"text"}, "\n", problems_);
    if (!text.empty()) request_.messages.push_back({{"role", "system"}, {"content", text}});
  }

  void read_messages() {
    reader_.require("messages");
    const OrderedJson* messages = reader_.array("messages", limits_.messages);
    if (messages == nullptr) return;
    if (messages->empty()) reader_.complain("messages", "is empty");
    for (std::size_t i = 0; i < messages->size(); ++i) read_message((*messages)[i], element_path("messages", i));
  }

  void read_message(const OrderedJson& value, const std::string& path) {
    ObjectReader reader(value, path, problems_);
    reader.require("role");
    const std::string role = reader.word("role", {"user", "assistant"}).value_or("user");
    reader.require("content");
    const OrderedJson* content = reader.find("content");
    reader.finish(limits_.strict);
    if (content == nullptr) return;
    if (content->is_string()) {
      request_.messages.push_back({{"role", role}, {"content", *content}});
      return;
    }
    if (reader.array("content", limits_.parts, kStringOrArray) == nullptr) return;
    OrderedJson message = {{"role", role}, {"content", ""}};
    bool any_block = false;
    for (std::size_t i = 0; i < content->size(); ++i) {
      ObjectReader block((*content)[i], element_path(reader.path("content"), i), problems_);
      any_block = (role == "user" ? user_block(block, message) : assistant_block(block, message)) || any_block;
      read_cache_control(block, limits_.strict);
      block.ignore({"citations", "caller"});
      block.finish(limits_.strict);
    }
    // Results of tools are messages of their own, before what the user says next to them.
    if (any_block || content->empty()) request_.messages.push_back(std::move(message));
  }

  /// Whether the block belongs to `message`.
  bool user_block(ObjectReader& block, OrderedJson& message) {
    block.require("type");
    const std::string type = block.string("type").value_or("");
    if (type == "text") {
      add_text(block, message);
      return true;
    }
    if (type != "tool_result") {
      refuse_block(block, type);
      return false;
    }
    const OrderedJson* content = block.find("content");
    OrderedJson result = {{"role", "tool"}, {"content", ""}};
    if (content != nullptr) {
      result["content"] = read_text(*content, block.path("content"), limits_, {"text"}, "\n", problems_);
    }
    if (const auto id = block.string("tool_use_id")) result["tool_call_id"] = *id;
    block.boolean("is_error");
    request_.messages.push_back(std::move(result));
    return false;
  }

  bool assistant_block(ObjectReader& block, OrderedJson& message) {
    block.require("type");
    const std::string type = block.string("type").value_or("");
    if (type == "text") {
      add_text(block, message);
    } else if (type == "thinking") {
      message["reasoning_content"] = block.string("thinking").value_or("");
      block.string("signature");
    } else if (type == "tool_use") {
      block.require("name");
      append_call(message, block.string("id").value_or(""), block.string("name").value_or(""),
                  read_arguments(block.find("input"), block.path("input"), problems_));
    } else {
      refuse_block(block, type);
    }
    return true;
  }

  void add_text(ObjectReader& block, OrderedJson& message) {
    block.require("text");
    std::string text = message["content"].get<std::string>();
    if (!text.empty()) text += "\n";
    message["content"] = text + block.string("text").value_or("");
  }

  void refuse_block(ObjectReader& block, std::string_view type) {
    block.complain("type", fmt::format("'{}' {}", type.substr(0, 64), kTextOnly), "unsupported_content");
  }

  void read_tools() {
    const OrderedJson* tools = reader_.array("tools", limits_.tools);
    if (tools != nullptr && !tools->empty()) {
      request_.tools = OrderedJson::array();
      for (std::size_t i = 0; i < tools->size(); ++i) {
        ObjectReader tool((*tools)[i], element_path("tools", i), problems_);
        const std::optional<std::string> type = tool.string("type");
        if (type && *type != "custom") {
          tool.complain("type", "must be 'custom': there are no built-in tools here", "unsupported_parameter");
          continue;
        }
        request_.tools.push_back(make_tool(tool, "name", "input_schema"));
        tool.require("input_schema");
        read_cache_control(tool, limits_.strict);
        tool.ignore({"strict", "eager_input_streaming", "defer_loading", "input_examples", "allowed_callers"});
        tool.finish(limits_.strict);
      }
    }
    const OrderedJson* choice = reader_.object("tool_choice");
    if (choice == nullptr) return;
    ObjectReader fields(*choice, "tool_choice", problems_);
    fields.require("type");
    const std::string type = fields.word("type", {"auto", "none", "any", "tool"}).value_or("auto");
    if (type == "none") request_.tools = OrderedJson();
    if (type == "any" || type == "tool") {
      fields.complain("type", "is not supported yet: it needs constrained decoding; use 'auto' or 'none'",
                      "unsupported_parameter");
    }
    request_.one_call = fields.boolean("disable_parallel_tool_use").value_or(false);
    fields.ignore({"name"});
    fields.finish(limits_.strict);
  }

  /// Without the field there is no thinking, as in Anthropic's API.
  void read_thinking() {
    request_.variables["enable_thinking"] = false;
    const OrderedJson* thinking = reader_.object("thinking");
    if (thinking == nullptr) return;
    ObjectReader fields(*thinking, "thinking", problems_);
    fields.require("type");
    const std::string type = fields.word("type", {"enabled", "disabled", "adaptive"}).value_or("disabled");
    if (type != "disabled") request_.variables.erase("enable_thinking");
    read_budget(fields, type == "enabled");
    fields.string("display");
    fields.finish(limits_.strict);
  }

  /// Checked as Anthropic's API checks it: at least 1,024 and less than max_tokens, which counting may leave out.
  void read_budget(ObjectReader& thinking, bool required) {
    constexpr std::int64_t kLeast = 1024;
    if (required) thinking.require("budget_tokens");
    const auto budget = thinking.integer("budget_tokens", kLeast, std::numeric_limits<std::int64_t>::max());
    if (budget && request_.max_tokens && *budget >= *request_.max_tokens) {
      thinking.complain("budget_tokens", fmt::format("is {}; it must be less than max_tokens, which is {}", *budget,
                                                     *request_.max_tokens));
    }
  }

  void read_metadata() {
    const OrderedJson* metadata = reader_.object("metadata");
    if (metadata == nullptr) return;
    ObjectReader fields(*metadata, "metadata", problems_);
    fields.string("user_id");
    fields.finish(limits_.strict);
  }

  void read_output_config() {
    const OrderedJson* config = reader_.object("output_config");
    if (config == nullptr) return;
    ObjectReader fields(*config, "output_config", problems_);
    fields.refuse("format", "is not supported yet: it needs constrained decoding");
    const auto effort = fields.word("effort", {"low", "medium", "high", "xhigh", "max"});
    if (effort && !request_.variables.contains("enable_thinking")) {
      set_effort(*effort == "max" ? "xhigh" : *effort, request_.variables);
    }
    fields.finish(limits_.strict);
  }

  const RequestLimits& limits_;
  Problems problems_;
  ObjectReader reader_;
  GenerationRequest request_;
};

}  // namespace

Parsed<GenerationRequest> parse_message(const OrderedJson& body, const RequestLimits& limits, bool counting) {
  return MessageParser(body, limits).parse(counting);
}

}  // namespace lockstep::server
