// The tests of the language: "x is defined", "x is divisibleby 3".
#pragma once

#include <string_view>

#include "base/result.hpp"
#include "text/jinja/runtime.hpp"

namespace lockstep::text::jinja {

using Predicate = Result<bool> (*)(Runtime& runtime, const Value& value, const Arguments& arguments);

/// The test of a name, or null.
[[nodiscard]] Predicate find_predicate(std::string_view name);

}  // namespace lockstep::text::jinja
