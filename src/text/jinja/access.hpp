// Attributes, elements and slices of values.
#pragma once

#include <string_view>

#include "base/result.hpp"
#include "text/jinja/ast.hpp"
#include "text/jinja/runtime.hpp"

namespace lockstep::text::jinja {

/// `object.name`: a method first, then an element of a dict, as Jinja2 has it. What does not exist is undefined; names
/// with a leading underscore and methods that change a container are undefined and unsafe. `origin` is remembered in
/// undefined values. Errors: Invalid (an attribute of an undefined value).
Result<Value> get_attribute(Runtime& runtime, const Value& object, std::string_view name, const Expr* origin);
/// `object[index]`: an element first, then an attribute.
Result<Value> get_item(Runtime& runtime, const Value& object, const Value& index, const Expr* origin);
/// `object[start:stop:step]`; null bounds are absent. Errors: Invalid.
Result<Value> get_slice(Runtime& runtime, const Value& object, const Value* start, const Value* stop,
                        const Value* step);
/// Only what getattr() would find: methods and fields, no elements (the attr filter).
Result<Value> get_field(Runtime& runtime, const Value& object, std::string_view name, const Expr* origin);
/// An element as filters name it in `attribute`: a dotted path such as "function.name" or "parts.0", an index, or none
/// for the object itself. `otherwise`, unless null or none, stands for what is undefined on the way.
Result<Value> get_path(Runtime& runtime, const Value& object, const Value& attribute, const Value* otherwise = nullptr);

/// A method of a built-in type; null if there is none of that name.
struct Method {
  std::string_view name;
  NativeFunction native;
};
[[nodiscard]] const Method* find_text_method(std::string_view name);
[[nodiscard]] const Method* find_dict_method(std::string_view name);
[[nodiscard]] const Method* find_list_method(std::string_view name);
/// Methods that would change a list or a dict; the sandbox hides them.
[[nodiscard]] bool is_mutating_method(std::string_view name);

}  // namespace lockstep::text::jinja
