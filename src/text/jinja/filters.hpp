// The filters of the language: "x | trim", "messages | selectattr('role', 'eq', 'user') | list".
#pragma once

#include <span>
#include <string_view>
#include <utility>

#include "base/result.hpp"
#include "text/jinja/runtime.hpp"

namespace lockstep::text::jinja {

using FilterFunction = Result<Value> (*)(Runtime& runtime, const Value& input, const Arguments& arguments);
using FilterTable = std::span<const std::pair<std::string_view, FilterFunction>>;

/// The filter of a name, or null.
[[nodiscard]] FilterFunction find_filter(std::string_view name);
/// Errors: Unsupported (a filter of Jinja2 that is not implemented), Invalid (no such filter).
Status check_filter(std::string_view name);

/// The groups that find_filter() looks in.
[[nodiscard]] FilterTable text_filters();
[[nodiscard]] FilterTable value_filters();
[[nodiscard]] FilterTable sequence_filters();
[[nodiscard]] FilterTable selection_filters();

}  // namespace lockstep::text::jinja
