// The tojson filter of chat templates: Python's json.dumps with ensure_ascii=False unless asked otherwise.
#pragma once

#include <optional>
#include <string>

#include "base/result.hpp"
#include "text/jinja/runtime.hpp"
#include "text/jinja/value.hpp"

namespace lockstep::text::jinja {

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<TextPtr> indent;  ///< one level; absent for a single line
  TextPtr item_separator, key_separator;
};

/// Strings of the input stay literal, their quotes included; brackets, separators and numbers are not. Errors: Invalid
/// (a value that JSON does not have), Limit.
Result<Value> to_json(Runtime& runtime, const Value& value, const JsonStyle& style);

}  // namespace lockstep::text::jinja
