// What a request's tool list says about the types of arguments.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/json.hpp"

namespace lockstep::text {

/// A set of JSON types. The empty set means that nothing is known.
class JsonTypes {
 public:
  enum Type : std::uint8_t { String = 1, Integer = 2, Number = 4, Boolean = 8, Null = 16, Object = 32, Array = 64 };

  constexpr JsonTypes() = default;
  constexpr explicit JsonTypes(std::uint8_t bits) : bits_(bits) {}
  void add(JsonTypes other) { bits_ = static_cast<std::uint8_t>(bits_ | other.bits_); }
  [[nodiscard]] bool has(Type type) const { return (bits_ & type) != 0; }
  [[nodiscard]] bool unknown() const { return bits_ == 0; }
  [[nodiscard]] bool only_string() const { return bits_ == String; }
  bool operator==(const JsonTypes&) const = default;

 private:
  std::uint8_t bits_ = 0;
};

/// Types of the parameters of every function of a tool list.
class ToolSchemas {
 public:
  ToolSchemas() = default;

  /// Reads `[{"type": "function", "function": {"name", "parameters": SCHEMA}}]`, and the flat form with "name" and
  /// "parameters" or "input_schema" directly in the entry. Of a parameter's schema, "type", "enum", "const", "anyOf",
  /// "oneOf" and "allOf" are understood. Anything else, and anything malformed, leaves the type unknown: this only
  /// decides how arguments are written, it does not validate.
  static ToolSchemas from_json(const OrderedJson& tools);

  /// The types that a parameter may have.
  [[nodiscard]] JsonTypes types(std::string_view function, std::string_view parameter) const;

 private:
  std::map<std::string, std::map<std::string, JsonTypes, std::less<>>, std::less<>> functions_;
};

/// Writes the text of an argument as JSON. With types known, a text that is JSON of one of the types other than string
/// is taken as it stands (also True, False and None in place of true, false and null); otherwise it becomes a string,
/// even when no string is allowed, so that nothing the model wrote is lost. With unknown types, numbers, true, false,
/// null, objects and arrays are taken as such, the form in which the chat template writes arguments that are not
/// strings.
std::string argument_json(std::string_view text, JsonTypes types);

/// Appends a text escaped for the inside of a JSON string. Works on any part of a text.
void append_json_escaped(std::string_view text, std::string& out);

}  // namespace lockstep::text
