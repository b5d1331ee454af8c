#include "text/tool_call_schema.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace lockstep::text {
namespace {

constexpr int kMaxSchemaDepth = 8;

JsonTypes type_of_name(const OrderedJson& name) {
  constexpr std::array<std::pair<std::string_view, JsonTypes::Type>, 7> kNames{{{"string", JsonTypes::String},
                                                                                {"integer", JsonTypes::Integer},
                                                                                {"number", JsonTypes::Number},
                                                                                {"boolean", JsonTypes::Boolean},
                                                                                {"null", JsonTypes::Null},
                                                                                {"object", JsonTypes::Object},
                                                                                {"array", JsonTypes::Array}}};
  for (const auto& [text, type] : kNames) {
    if (name == text) return JsonTypes(type);
  }
  return {};
}

template <class J>
JsonTypes type_of_value(const J& value) {
  switch (value.type()) {
    case J::value_t::string:
      return JsonTypes(JsonTypes::String);
    case J::value_t::number_integer:
    case J::value_t::number_unsigned:
      return JsonTypes(JsonTypes::Integer);
    case J::value_t::number_float:
      return JsonTypes(JsonTypes::Number);
    case J::value_t::boolean:
      return JsonTypes(JsonTypes::Boolean);
    case J::value_t::null:
      return JsonTypes(JsonTypes::Null);
    case J::value_t::object:
      return JsonTypes(JsonTypes::Object);
    case J::value_t::array:
      return JsonTypes(JsonTypes::Array);
    default:
      return {};
  }
}

const OrderedJson* member(const OrderedJson& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

/// The types of a schema. An alternative of unknown type makes the whole unknown.
JsonTypes types_of_schema(const OrderedJson& schema, int depth) {
  JsonTypes types;
  if (depth > kMaxSchemaDepth) return types;
  if (const OrderedJson* type = member(schema, "type")) {
    if (!type->is_array()) return type_of_name(*type);
    for (const OrderedJson& name : *type) types.add(type_of_name(name));
    return types;
  }
  if (const OrderedJson* value = member(schema, "const")) return type_of_value(*value);
  if (const OrderedJson* values = member(schema, "enum"); values != nullptr && values->is_array()) {
    for (const OrderedJson& value : *values) types.add(type_of_value(value));
    return types;
  }
  for (const char* combination : {"anyOf", "oneOf", "allOf"}) {
    const OrderedJson* parts = member(schema, combination);
    if (parts == nullptr || !parts->is_array()) continue;
    for (const OrderedJson& part : *parts) {
      const JsonTypes part_types = types_of_schema(part, depth + 1);
      if (part_types.unknown() && std::string_view(combination) != "allOf") return {};
      types.add(part_types);
    }
    return types;
  }
  return types;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

/// The JSON spelling of Python's constants.
std::string_view without_python_spelling(std::string_view text) {
  if (text == "True") return "true";
  if (text == "False") return "false";
  if (text == "None") return "null";
  return text;
}

bool allows(JsonTypes types, JsonTypes found) {
  if (found.unknown() || found.only_string()) return false;
  if (types.unknown()) return true;
  if (found.has(JsonTypes::Integer)) return types.has(JsonTypes::Integer) || types.has(JsonTypes::Number);
  return (found.has(JsonTypes::Number) && types.has(JsonTypes::Number)) ||
         (found.has(JsonTypes::Boolean) && types.has(JsonTypes::Boolean)) ||
         (found.has(JsonTypes::Null) && types.has(JsonTypes::Null)) ||
         (found.has(JsonTypes::Object) && types.has(JsonTypes::Object)) ||
         (found.has(JsonTypes::Array) && types.has(JsonTypes::Array));
}

/// The text as JSON of an allowed type other than string.
std::optional<std::string> as_allowed_json(std::string_view text, JsonTypes types) {
  std::string_view candidate = trimmed(text);
  if (!types.unknown()) candidate = without_python_spelling(candidate);
  if (candidate.empty() || std::string_view("{[-0123456789tfn").find(candidate[0]) == std::string_view::npos) return {};
  const auto parsed = parse_json(candidate, "argument");
  if (!parsed || !allows(types, type_of_value(*parsed))) return {};
  return std::string(candidate);
}

}  // namespace

ToolSchemas ToolSchemas::from_json(const OrderedJson& tools) {
  ToolSchemas schemas;
  if (!tools.is_array()) return schemas;
  for (const OrderedJson& tool : tools) {
    const OrderedJson* nested = member(tool, "function");
    const OrderedJson& function = nested != nullptr ? *nested : tool;
    const OrderedJson* name = member(function, "name");
    const OrderedJson* schema = member(function, "parameters");
    if (schema == nullptr) schema = member(function, "input_schema");
    if (name == nullptr || !name->is_string() || schema == nullptr) continue;
    const OrderedJson* properties = member(*schema, "properties");
    if (properties == nullptr || !properties->is_object()) continue;
    auto& parameters = schemas.functions_[name->get<std::string>()];
    for (const auto& [key, property] : properties->items()) parameters[key] = types_of_schema(property, 0);
  }
  return schemas;
}

JsonTypes ToolSchemas::types(std::string_view function, std::string_view parameter) const {
  const auto found = functions_.find(function);
  if (found == functions_.end()) return {};
  const auto types = found->second.find(parameter);
  return types == found->second.end() ? JsonTypes() : types->second;
}

std::string argument_json(std::string_view text, JsonTypes types) {
  if (!types.only_string()) {
    if (auto json = as_allowed_json(text, types)) return *std::move(json);
  }
  std::string out = "\"";
  append_json_escaped(text, out);
  out += '"';
  return out;
}

void append_json_escaped(std::string_view text, std::string& out) {
  constexpr std::string_view kEscaped = "\"\\\b\f\n\r\t";
  constexpr std::string_view kLetters = "\"\\bfnrt";
  for (const char c : text) {
    const std::size_t letter = kEscaped.find(c);
    if (letter != std::string_view::npos) {
      out += '\\';
      out += kLetters[letter];
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
}

}  // namespace lockstep::text
