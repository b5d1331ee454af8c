#include "text/jinja/access.hpp"

#include <algorithm>
#include <optional>

#include "text/jinja/loop_object.hpp"
#include "text/jinja/operators.hpp"
#include "text/jinja/unicode.hpp"

namespace lockstep::text::jinja {
namespace {

Value missing(const Expr* origin) {
  return Value(Undefined{origin, Absence::Missing});
}
Value unsafe(const Expr* origin) {
  return Value(Undefined{origin, Absence::Unsafe});
}

/// Tuples and ranges have the methods of lists that look for a value.
bool has_list_methods(const Sequence& sequence) {
  return sequence.kind == SequenceKind::Tuple || sequence.kind == SequenceKind::Group ||
         sequence.kind == SequenceKind::Range;
}

/// What getattr() finds, or nothing.
Result<std::optional<Value>> find_field(Runtime& runtime, const Value& object, std::string_view name,
                                        const Expr* origin) {
  if (const Namespace* space = object.name_space()) {
    if (const Value* found = space->find(name)) return *found;
    return name.starts_with("__") ? std::optional(unsafe(origin)) : std::nullopt;
  }
  if (name.starts_with("_")) return name.starts_with("__") ? std::optional(unsafe(origin)) : std::nullopt;
  if (const LoopPtr* loop = object.get<LoopPtr>()) return loop_attribute(runtime, *loop, name);
  const Method* method = nullptr;
  if (object.text() != nullptr) {
    method = find_text_method(name);
  } else if (object.dict() != nullptr || is_list(object)) {
    method = object.dict() != nullptr ? find_dict_method(name) : find_list_method(name);
    if (method == nullptr && is_mutating_method(name)) {
      const bool both = name == "clear" || name == "pop";
      const bool of_dict = name == "popitem" || name == "setdefault" || name == "update";
      if (both || of_dict == (object.dict() != nullptr)) return unsafe(origin);
    }
  } else if (const Sequence* sequence = object.sequence(); sequence != nullptr && has_list_methods(*sequence)) {
    const Sequence& list = *sequence;
    if (list.kind == SequenceKind::Group && name == "grouper") return list.items[0];
    if (list.kind == SequenceKind::Group && name == "list") return list.items[1];
    if (name == "count" || name == "index") method = find_list_method(name);
  } else if (const Function* function = object.function(); function != nullptr && function->macro != nullptr) {
    if (name == "name") return LOCKSTEP_TRY(runtime.text(function->name));
  }
  if (method == nullptr) return std::nullopt;
  return LOCKSTEP_TRY(runtime.bound_method(method->name, method->native, object));
}

/// The element at a position counted from the end if negative, or nothing.
std::optional<std::size_t> position(std::int64_t index, std::size_t size) {
  if (index < 0) index += static_cast<std::int64_t>(size);
  if (index < 0 || index >= static_cast<std::int64_t>(size)) return std::nullopt;
  return static_cast<std::size_t>(index);
}

Result<std::optional<Value>> find_element(Runtime& runtime, const Value& object, const Value& index) {
  if (const Dict* dict = object.dict()) {
    // A key that cannot be hashed is not in the dict either; only the budget can fail here.
    if (is_list(index)) return std::nullopt;
    if (index.dict() != nullptr) return std::nullopt;
    const std::size_t at = LOCKSTEP_TRY(find_key(runtime, dict->entries, index));
    return at < dict->entries.size() ? std::optional(dict->entries[at].second) : std::nullopt;
  }
  const bool indexable = object.text() != nullptr || (object.sequence() != nullptr && !is_generator(object));
  if (!indexable || index.get<BigInteger>() != nullptr) return std::nullopt;
  const auto number = LOCKSTEP_TRY(as_integer(index));
  if (!number) return std::nullopt;
  if (const TextPtr* text = object.get<TextPtr>()) {
    const auto at = position(*number, (*text)->characters);
    if (!at) return std::nullopt;
    if (!(*text)->is_ascii()) LOCKSTEP_TRY(runtime.budget().spend_bytes((*text)->bytes.size()));
    const std::size_t begin = (*text)->byte_of(*at);
    const std::size_t end = begin + character_length((*text)->bytes[begin]);
    return Value(LOCKSTEP_TRY(slice(runtime.budget(), *text, begin, end)));
  }
  const Sequence& list = *object.sequence();
  const bool is_view =
      list.kind == SequenceKind::Keys || list.kind == SequenceKind::Values || list.kind == SequenceKind::Items;
  const auto at = is_view ? std::nullopt : position(*number, list.items.size());
  return at ? std::optional(list.items[*at]) : std::nullopt;
}

/// A bound of a slice as Python clips it.
std::int64_t clip(std::int64_t bound, std::int64_t size, std::int64_t low, std::int64_t high) {
  if (bound < 0) bound += size;
  return std::clamp(bound, low, high);
}

struct Stride {
  std::int64_t start, stop, step;
  [[nodiscard]] std::int64_t count() const {
    if (step > 0) return stop > start ? (stop - start - 1) / step + 1 : 0;
    // The negative of the most negative step does not exist; one step of that size leaves every sequence.
    if (step == INT64_MIN) return start > stop ? 1 : 0;
    return start > stop ? (start - stop - 1) / -step + 1 : 0;
  }
};

Result<std::int64_t> bound(const Value* value, std::int64_t otherwise) {
  if (value == nullptr || value->is_none()) return otherwise;
  const auto number = LOCKSTEP_TRY(as_integer(*value));
  if (!number) return type_error("a slice needs integers", *value);
  return *number;
}

Result<Stride> stride_of(std::int64_t size, const Value* start, const Value* stop, const Value* step) {
  Stride stride{};
  stride.step = LOCKSTEP_TRY(bound(step, 1));
  if (stride.step == 0) return fail(ErrorKind::Invalid, "a slice with a step of zero");
  const bool forward = stride.step > 0;
  const std::int64_t low = forward ? 0 : -1, high = forward ? size : size - 1;
  const bool has_start = start != nullptr && !start->is_none(), has_stop = stop != nullptr && !stop->is_none();
  stride.start = has_start ? clip(LOCKSTEP_TRY(bound(start, 0)), size, low, high) : forward ? low : high;
  stride.stop = has_stop ? clip(LOCKSTEP_TRY(bound(stop, 0)), size, low, high) : forward ? high : low;
  return stride;
}

Result<Value> slice_text(Runtime& runtime, const TextPtr& text, const Stride& stride) {
  LOCKSTEP_TRY(runtime.budget().spend_bytes(text->bytes.size()));
  if (stride.step == 1) {
    const auto start = static_cast<std::size_t>(stride.start);
    const std::size_t begin = text->byte_of(start);
    const std::size_t end = text->byte_of(std::max(start, static_cast<std::size_t>(stride.stop)));
    return Value(LOCKSTEP_TRY(slice(runtime.budget(), text, begin, end)));
  }
  std::vector<std::size_t> begins;
  for (std::size_t at = 0; at < text->bytes.size(); at += character_length(text->bytes[at])) begins.push_back(at);
  TextBuilder out(runtime.budget());
  const std::int64_t count = stride.count();
  for (std::int64_t i = 0, at = stride.start; i < count; ++i) {
    const std::size_t begin = begins[static_cast<std::size_t>(at)];
    out.append(*text, begin, begin + character_length(text->bytes[begin]));
    if (i + 1 < count) at += stride.step;
  }
  return Value(LOCKSTEP_TRY(out.finish()));
}

Result<Value> slice_sequence(Runtime& runtime, const Sequence& list, const Stride& stride) {
  const std::int64_t count = stride.count();
  LOCKSTEP_TRY(runtime.budget().spend(1 + static_cast<std::uint64_t>(count) / 4));
  std::vector<Value> items;
  items.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0, at = stride.start; i < count; ++i) {
    items.push_back(list.items[static_cast<std::size_t>(at)]);
    if (i + 1 < count) at += stride.step;
  }
  if (list.kind != SequenceKind::Range) {
    return runtime.sequence(list.kind == SequenceKind::Group ? SequenceKind::Tuple : list.kind, std::move(items));
  }
  RangeBounds bounds;
  __extension__ using Wide = __int128;
  const auto scaled = [&](std::int64_t index) {
    return static_cast<std::int64_t>(list.range.start + Wide(index) * list.range.step);
  };
  bounds = {scaled(stride.start), scaled(stride.stop), static_cast<std::int64_t>(Wide(list.range.step) * stride.step)};
  return runtime.sequence(SequenceKind::Range, std::move(items), bounds);
}

}  // namespace

Result<Value> get_field(Runtime& runtime, const Value& object, std::string_view name, const Expr* origin) {
  if (object.is_undefined()) return undefined_error(object);
  auto found = LOCKSTEP_TRY(find_field(runtime, object, name, origin));
  return found ? std::move(*found) : missing(origin);
}

Result<Value> get_attribute(Runtime& runtime, const Value& object, std::string_view name, const Expr* origin) {
  if (object.is_undefined()) return undefined_error(object);
  auto field = LOCKSTEP_TRY(find_field(runtime, object, name, origin));
  if (field) return std::move(*field);
  if (const Dict* dict = object.dict()) {
    LOCKSTEP_TRY(runtime.budget().spend(1 + dict->entries.size() / 4));
    if (const Value* found = find_text_key(*dict, name)) return *found;
  }
  return missing(origin);
}

Result<Value> get_item(Runtime& runtime, const Value& object, const Value& index, const Expr* origin) {
  if (object.is_undefined()) return undefined_error(object);
  auto element = LOCKSTEP_TRY(find_element(runtime, object, index));
  if (element) return std::move(*element);
  return index.text() != nullptr ? get_field(runtime, object, index.text()->view(), origin) : missing(origin);
}

Result<Value> get_slice(Runtime& runtime, const Value& object, const Value* start, const Value* stop,
                        const Value* step) {
  const Sequence* const list = object.sequence();
  const bool sliceable =
      list != nullptr && (list->kind == SequenceKind::List || list->kind == SequenceKind::Range || is_tuple(object));
  if (object.text() == nullptr && !sliceable) return type_error("only strings and lists can be sliced", object);
  const std::int64_t size = LOCKSTEP_TRY(runtime.length(object));
  const Stride stride = LOCKSTEP_TRY(stride_of(size, start, stop, step));
  if (const TextPtr* text = object.get<TextPtr>()) return slice_text(runtime, *text, stride);
  return slice_sequence(runtime, *list, stride);
}

Result<Value> get_path(Runtime& runtime, const Value& object, const Value& attribute, const Value* otherwise) {
  const bool has_default = otherwise != nullptr && !otherwise->is_none();
  if (attribute.is_none() || attribute.is_undefined()) return object;
  if (attribute.text() == nullptr) return get_item(runtime, object, attribute, nullptr);
  std::string_view path = attribute.text()->view();
  Value value = object;
  while (true) {
    const std::size_t dot = std::min(path.find('.'), path.size());
    const std::string_view part = path.substr(0, dot);
    const bool is_number =
        !part.empty() && part.size() < 18 && part.find_first_not_of("0123456789") == std::string_view::npos;
    const Value index =
        is_number ? Value(static_cast<std::int64_t>(std::stoll(std::string(part)))) : LOCKSTEP_TRY(runtime.text(part));
    value = LOCKSTEP_TRY(get_item(runtime, value, index, nullptr));
    if (has_default && value.is_undefined()) value = *otherwise;
    if (dot == path.size()) return value;
    path.remove_prefix(dot + 1);
  }
}

}  // namespace lockstep::text::jinja
