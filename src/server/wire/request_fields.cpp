#include "server/wire/request_fields.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

#include "text/tool_call_scan.hpp"

namespace lockstep::server {
namespace {

constexpr std::size_t kMaxStops = 64;
constexpr std::string_view kEmptyStop = "has an empty string, which would stop at once";
constexpr std::string_view kNeedsConstraints =
    "is not supported yet: it needs constrained decoding; use 'auto' or 'none'";

void read_seed(ObjectReader& reader, SamplingFields& fields) {
  const OrderedJson* seed = reader.find("seed");
  if (seed == nullptr) return;
  if (!seed->is_number()) {
    reader.complain("seed", fmt::format("must be an integer, not {}", seed->type_name()), "invalid_type");
    return;
  }
  const std::optional<WholeNumber> whole = whole_number(*seed);
  if (!whole) {
    reader.complain(
        "seed", fmt::format("is {}; it must be a whole number between {} and {}", seed->dump(), INT64_MIN, UINT64_MAX));
    return;
  }
  fields.seed = whole->bits;  // negative seeds, which OpenAI allows, are taken modulo 2^64
}

void read_bias(ObjectReader& reader, SamplingFields& fields) {
  const OrderedJson* bias = reader.object("logit_bias");
  if (bias == nullptr) return;
  for (const auto& [key, value] : bias->items()) {
    decode::TokenId id = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    // One spelling for each: no token can be named twice.
    if (error != std::errc() || end != key.data() + key.size() || id < 0 || fmt::format("{}", id) != key) {
      reader.complain("logit_bias", fmt::format("has the key '{}', which is no token id", key.substr(0, 32)));
    } else if (!value.is_number() || !(value.get<double>() >= -100 && value.get<double>() <= 100)) {
      reader.complain(fmt::format("logit_bias.{}", key), "must be a number between -100 and 100");
    } else {
      fields.logit_bias[id] = value.get<double>();
    }
  }
}

void add_stops(ObjectReader& reader, std::string_view key, std::string_view kinds, std::vector<std::string>& stop) {
  const OrderedJson* list = reader.array(key, kMaxStops, kinds);
  for (std::size_t i = 0; list != nullptr && i < list->size(); ++i) {
    const OrderedJson& one = (*list)[i];
    if (!one.is_string()) {
      reader.complain(element_path(key, i), fmt::format("must be a string, not {}", one.type_name()), "invalid_type");
    } else if (one.get_ref<const std::string&>().empty()) {
      reader.complain(key, std::string(kEmptyStop));
    } else {
      stop.push_back(one.get<std::string>());
    }
  }
}

bool usable_name(std::string_view name) {
  return !name.empty() && name.size() <= text::kMaxTagName && std::ranges::none_of(name, [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || c == '<' || c == '>' || c == '\x7f';
  });
}

}  // namespace

void read_sampling(ObjectReader& reader, SamplingFields& fields, double most_temperature) {
  fields.temperature = reader.number("temperature", 0, most_temperature);
  fields.top_p = reader.number("top_p", 0, 1);
  fields.min_p = reader.number("min_p", 0, 1);
  fields.top_k = reader.integer("top_k", -1, std::numeric_limits<std::int32_t>::max());
}

void read_openai_sampling(ObjectReader& reader, SamplingFields& fields) {
  fields.presence_penalty = reader.number("presence_penalty", -2, 2);
  fields.frequency_penalty = reader.number("frequency_penalty", -2, 2);
  read_seed(reader, fields);
  read_bias(reader, fields);
}

void read_labels(ObjectReader& reader) {
  for (const char* key : {"user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"}) {
    reader.string(key);
  }
  if (const OrderedJson* metadata = reader.object("metadata")) {
    ObjectReader fields(*metadata, reader.path("metadata"), reader.problems());
    for (const auto& [key, value] : metadata->items()) fields.string(key);
  }
  reader.boolean("store");
}

void read_stop(ObjectReader& reader, std::vector<std::string>& stop) {
  const OrderedJson* value = reader.find("stop");
  if (value == nullptr) return;
  if (!value->is_string()) {
    add_stops(reader, "stop", kStringOrArray, stop);
  } else if (value->get_ref<const std::string&>().empty()) {
    reader.complain("stop", std::string(kEmptyStop));
  } else {
    stop.push_back(value->get<std::string>());
  }
}

void read_stop_sequences(ObjectReader& reader, std::vector<std::string>& stop) {
  add_stops(reader, "stop_sequences", "an array", stop);
}

void set_effort(const std::string& effort, OrderedJson& variables) {
  if (effort == "none") {
    variables["enable_thinking"] = false;
  } else if (effort == "minimal") {
    variables["reasoning_effort"] = "low";
  } else {
    variables["reasoning_effort"] = effort == "high" ? "xhigh" : effort;
  }
}

void read_text_format(ObjectReader& reader, std::string_view key, bool strict) {
  const OrderedJson* format = reader.object(key);
  if (format == nullptr) return;
  ObjectReader fields(*format, reader.path(key), reader.problems());
  fields.require("type");
  const std::optional<std::string> type = fields.word("type", {"text", "json_object", "json_schema"});
  if (type && *type != "text") {
    fields.complain("type", fmt::format("'{}' is not supported yet: it needs constrained decoding", *type),
                    "unsupported_parameter");
  }
  fields.finish(strict);
}

void read_cache_control(ObjectReader& reader, bool strict) {
  const OrderedJson* control = reader.object("cache_control");
  if (control == nullptr) return;
  ObjectReader fields(*control, reader.path("cache_control"), reader.problems());
  for (const char* key : {"type", "ttl"}) fields.string(key);
  fields.finish(strict);
}

std::string read_text(const OrderedJson& content, const std::string& path, const RequestLimits& limits,
                      std::initializer_list<std::string_view> types, std::string_view separator, Problems& problems) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    problems.add(path, fmt::format("must be a string or an array of parts, not {}", content.type_name()),
                 "invalid_type");
    return {};
  }
  if (content.size() > limits.parts) {
    problems.add(path, fmt::format("has {} parts, more than the limit of {}", content.size(), limits.parts),
                 "limit_exceeded");
    return {};
  }
  std::string out;
  for (std::size_t i = 0; i < content.size(); ++i) {
    ObjectReader part(content[i], element_path(path, i), problems);
    part.require("type");
    const std::optional<std::string> type = part.string("type");
    if (!type) continue;
    if (std::ranges::find(types, *type) == types.end()) {
      part.complain("type", fmt::format("'{}' {}", type->substr(0, 64), kTextOnly), "unsupported_content");
      continue;
    }
    const std::string_view key = *type == "refusal" ? "refusal" : "text";
    part.require(key);
    if (i > 0) out += separator;
    out += part.string(key).value_or("");
    // What responses have in these parts, and clients send back; and a mark for a cache that needs none here.
    part.ignore({"annotations", "logprobs", "citations", "prompt_cache_breakpoint"});
    read_cache_control(part, limits.strict);
    part.finish(limits.strict);
  }
  return out;
}

OrderedJson make_tool(ObjectReader& reader, std::string_view name_key, std::string_view schema_key) {
  reader.require(name_key);
  const std::string name = reader.string(name_key).value_or("");
  if (!usable_name(name)) {
    reader.complain(name_key, "must be 1 to 256 characters without spaces, control characters, < and >");
  }
  OrderedJson function = {{"name", name}};
  if (const auto description = reader.string("description")) function["description"] = *description;
  if (const OrderedJson* schema = reader.object(schema_key)) function["parameters"] = *schema;
  return {{"type", "function"}, {"function", std::move(function)}};
}

OrderedJson read_arguments(const OrderedJson* value, const std::string& path, Problems& problems) {
  if (value == nullptr) return OrderedJson::object();
  if (value->is_object()) return *value;
  if (value->is_string()) {
    const std::string& text = value->get_ref<const std::string&>();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return OrderedJson::object();
    const Result<OrderedJson> parsed = parse_ordered_json(text, "arguments", {.max_depth = 100, .unique_keys = true});
    if (parsed && parsed->is_object()) return *parsed;
  }
  problems.add(path, "must be a JSON object, or the text of one");
  return OrderedJson::object();
}

void append_call(OrderedJson& message, std::string id, std::string name, OrderedJson arguments) {
  OrderedJson call = {{"id", std::move(id)}, {"type", "function"}};
  call["function"] = {{"name", std::move(name)}, {"arguments", std::move(arguments)}};
  message["tool_calls"].push_back(std::move(call));
}

void read_tool_choice(ObjectReader& reader, GenerationRequest& request) {
  const OrderedJson* choice = reader.find("tool_choice");
  if (choice == nullptr) return;
  if (*choice == "none") {
    request.tools = OrderedJson();
  } else if (choice->is_object() || *choice == "required") {
    reader.complain("tool_choice", std::string(kNeedsConstraints), "unsupported_parameter");
  } else if (!choice->is_string()) {
    reader.complain("tool_choice", fmt::format("must be a string or an object, not {}", choice->type_name()),
                    "invalid_type");
  } else if (*choice != "auto") {
    reader.complain("tool_choice", "must be one of 'auto', 'none', 'required', or an object");
  }
}

}  // namespace lockstep::server
