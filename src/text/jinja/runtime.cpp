#include "text/jinja/runtime.hpp"

#include <algorithm>

#include "text/jinja/ast.hpp"
#include "text/jinja/operators.hpp"
#include "text/jinja/unicode.hpp"
#include "text/utf8.hpp"

namespace lockstep::text::jinja {

Runtime::~Runtime() {
  // Namespaces may point at each other; emptied one by one they are never destroyed recursively.
  for (Namespace& space : namespaces_) space.attributes.clear();
}

Result<Value> Runtime::text(std::string_view bytes, bool literal) {
  TextBuilder builder(budget_);
  builder.append(bytes, literal);
  return Value(LOCKSTEP_TRY(builder.finish()));
}

Result<Value> Runtime::sequence(SequenceKind kind, std::vector<Value> items, const RangeBounds& bounds) {
  LOCKSTEP_TRY(budget_.spend(1 + items.size() / 4));
  auto made = std::make_shared<Sequence>();
  made->charge = LOCKSTEP_TRY(budget_.charge(sizeof(Sequence) + 32 + items.capacity() * sizeof(Value)));
  made->kind = kind;
  made->range = bounds;
  for (const Value& item : items) made->depth = std::max(made->depth, item.depth() + 1);
  if (made->depth > kMaxValueDepth) return fail(ErrorKind::Limit, "lists nested deeper than {} levels", kMaxValueDepth);
  made->items = std::move(items);
  return Value(SequencePtr(std::move(made)));
}

Result<Value> Runtime::range(const RangeBounds& bounds) {
  if (bounds.step == 0) return fail(ErrorKind::Invalid, "range() with a step of zero");
  // In 128 bits, since bounds and steps may be anything.
  __extension__ using Wide = __int128;
  const Wide step = bounds.step;
  const Wide distance = step > 0 ? Wide(bounds.stop) - bounds.start : Wide(bounds.start) - bounds.stop;
  const Wide stride = step > 0 ? step : -step;
  const Wide count = distance <= 0 ? 0 : (distance + stride - 1) / stride;
  if (count > limits_.max_range) {
    return fail(ErrorKind::Limit, "a range of more than {} numbers", limits_.max_range);
  }
  std::vector<Value> items;
  items.reserve(static_cast<std::size_t>(count));
  for (Wide i = 0; i < count; ++i) items.emplace_back(static_cast<std::int64_t>(bounds.start + i * step));
  return sequence(SequenceKind::Range, std::move(items), bounds);
}

Result<Value> Runtime::dict(std::vector<std::pair<Value, Value>> entries) {
  LOCKSTEP_TRY(budget_.spend(1 + entries.size() / 4));
  auto made = std::make_shared<Dict>();
  made->charge = LOCKSTEP_TRY(budget_.charge(sizeof(Dict) + 32 + entries.capacity() * 2 * sizeof(Value)));
  for (const auto& [key, value] : entries) made->depth = std::max({made->depth, key.depth() + 1, value.depth() + 1});
  if (made->depth > kMaxValueDepth)
    return fail(ErrorKind::Limit, "values nested deeper than {} levels", kMaxValueDepth);
  made->entries = std::move(entries);
  return Value(DictPtr(std::move(made)));
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): the pairs are moved out of it
Result<Value> Runtime::unique_dict(std::vector<std::pair<Value, Value>> entries) {
  std::vector<std::pair<Value, Value>> distinct;
  for (auto& [key, value] : entries) {
    const std::size_t at = LOCKSTEP_TRY(find_key(*this, distinct, key));
    if (at < distinct.size()) {
      distinct[at].second = std::move(value);
    } else {
      distinct.emplace_back(std::move(key), std::move(value));
    }
  }
  return dict(std::move(distinct));
}

Result<Value> Runtime::bound_method(std::string_view name, NativeFunction native, Value self) {
  auto made = std::make_shared<Function>();
  made->name = name;
  made->native = native;
  made->self = std::move(self);
  return Value(FunctionPtr(std::move(made)));
}

Result<Namespace*> Runtime::make_namespace() {
  namespace_charges_.push_back(LOCKSTEP_TRY(budget_.charge(sizeof(Namespace) + sizeof(Charge))));
  return &namespaces_.emplace_back();
}

Status Runtime::set_attribute(Namespace& space, std::string_view name, Value value) {
  LOCKSTEP_TRY(budget_.spend(1 + space.attributes.size() / 8));
  for (auto& [key, old] : space.attributes) {
    if (key != name) continue;
    old = std::move(value);
    return {};
  }
  namespace_charges_.push_back(
      LOCKSTEP_TRY(budget_.charge(2 * sizeof(space.attributes[0]) + name.size() + sizeof(Charge))));
  space.attributes.emplace_back(std::string(name), std::move(value));
  return {};
}

Result<Value> Runtime::from_json(const OrderedJson& json, bool literal) {
  return from_json(json, literal, 1);
}

Result<Value> Runtime::from_json(const OrderedJson& json, bool literal, std::uint32_t depth) {
  if (depth > kMaxValueDepth) return fail(ErrorKind::Limit, "input nested deeper than {} levels", kMaxValueDepth);
  const auto string = [&](const std::string& bytes) -> Result<Value> {
    if (const std::size_t bad = first_invalid_utf8(bytes); bad < bytes.size()) {
      return fail(ErrorKind::Invalid, "a string of the input is not valid UTF-8: byte {} of {}", bad, bytes.size());
    }
    return text(bytes, literal);
  };
  switch (json.type()) {
    case OrderedJson::value_t::boolean:
      return Value(json.get<bool>());
    case OrderedJson::value_t::number_integer:
      return Value(json.get<std::int64_t>());
    case OrderedJson::value_t::number_unsigned: {
      const auto number = json.get<std::uint64_t>();
      return number > INT64_MAX ? Value(BigInteger{number}) : Value(static_cast<std::int64_t>(number));
    }
    case OrderedJson::value_t::number_float:
      return Value(json.get<double>());
    case OrderedJson::value_t::string:
      return string(json.get_ref<const std::string&>());
    case OrderedJson::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const OrderedJson& item : json) items.push_back(LOCKSTEP_TRY(from_json(item, literal, depth + 1)));
      return list(std::move(items));
    }
    case OrderedJson::value_t::object: {
      std::vector<std::pair<Value, Value>> entries;
      entries.reserve(json.size());
      for (const auto& [key, item] : json.get_ref<const OrderedJson::object_t&>()) {
        Value name = LOCKSTEP_TRY(string(key));
        Value value = LOCKSTEP_TRY(from_json(item, literal, depth + 1));
        entries.emplace_back(std::move(name), std::move(value));
      }
      return dict(std::move(entries));
    }
    default:
      return Value(None{});
  }
}

Result<SequencePtr> Runtime::share(Result<Value> made) {
  const Value value = LOCKSTEP_TRY(std::move(made));
  return *value.get<SequencePtr>();
}

Result<SequencePtr> Runtime::iterate(const Value& value) {
  LOCKSTEP_TRY(budget_.spend(1));
  if (const SequencePtr* list = value.get<SequencePtr>()) {
    if ((*list)->kind != SequenceKind::Generator) return *list;
    if ((*list)->spent) return share(this->list({}));
    (*list)->spent = true;
    return *list;
  }
  std::vector<Value> items;
  if (const DictPtr* dict = value.get<DictPtr>()) {
    items.reserve((*dict)->entries.size());
    for (const auto& entry : (*dict)->entries) items.push_back(entry.first);
    return share(this->list(std::move(items)));
  }
  if (const TextPtr* whole = value.get<TextPtr>()) {
    const std::string_view bytes = (*whole)->view();
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t next = at + character_length(bytes[at]);
      items.emplace_back(LOCKSTEP_TRY(slice(budget_, *whole, at, next)));
      at = next;
    }
    return share(this->list(std::move(items)));
  }
  if (value.is_undefined()) return share(this->list({}));
  return fail(ErrorKind::Invalid, "a value of type {} cannot be iterated over", type_name(value));
}

Result<std::int64_t> Runtime::length(const Value& value) {
  if (const Text* whole = value.text()) return static_cast<std::int64_t>(whole->characters);
  if (const Sequence* list = value.sequence(); list != nullptr && list->kind != SequenceKind::Generator) {
    return static_cast<std::int64_t>(list->items.size());
  }
  if (const Dict* mapping = value.dict()) return static_cast<std::int64_t>(mapping->entries.size());
  if (value.is_undefined()) return 0;
  return fail(ErrorKind::Invalid, "a value of type {} has no length", type_name(value));
}

Result<Parameters> Parameters::bind(std::string_view callee, const Arguments& arguments,
                                    std::initializer_list<std::string_view> names, std::size_t required) {
  Parameters bound;
  bound.callee_ = callee;
  bound.values_.resize(names.size());
  if (arguments.positional.size() > names.size()) {
    return fail(ErrorKind::Invalid, "{}() takes at most {} arguments, got {}", callee, names.size(),
                arguments.positional.size());
  }
  for (std::size_t i = 0; i < arguments.positional.size(); ++i) bound.values_[i] = &arguments.positional[i];
  for (const auto& [key, value] : arguments.named) {
    const auto* const found = std::find(names.begin(), names.end(), key);
    if (found == names.end()) {
      return fail(ErrorKind::Invalid, "{}() has no argument named '{}'", callee, std::string_view(key).substr(0, 60));
    }
    const Value*& slot = bound.values_[static_cast<std::size_t>(found - names.begin())];
    if (slot != nullptr) return fail(ErrorKind::Invalid, "{}(): argument '{}' is given twice", callee, key);
    slot = &value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (bound.values_[i] == nullptr) {
      return fail(ErrorKind::Invalid, "{}() needs the argument '{}'", callee, names.begin()[i]);
    }
  }
  return bound;
}

Result<std::int64_t> Parameters::integer(std::size_t index, std::int64_t otherwise) const {
  const Value* const value = values_[index];
  if (value == nullptr || value->is_none()) return otherwise;
  const std::optional<std::int64_t> number = LOCKSTEP_TRY(as_integer(*value));
  if (!number) return type_error(fmt::format("{}(): expected an integer", callee_), *value);
  return *number;
}

Result<TextPtr> Parameters::text(std::size_t index, std::string_view otherwise) const {
  const Value* const value = values_[index];
  if (value == nullptr) return make_constant(std::string(otherwise));
  if (const TextPtr* found = value->get<TextPtr>()) return *found;
  return type_error(fmt::format("{}(): expected a string", callee_), *value);
}

tl::unexpected<Error> type_error(std::string_view what, const Value& value) {
  if (value.is_undefined()) return undefined_error(value);
  return fail(ErrorKind::Invalid, "{}, got a value of type {}", what, type_name(value));
}

tl::unexpected<Error> undefined_error(const Value& value) {
  const Undefined* const absent = value.get<Undefined>();
  const Expr* const origin = absent->origin;
  if (absent->absence == Absence::Unsafe && origin != nullptr) {
    return fail(ErrorKind::Invalid, "access to the attribute '{}' is unsafe", origin->name);
  }
  if (absent->absence == Absence::Empty) return fail(ErrorKind::Invalid, "a value of an empty sequence is undefined");
  if (absent->absence == Absence::NoElse) {
    return fail(ErrorKind::Invalid, "the inline if was false and has no else");
  }
  if (origin != nullptr && origin->kind == ExprKind::Name) {
    return fail(ErrorKind::Invalid, "'{}' is undefined", origin->name);
  }
  if (origin != nullptr && origin->kind == ExprKind::Attribute) {
    return fail(ErrorKind::Invalid, "the attribute '{}' is undefined", origin->name);
  }
  if (absent->absence == Absence::Parameter) return fail(ErrorKind::Invalid, "a parameter was not provided");
  return fail(ErrorKind::Invalid, "a value is undefined");
}

Result<std::optional<std::int64_t>> as_integer(const Value& value) {
  if (const auto* number = value.get<std::int64_t>()) return *number;
  if (const auto* flag = value.get<bool>()) return *flag ? 1 : 0;
  if (value.get<BigInteger>() != nullptr) return fail(ErrorKind::Limit, "an integer beyond 63 bits");
  return std::nullopt;
}

}  // namespace lockstep::text::jinja
