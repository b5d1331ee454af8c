// JSON through nlohmann::json, without exceptions and with limits for untrusted text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.hpp"

namespace lockstep {

using Json = nlohmann::json;
/// Keeps the order of object keys; used where the order is visible (chat templates, tool arguments).
using OrderedJson = nlohmann::ordered_json;

struct JsonLimits {
  std::size_t max_bytes = std::size_t{64} << 20;
  int max_depth = 200;  ///< levels of arrays and objects inside one another
  /// Members of one object. OrderedJson looks keys up by comparing all of them, so it has a limit that keeps the time
  /// linear in the text.
  std::size_t max_members = std::size_t{1} << 24;
  std::size_t max_ordered_members = 1024;
  std::size_t max_values = SIZE_MAX;  ///< in all, of every kind: a parsed value takes many times the bytes of its text
  bool unique_keys = false;           ///< duplicate keys of an object are an error
};

/// Parses a whole text. A number that no double holds (1e999) is an error, text that is not UTF-8 too. `what` names the
/// source in errors ("config.json"). Errors: Invalid with line and column, Limit.
Result<Json> parse_json(std::string_view text, std::string_view what, const JsonLimits& limits = {});
Result<OrderedJson> parse_ordered_json(std::string_view text, std::string_view what, const JsonLimits& limits = {});

/// Typed field access. `what` names the object in errors. Errors: NotFound when absent, Invalid on a wrong type or
/// range.
Result<std::int64_t> json_integer(const Json& object, std::string_view key, std::string_view what);
Result<double> json_number(const Json& object, std::string_view key, std::string_view what);
Result<std::string> json_string(const Json& object, std::string_view key, std::string_view what);
Result<bool> json_bool(const Json& object, std::string_view key, std::string_view what);

}  // namespace lockstep
