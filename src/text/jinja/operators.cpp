#include "text/jinja/operators.hpp"

#include <cmath>

#include "base/checked.hpp"
#include "text/jinja/format.hpp"
#include "text/jinja/unicode.hpp"

namespace lockstep::text::jinja {
namespace {

std::string_view symbol_of(Operator op) {
  switch (op) {
    case Operator::Add:
      return "+";
    case Operator::Subtract:
      return "-";
    case Operator::Multiply:
      return "*";
    case Operator::Divide:
      return "/";
    case Operator::FloorDivide:
      return "//";
    case Operator::Modulo:
      return "%";
    default:
      return "**";
  }
}

tl::unexpected<Error> unsupported(Operator op, const Value& left, const Value& right) {
  if (left.is_undefined()) return undefined_error(left);
  if (right.is_undefined()) return undefined_error(right);
  return fail(ErrorKind::Invalid, "unsupported operand types for {}: {} and {}", symbol_of(op), type_name(left),
              type_name(right));
}

tl::unexpected<Error> integer_overflow() {
  return fail(ErrorKind::Limit, "an integer beyond 64 bits");
}
tl::unexpected<Error> zero_division() {
  return fail(ErrorKind::Invalid, "division by zero");
}

Result<Value> checked(std::optional<std::int64_t> number) {
  if (!number) return integer_overflow();
  return Value(*number);
}

Result<Value> integer_power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return zero_division();
    return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  std::int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return integer_overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return integer_overflow();
  }
  return Value(result);
}

Result<Value> integers(Operator op, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  switch (op) {
    case Operator::Add:
      return checked(checked_add(a, b));
    case Operator::Subtract:
      return __builtin_sub_overflow(a, b, &out) ? Result<Value>(integer_overflow()) : Value(out);
    case Operator::Multiply:
      return checked(checked_mul(a, b));
    case Operator::Power:
      return integer_power(a, b);
    default:
      break;
  }
  if (b == 0) return zero_division();
  if (op == Operator::Divide) return Value(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) {  // INT64_MIN / -1 overflows, and its remainder traps
    if (op == Operator::Modulo) return Value(std::int64_t{0});
    return __builtin_sub_overflow(std::int64_t{0}, a, &out) ? Result<Value>(integer_overflow()) : Value(out);
  }
  std::int64_t quotient = a / b, rest = a % b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    --quotient;
    rest += b;
  }
  return Value(op == Operator::FloorDivide ? quotient : rest);
}

/// Python's // and % of floats: the remainder has the sign of the divisor and the quotient is a whole number.
Result<Value> float_division(Operator op, double a, double b) {
  double rest = std::fmod(a, b);
  double quotient = (a - rest) / b;
  if (rest != 0) {
    if ((b < 0) != (rest < 0)) {
      rest += b;
      quotient -= 1;
    }
  } else {
    rest = std::copysign(0.0, b);
  }
  if (op == Operator::Modulo) return Value(rest);
  if (quotient == 0) return Value(std::copysign(0.0, a / b));
  double whole = std::floor(quotient);
  if (quotient - whole > 0.5) whole += 1;
  return Value(whole);
}

Result<Value> floats(Operator op, double a, double b) {
  switch (op) {
    case Operator::Add:
      return Value(a + b);
    case Operator::Subtract:
      return Value(a - b);
    case Operator::Multiply:
      return Value(a * b);
    case Operator::Power: {
      if (a == 0 && b < 0) return zero_division();
      if (a < 0 && std::isfinite(a) && std::isfinite(b) && b != std::floor(b)) {
        return fail(ErrorKind::Unsupported, "a complex number");
      }
      const double power = std::pow(a, b);
      if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) {
        return fail(ErrorKind::Invalid, "the result of ** is too large");
      }
      return Value(power);
    }
    default:
      break;
  }
  if (b == 0) return zero_division();
  return op == Operator::Divide ? Result<Value>(Value(a / b)) : float_division(op, a, b);
}

Result<Value> repeat(Runtime& runtime, const Value& value, std::int64_t times) {
  const auto count = static_cast<std::uint64_t>(std::max<std::int64_t>(times, 0));
  if (const TextPtr* text = value.get<TextPtr>()) {
    const auto size = checked_mul<std::uint64_t>((*text)->bytes.size(), count);
    if (!size || !runtime.budget().fits(*size)) return fail(ErrorKind::Limit, "a text repeated {} times", count);
    LOCKSTEP_TRY(runtime.budget().spend_bytes(*size));
    TextBuilder builder(runtime.budget());
    // An empty text would otherwise make this loop long for nothing.
    for (std::uint64_t i = 0; *size > 0 && i < count && !builder.full(); ++i) builder.append(**text);
    return Value(LOCKSTEP_TRY(builder.finish()));
  }
  const Sequence& list = *value.sequence();
  const auto size = checked_mul<std::uint64_t>(list.items.size(), count);
  if (!size || *size > SIZE_MAX / sizeof(Value) || !runtime.budget().fits(*size * sizeof(Value))) {
    return fail(ErrorKind::Limit, "a list repeated {} times", count);
  }
  LOCKSTEP_TRY(runtime.budget().spend(*size));
  std::vector<Value> items;
  items.reserve(*size);
  for (std::uint64_t i = 0; *size > 0 && i < count; ++i) {
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return runtime.sequence(list.kind == SequenceKind::List ? SequenceKind::List : SequenceKind::Tuple, std::move(items));
}

bool is_repeatable(const Value& value) {
  return value.text() != nullptr || is_list(value) || is_tuple(value);
}

Result<Value> concatenate(Runtime& runtime, const Value& left, const Value& right) {
  if (left.text() != nullptr && right.text() != nullptr) {
    TextBuilder builder(runtime.budget());
    builder.append(*left.text());
    builder.append(*right.text());
    return Value(LOCKSTEP_TRY(builder.finish()));
  }
  if ((is_list(left) && is_list(right)) || (is_tuple(left) && is_tuple(right))) {
    const Sequence &first = *left.sequence(), &second = *right.sequence();
    const std::size_t size = first.items.size() + second.items.size();
    if (!runtime.budget().fits(size * sizeof(Value))) return fail(ErrorKind::Limit, "a list that is too long");
    LOCKSTEP_TRY(runtime.budget().spend(size));
    std::vector<Value> items;
    items.reserve(size);
    items.insert(items.end(), first.items.begin(), first.items.end());
    items.insert(items.end(), second.items.begin(), second.items.end());
    return runtime.sequence(is_list(left) ? SequenceKind::List : SequenceKind::Tuple, std::move(items));
  }
  return unsupported(Operator::Add, left, right);
}

/// A number as a float; nothing for other types.
std::optional<double> as_float(const Value& value) {
  if (const auto* real = value.get<double>()) return *real;
  if (const auto* number = value.get<std::int64_t>()) return static_cast<double>(*number);
  if (const auto* flag = value.get<bool>()) return *flag ? 1.0 : 0.0;
  if (const auto* big = value.get<BigInteger>()) return static_cast<double>(big->value);
  return std::nullopt;
}

/// A number in a type that holds every integer and every float of ours exactly.
std::optional<long double> as_exact(const Value& value) {
  if (const auto* real = value.get<double>()) return *real;
  if (const auto* number = value.get<std::int64_t>()) return static_cast<long double>(*number);
  if (const auto* flag = value.get<bool>()) return *flag ? 1.0L : 0.0L;
  if (const auto* big = value.get<BigInteger>()) return static_cast<long double>(big->value);
  return std::nullopt;
}

Result<bool> equal_sequences(Runtime& runtime, const Sequence& left, const Sequence& right) {
  const bool tuples = (left.kind == SequenceKind::Tuple || left.kind == SequenceKind::Group) &&
                      (right.kind == SequenceKind::Tuple || right.kind == SequenceKind::Group);
  const bool comparable = left.kind == right.kind && left.kind != SequenceKind::Generator;
  if ((!tuples && !comparable) || left.items.size() != right.items.size()) return false;
  for (std::size_t i = 0; i < left.items.size(); ++i) {
    if (!LOCKSTEP_TRY(equal(runtime, left.items[i], right.items[i]))) return false;
  }
  return true;
}

Result<bool> equal_dicts(Runtime& runtime, const Dict& left, const Dict& right) {
  if (left.entries.size() != right.entries.size()) return false;
  for (const auto& [key, value] : left.entries) {
    const std::size_t at = LOCKSTEP_TRY(find_key(runtime, right.entries, key));
    if (at == right.entries.size()) return false;
    if (!LOCKSTEP_TRY(equal(runtime, value, right.entries[at].second))) return false;
  }
  return true;
}

/// Whether a value can be a key. Tuples may share elements, so the walk over them is charged.
Result<bool> is_hashable(Runtime& runtime, const Value& value) {
  const Sequence* const list = value.sequence();
  if (list == nullptr) return value.dict() == nullptr;
  if (list->kind == SequenceKind::Range || list->kind == SequenceKind::Generator) return true;
  if (!is_tuple(value)) return false;
  for (const Value& item : list->items) {
    LOCKSTEP_TRY(runtime.budget().spend(1));
    if (!LOCKSTEP_TRY(is_hashable(runtime, item))) return false;
  }
  return true;
}

/// Equality of two values of which not both are collections.
bool equal_scalars(const Value& left, const Value& right) {
  if (const Text* text = left.text()) return right.text() != nullptr && text->bytes == right.text()->bytes;
  if (const auto a = as_exact(left)) {
    const auto b = as_exact(right);
    return b && *a == *b;
  }
  if (left.is_none() || left.is_undefined()) return left.data().index() == right.data().index();
  if (left.name_space() != nullptr) return left.name_space() == right.name_space();
  if (left.loop() != nullptr) return left.loop() == right.loop();
  return left.function() != nullptr && left.function() == right.function();
}

}  // namespace

Result<Value> arithmetic(Runtime& runtime, Operator op, const Value& left, const Value& right) {
  if (op == Operator::Modulo && left.text() != nullptr) return percent_format(runtime, *left.text(), right);
  const auto a = as_float(left), b = as_float(right);
  if (a && b) {
    if (left.get<double>() != nullptr || right.get<double>() != nullptr) return floats(op, *a, *b);
    const auto first = LOCKSTEP_TRY(as_integer(left)), second = LOCKSTEP_TRY(as_integer(right));
    return integers(op, *first, *second);
  }
  if (op == Operator::Add) return concatenate(runtime, left, right);
  if (op == Operator::Multiply && (is_repeatable(left) || is_repeatable(right))) {
    const bool swapped = !is_repeatable(left);
    const auto times = LOCKSTEP_TRY(as_integer(swapped ? left : right));
    if (times) return repeat(runtime, swapped ? right : left, *times);
  }
  return unsupported(op, left, right);
}

Result<Value> negate(const Value& value) {
  if (const auto* real = value.get<double>()) return Value(-*real);
  const auto number = LOCKSTEP_TRY(as_integer(value));
  if (!number) return type_error("a sign needs a number", value);
  return integers(Operator::Subtract, 0, *number);
}

Result<bool> equal(Runtime& runtime, const Value& left, const Value& right) {
  LOCKSTEP_TRY(runtime.budget().spend(1));
  if (left.sequence() != nullptr && right.sequence() != nullptr) {
    if (left.sequence() == right.sequence()) return true;
    return equal_sequences(runtime, *left.sequence(), *right.sequence());
  }
  if (left.dict() != nullptr && right.dict() != nullptr) {
    if (left.dict() == right.dict()) return true;
    return equal_dicts(runtime, *left.dict(), *right.dict());
  }
  if (left.text() != nullptr && right.text() != nullptr && left.text()->bytes.size() == right.text()->bytes.size()) {
    LOCKSTEP_TRY(runtime.budget().spend_bytes(left.text()->bytes.size()));
  }
  return equal_scalars(left, right);
}

Result<std::partial_ordering> compare(Runtime& runtime, const Value& left, const Value& right) {
  LOCKSTEP_TRY(runtime.budget().spend(1));
  const auto a = as_exact(left), b = as_exact(right);
  if (a && b) return *a <=> *b;
  if (left.text() != nullptr && right.text() != nullptr) {
    LOCKSTEP_TRY(runtime.budget().spend_bytes(left.text()->bytes.size()));
    // The order of UTF-8 bytes is the order of code points.
    return left.text()->bytes.compare(right.text()->bytes) <=> 0;
  }
  if ((is_list(left) && is_list(right)) || (is_tuple(left) && is_tuple(right))) {
    const Sequence &first = *left.sequence(), &second = *right.sequence();
    for (std::size_t i = 0; i < std::min(first.items.size(), second.items.size()); ++i) {
      if (LOCKSTEP_TRY(equal(runtime, first.items[i], second.items[i]))) continue;
      return compare(runtime, first.items[i], second.items[i]);
    }
    return first.items.size() <=> second.items.size();
  }
  if (left.is_undefined()) return undefined_error(left);
  if (right.is_undefined()) return undefined_error(right);
  return fail(ErrorKind::Invalid, "values of types {} and {} have no order", type_name(left), type_name(right));
}

Result<bool> compare_with(Runtime& runtime, Operator op, const Value& left, const Value& right) {
  switch (op) {
    case Operator::Equal:
      return equal(runtime, left, right);
    case Operator::NotEqual:
      return !LOCKSTEP_TRY(equal(runtime, left, right));
    case Operator::In:
      return contains(runtime, right, left);
    case Operator::NotIn:
      return !LOCKSTEP_TRY(contains(runtime, right, left));
    default:
      break;
  }
  const std::partial_ordering order = LOCKSTEP_TRY(compare(runtime, left, right));
  if (op == Operator::Less) return order < 0;
  if (op == Operator::LessEqual) return order <= 0;
  return op == Operator::Greater ? order > 0 : order >= 0;
}

Result<bool> contains(Runtime& runtime, const Value& container, const Value& item) {
  if (const Text* text = container.text()) {
    if (item.text() == nullptr) return type_error("in: a string can only contain strings", item);
    LOCKSTEP_TRY(runtime.budget().spend_bytes(text->bytes.size()));
    return find_text(text->view(), item.text()->view()) != std::string_view::npos;
  }
  if (const Dict* dict = container.dict()) {
    return LOCKSTEP_TRY(find_key(runtime, dict->entries, item)) < dict->entries.size();
  }
  const SequencePtr items = LOCKSTEP_TRY(runtime.iterate(container));
  for (const Value& candidate : items->items) {
    if (LOCKSTEP_TRY(equal(runtime, candidate, item))) return true;
  }
  return false;
}

Result<std::size_t> find_key(Runtime& runtime, const std::vector<std::pair<Value, Value>>& entries, const Value& key) {
  LOCKSTEP_TRY(runtime.budget().spend(1 + entries.size() / 4));
  std::size_t at = 0;
  if (const Text* text = key.text()) {
    const auto same = [&](const Text* other) { return other != nullptr && other->bytes == text->bytes; };
    while (at < entries.size() && !same(entries[at].first.text())) ++at;
    return at;
  }
  if (!LOCKSTEP_TRY(is_hashable(runtime, key))) {
    return fail(ErrorKind::Invalid, "a value of type {} cannot be a key of a dict", type_name(key));
  }
  while (at < entries.size() && !LOCKSTEP_TRY(equal(runtime, entries[at].first, key))) ++at;
  return at;
}

const Value* find_text_key(const Dict& dict, std::string_view key) {
  for (const auto& [name, value] : dict.entries) {
    if (name.text() != nullptr && name.text()->bytes == key) return &value;
  }
  return nullptr;
}

}  // namespace lockstep::text::jinja
