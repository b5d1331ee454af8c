#include "text/jinja/predicates.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "text/jinja/filters.hpp"
#include "text/jinja/format.hpp"
#include "text/jinja/operators.hpp"
#include "text/jinja/unicode.hpp"

namespace lockstep::text::jinja {
namespace {

/// A test of the value alone.
template <bool (*kTest)(const Value&)>
Result<bool> plain(Runtime&, const Value& value, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("a test", arguments, {}));
  return kTest(value);
}

bool is_defined(const Value& value) {
  return !value.is_undefined();
}
bool is_undefined(const Value& value) {
  return value.is_undefined();
}
bool is_none(const Value& value) {
  return value.is_none();
}
bool is_boolean(const Value& value) {
  return value.get<bool>() != nullptr;
}
bool is_true(const Value& value) {
  return value.get<bool>() != nullptr && *value.get<bool>();
}
bool is_false(const Value& value) {
  return value.get<bool>() != nullptr && !*value.get<bool>();
}
bool is_integer(const Value& value) {
  return value.get<std::int64_t>() != nullptr || value.get<BigInteger>() != nullptr;
}
bool is_float(const Value& value) {
  return value.get<double>() != nullptr;
}
bool is_number(const Value& value) {
  return is_integer(value) || is_float(value) || is_boolean(value);
}
bool is_string(const Value& value) {
  return value.text() != nullptr;
}
bool is_mapping(const Value& value) {
  return value.dict() != nullptr;
}
bool is_callable(const Value& value) {
  return value.function() != nullptr || value.is_undefined();
}
bool is_never(const Value&) {
  return false;
}

bool is_iterable(const Value& value) {
  return is_string(value) || value.sequence() != nullptr || is_mapping(value) || value.is_undefined() ||
         value.loop() != nullptr;
}

/// Has a length and elements, as Jinja2 understands it: strings, dicts and undefined values do too.
bool is_sequence(const Value& value) {
  if (is_string(value) || is_mapping(value) || value.is_undefined()) return true;
  const Sequence* const list = value.sequence();
  return list != nullptr && list->kind != SequenceKind::Generator && list->kind != SequenceKind::Keys &&
         list->kind != SequenceKind::Values && list->kind != SequenceKind::Items;
}

/// Text in one case: some letter has it and none has the other.
template <bool kUpper>
Result<bool> one_case(Runtime& runtime, const Value& value, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("a test", arguments, {}));
  const TextPtr text = LOCKSTEP_TRY(to_text(runtime, value));
  LOCKSTEP_TRY(runtime.budget().spend_bytes(text->bytes.size()));
  bool some = false;
  for (std::size_t at = 0; at < text->bytes.size(); at += character_length(text->bytes[at])) {
    const char32_t c = character_at(text->view(), at);
    if ((kUpper ? is_lower(c) : is_upper(c)) || is_title(c)) return false;
    some |= kUpper ? is_upper(c) : is_lower(c);
  }
  return some;
}

template <Operator kOperator>
Result<bool> comparison(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("a comparison", arguments, {"other"}, 1));
  return compare_with(runtime, kOperator, value, *bound.get(0));
}

/// Whether the remainder by a number is a value.
Result<bool> remainder_is(Runtime& runtime, const Value& value, const Value& divisor, std::int64_t wanted) {
  if (value.text() != nullptr) return type_error("a test needs a number", value);
  const Value rest = LOCKSTEP_TRY(arithmetic(runtime, Operator::Modulo, value, divisor));
  return equal(runtime, rest, Value(wanted));
}

template <std::int64_t kRest>
Result<bool> parity(Runtime& runtime, const Value& value, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("a test", arguments, {}));
  return remainder_is(runtime, value, Value(std::int64_t{2}), kRest);
}

Result<bool> divisible(Runtime& runtime, const Value& value, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("divisibleby", arguments, {"num"}, 1));
  return remainder_is(runtime, value, *bound.get(0), 0);
}

/// Identity: the same object, or equal values of the types of which Python keeps one object.
Result<bool> same(Runtime&, const Value& value, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("sameas", arguments, {"other"}, 1));
  const Value& other = *bound.get(0);
  if (value.data().index() != other.data().index()) return false;
  if (value.is_none()) return true;
  if (const bool* flag = value.get<bool>()) return *flag == *other.get<bool>();
  if (const auto* number = value.get<std::int64_t>()) return *number == *other.get<std::int64_t>();
  if (const Text* text = value.text()) return text->bytes == other.text()->bytes;
  if (const Sequence* list = value.sequence()) return list == other.sequence();
  if (const Dict* dict = value.dict()) return dict == other.dict();
  return value.name_space() != nullptr && value.name_space() == other.name_space();
}

Result<bool> names_filter(Runtime&, const Value& value, const Arguments&) {
  return value.text() != nullptr && find_filter(value.text()->view()) != nullptr;
}

Result<bool> names_test(Runtime&, const Value& value, const Arguments&) {
  return value.text() != nullptr && find_predicate(value.text()->view()) != nullptr;
}

constexpr std::pair<std::string_view, Predicate> kPredicates[] = {
    {"defined", plain<is_defined>},
    {"undefined", plain<is_undefined>},
    {"none", plain<is_none>},
    {"boolean", plain<is_boolean>},
    {"true", plain<is_true>},
    {"false", plain<is_false>},
    {"integer", plain<is_integer>},
    {"float", plain<is_float>},
    {"number", plain<is_number>},
    {"string", plain<is_string>},
    {"mapping", plain<is_mapping>},
    {"callable", plain<is_callable>},
    {"iterable", plain<is_iterable>},
    {"sequence", plain<is_sequence>},
    {"escaped", plain<is_never>},
    {"lower", one_case<false>},
    {"upper", one_case<true>},
    {"odd", parity<1>},
    {"even", parity<0>},
    {"divisibleby", divisible},
    {"sameas", same},
    {"filter", names_filter},
    {"test", names_test},
    {"in", comparison<Operator::In>},
    {"==", comparison<Operator::Equal>},
    {"eq", comparison<Operator::Equal>},
    {"equalto", comparison<Operator::Equal>},
    {"!=", comparison<Operator::NotEqual>},
    {"ne", comparison<Operator::NotEqual>},
    {">", comparison<Operator::Greater>},
    {"gt", comparison<Operator::Greater>},
    {"greaterthan", comparison<Operator::Greater>},
    {">=", comparison<Operator::GreaterEqual>},
    {"ge", comparison<Operator::GreaterEqual>},
    {"<", comparison<Operator::Less>},
    {"lt", comparison<Operator::Less>},
    {"lessthan", comparison<Operator::Less>},
    {"<=", comparison<Operator::LessEqual>},
    {"le", comparison<Operator::LessEqual>},
};

}  // namespace

Predicate find_predicate(std::string_view name) {
  for (const auto& [known, predicate] : kPredicates) {
    if (known == name) return predicate;
  }
  return nullptr;
}

}  // namespace lockstep::text::jinja
