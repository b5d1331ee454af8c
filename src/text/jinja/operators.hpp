// Python's operators on values.
#pragma once

#include <compare>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/result.hpp"
#include "text/jinja/ast.hpp"
#include "text/jinja/runtime.hpp"
#include "text/jinja/value.hpp"

namespace lockstep::text::jinja {

/// + - * / // % **. Integers are 64 bits wide; beyond that a Limit error. Errors: Invalid (types, division by zero).
Result<Value> arithmetic(Runtime& runtime, Operator op, const Value& left, const Value& right);
Result<Value> negate(const Value& value);

/// ==, without errors but for the budget (Limit): different types are unequal, numbers compare by value.
Result<bool> equal(Runtime& runtime, const Value& left, const Value& right);
/// The order of two values of one kind. Errors: Invalid when Python has none.
Result<std::partial_ordering> compare(Runtime& runtime, const Value& left, const Value& right);
/// One operator of a comparison chain.
Result<bool> compare_with(Runtime& runtime, Operator op, const Value& left, const Value& right);
/// `item in container`.
Result<bool> contains(Runtime& runtime, const Value& container, const Value& item);

/// The position of a key, or entries.size(). Errors: Invalid (a key that cannot be hashed).
Result<std::size_t> find_key(Runtime& runtime, const std::vector<std::pair<Value, Value>>& entries, const Value& key);
/// The value of a text key, or null.
[[nodiscard]] const Value* find_text_key(const Dict& dict, std::string_view key);

}  // namespace lockstep::text::jinja
