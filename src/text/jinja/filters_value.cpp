// Filters on single values: numbers, defaults, JSON.

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "text/jinja/access.hpp"
#include "text/jinja/filters.hpp"
#include "text/jinja/format.hpp"
#include "text/jinja/operators.hpp"
#include "text/jinja/text_operations.hpp"
#include "text/jinja/tojson.hpp"
#include "text/jinja/unicode.hpp"

namespace lockstep::text::jinja {
namespace {

constexpr std::size_t kMaxNumberText = 400;

Result<Value> default_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("default", arguments, {"default_value", "boolean"}));
  if (!input.is_undefined() && (!bound.truth(1, false) || is_truthy(input))) return input;
  return bound.get(0) == nullptr ? runtime.text("") : Result<Value>(*bound.get(0));
}

Result<Value> length_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("length", arguments, {}));
  return Value(LOCKSTEP_TRY(runtime.length(input)));
}

Result<Value> abs_filter(Runtime&, const Value& input, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("abs", arguments, {}));
  if (const double* real = input.get<double>()) return Value(std::abs(*real));
  if (input.get<BigInteger>() != nullptr) return input;
  const auto number = LOCKSTEP_TRY(as_integer(input));
  if (!number) return type_error("abs: expected a number", input);
  return *number < 0 ? negate(Value(*number)) : Value(*number);
}

/// The digits of a number's text as Python reads them: blanks around, underscores between digits.
std::optional<std::string> number_text(const Text& text) {
  if (text.bytes.size() > kMaxNumberText) return std::nullopt;
  const std::string_view bytes = text.view();
  const std::size_t begin = skip_space(bytes, 0);
  const std::size_t end = std::max(begin, trim_space_end(bytes, bytes.size()));
  std::string out;
  for (std::size_t i = begin; i < end; ++i) {
    const bool digit_before = i > begin && std::isalnum(static_cast<unsigned char>(bytes[i - 1])) != 0;
    const bool digit_after = i + 1 < end && std::isalnum(static_cast<unsigned char>(bytes[i + 1])) != 0;
    if (bytes[i] == '_' && !(digit_before && digit_after)) return std::nullopt;
    if (bytes[i] != '_') out.push_back(bytes[i]);
  }
  return out;
}

std::optional<double> parse_float(const Text& text) {
  const auto body = number_text(text);
  if (!body || body->empty()) return std::nullopt;
  // strtod also reads hexadecimal numbers and "nan(...)", which Python does not.
  if (body->find_first_of("xX(pP") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double number = std::strtod(body->c_str(), &end);
  return end == body->c_str() + body->size() ? std::optional(number) : std::nullopt;
}

/// int(text, base); nothing if it is no integer. Errors: Limit.
Result<std::optional<std::int64_t>> parse_integer(const Text& text, std::int64_t base) {
  auto body = number_text(text);
  if (!body || body->empty() || (base != 0 && (base < 2 || base > 36))) return std::nullopt;
  const bool negative = (*body)[0] == '-';
  std::size_t at = negative || (*body)[0] == '+' ? 1 : 0;
  const char mark = body->size() > at + 1 && (*body)[at] == '0' ? static_cast<char>((*body)[at + 1] | 0x20) : '\0';
  const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
  if (marked != 0 && (base == 0 || base == marked)) {
    base = marked;
    at += 2;
  }
  const std::string digits = fmt::format("{}{}", negative ? "-" : "", std::string_view(*body).substr(at));
  if (body->size() == at || (*body)[at] == '-' || (*body)[at] == '+') return std::nullopt;
  std::int64_t number = 0;
  const char* const end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, number, base == 0 ? 10 : static_cast<int>(base));
  if (parsed.ptr != end || parsed.ec == std::errc::invalid_argument) return std::nullopt;
  if (parsed.ec != std::errc()) return fail(ErrorKind::Limit, "an integer beyond 64 bits");
  return number;
}

Result<Value> truncated(double number, const Value& otherwise) {
  if (!std::isfinite(number)) return otherwise;
  if (std::abs(number) >= 9.2e18) return fail(ErrorKind::Limit, "an integer beyond 64 bits");
  return Value(static_cast<std::int64_t>(number));
}

Result<Value> int_filter(Runtime&, const Value& input, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("int", arguments, {"default", "base"}));
  const Value otherwise = bound.get(0) == nullptr ? Value(std::int64_t{0}) : *bound.get(0);
  const std::int64_t base = LOCKSTEP_TRY(bound.integer(1, 10));
  if (input.is_undefined()) return undefined_error(input);
  if (const Text* text = input.text()) {
    const auto number = LOCKSTEP_TRY(parse_integer(*text, base));
    if (number) return Value(*number);
    const auto real = parse_float(*text);
    return real ? truncated(*real, otherwise) : otherwise;
  }
  if (const double* real = input.get<double>()) return truncated(*real, otherwise);
  if (input.get<BigInteger>() != nullptr) return input;
  const auto number = LOCKSTEP_TRY(as_integer(input));
  return number ? Value(*number) : otherwise;
}

Result<Value> float_filter(Runtime&, const Value& input, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("float", arguments, {"default"}));
  const Value otherwise = bound.get(0) == nullptr ? Value(0.0) : *bound.get(0);
  if (input.is_undefined()) return undefined_error(input);
  if (input.get<double>() != nullptr) return input;
  if (const auto* big = input.get<BigInteger>()) return Value(static_cast<double>(big->value));
  if (const Text* text = input.text()) {
    const auto number = parse_float(*text);
    return number ? Value(*number) : otherwise;
  }
  const auto number = LOCKSTEP_TRY(as_integer(input));
  return number ? Value(static_cast<double>(*number)) : otherwise;
}

/// round(number, digits) of Python: to the nearest decimal, exact ties to even, by way of the exact decimal digits.
double round_decimal(double number, std::int64_t digits) {
  if (!std::isfinite(number) || digits > 300) return number;
  if (digits < -310) return std::copysign(0.0, number);
  if (digits < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-digits));
    return std::nearbyint(number / scale) * scale;
  }
  char buffer[800];
  std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(digits), number);
  return std::strtod(buffer, nullptr);
}

Result<Value> round_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("round", arguments, {"precision", "method"}));
  const std::int64_t digits = LOCKSTEP_TRY(bound.integer(0, 0));
  const TextPtr method = LOCKSTEP_TRY(bound.text(1, "common"));
  const double* const real = input.get<double>();
  const auto whole = real != nullptr ? std::nullopt : LOCKSTEP_TRY(as_integer(input));
  if (real == nullptr && !whole) return type_error("round: expected a number", input);
  if (method->bytes == "common") {
    if (real != nullptr) return Value(round_decimal(*real, digits));
    if (digits >= 0) return Value(*whole);
    return fail(ErrorKind::Unsupported, "round: whole numbers with a negative precision");
  }
  if (method->bytes != "ceil" && method->bytes != "floor") {
    return fail(ErrorKind::Invalid, "round: the method must be common, ceil or floor");
  }
  // Jinja2 computes func(value * 10 ** precision) / 10 ** precision, in this order.
  const Value ten(std::int64_t{10});
  const Value scale = LOCKSTEP_TRY(arithmetic(runtime, Operator::Power, ten, Value(digits)));
  const Value scaled = LOCKSTEP_TRY(arithmetic(runtime, Operator::Multiply, input, scale));
  Value moved = scaled;
  if (const double* number = scaled.get<double>()) {
    if (!(std::abs(*number) < 9.2e18)) return fail(ErrorKind::Limit, "an integer beyond 64 bits");
    moved = Value(static_cast<std::int64_t>(method->bytes == "ceil" ? std::ceil(*number) : std::floor(*number)));
  }
  return arithmetic(runtime, Operator::Divide, moved, scale);
}

Result<Value> attr_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("attr", arguments, {"name"}, 1));
  const TextPtr name = LOCKSTEP_TRY(bound.text(0));
  return get_field(runtime, input, name->view(), nullptr);
}

Result<JsonStyle> json_style(Runtime& runtime, const Parameters& bound) {
  JsonStyle style;
  style.ensure_ascii = bound.truth(0, false);
  style.sort_keys = bound.truth(3, false);
  const Value* const indent = bound.get(1);
  if (indent != nullptr && indent->text() != nullptr) {
    style.indent = *indent->get<TextPtr>();
  } else if (indent != nullptr && !indent->is_none()) {
    TextBuilder level(runtime.budget());
    const std::int64_t width = LOCKSTEP_TRY(bound.integer(1, 0));
    LOCKSTEP_TRY(append_fill(runtime, level, " ", width));
    style.indent = LOCKSTEP_TRY(level.finish());
  }
  style.item_separator = make_constant(style.indent ? "," : ", ");
  style.key_separator = make_constant(": ");
  const Value* const separators = bound.get(2);
  if (separators == nullptr || separators->is_none()) return style;
  const Sequence* const pair = separators->sequence();
  if (pair == nullptr || pair->items.size() != 2 || pair->items[0].text() == nullptr ||
      pair->items[1].text() == nullptr) {
    return fail(ErrorKind::Invalid, "tojson: separators must be two strings");
  }
  style.item_separator = *pair->items[0].get<TextPtr>();
  style.key_separator = *pair->items[1].get<TextPtr>();
  return style;
}

Result<Value> tojson_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto bound =
      LOCKSTEP_TRY(Parameters::bind("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  const JsonStyle style = LOCKSTEP_TRY(json_style(runtime, bound));
  return to_json(runtime, input, style);
}

constexpr std::pair<std::string_view, FilterFunction> kValueFilters[] = {
    {"default", default_filter}, {"d", default_filter},     {"length", length_filter}, {"count", length_filter},
    {"abs", abs_filter},         {"int", int_filter},       {"float", float_filter},   {"round", round_filter},
    {"attr", attr_filter},       {"tojson", tojson_filter},
};

}  // namespace

FilterTable value_filters() {
  return kValueFilters;
}

}  // namespace lockstep::text::jinja
