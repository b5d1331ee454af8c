// Python's two format languages, "%s of %d" and "{} of {}".

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "text/jinja/format.hpp"
#include "text/jinja/operators.hpp"
#include "text/jinja/unicode.hpp"

namespace lockstep::text::jinja {
namespace {

constexpr std::int64_t kMaxWidth = 10'000;
constexpr int kMaxPrecision = 100;

/// One conversion of either language.
struct Spec {
  std::string_view fill = " ";
  char align = 0;  ///< < > ^ =
  char sign = '-';
  bool alternate = false, zero = false, comma = false;
  std::int64_t width = 0;
  int precision = -1;
  char type = 0;
};

tl::unexpected<Error> bad_format(std::string_view why) {
  return fail(ErrorKind::Invalid, "a format string is wrong: {}", why);
}

/// Decimal digits at `at`, which is moved past them. Errors: Limit.
Result<std::int64_t> read_number(std::string_view text, std::size_t& at) {
  std::int64_t number = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    number = number * 10 + (text[at] - '0');
    if (number > kMaxWidth) return fail(ErrorKind::Limit, "a format string asks for more than {} columns", kMaxWidth);
  }
  return number;
}

Status read_precision(std::string_view text, std::size_t& at, Spec& spec) {
  if (at >= text.size() || text[at] != '.') return {};
  ++at;
  spec.precision = static_cast<int>(LOCKSTEP_TRY(read_number(text, at)));
  return {};
}

/// The number with commas between the thousands of its whole part.
std::string group_thousands(const std::string& digits) {
  const std::size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  std::string out;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && i < end && (end - i) % 3 == 0) out.push_back(',');
    out.push_back(digits[i]);
  }
  return out;
}

std::string based(std::uint64_t magnitude, unsigned base, bool upper) {
  const char* const symbols = upper ? "0123456789ABCDEF" : "0123456789abcdef";
  std::string digits;
  do digits.push_back(symbols[magnitude % base]);
  while ((magnitude /= base) != 0);
  std::reverse(digits.begin(), digits.end());
  return digits;
}

/// The digits of an absolute value under an integer type, with the prefix of the alternate form.
std::string integer_digits(std::uint64_t magnitude, const Spec& spec) {
  const auto with_prefix = [&](std::string_view prefix, std::string digits) {
    return spec.alternate ? fmt::format("{}{}", prefix, digits) : digits;
  };
  switch (spec.type) {
    case 'x':
      return with_prefix("0x", based(magnitude, 16, false));
    case 'X':
      return with_prefix("0X", based(magnitude, 16, true));
    case 'o':
      return with_prefix("0o", based(magnitude, 8, false));
    case 'b':
      return with_prefix("0b", based(magnitude, 2, false));
    default:
      return std::to_string(magnitude);
  }
}

Result<std::string> float_digits(double magnitude, const Spec& spec) {
  if (spec.precision > kMaxPrecision) return fail(ErrorKind::Limit, "more than {} digits of a number", kMaxPrecision);
  if (std::isnan(magnitude)) return std::string("nan");
  if (std::isinf(magnitude)) return std::string("inf");
  const bool percent = spec.type == '%';
  const std::string conversion = fmt::format("%{}.*{}", spec.alternate ? "#" : "", percent ? 'f' : spec.type);
  char buffer[512];
  const int size = std::snprintf(buffer, sizeof(buffer), conversion.c_str(), spec.precision < 0 ? 6 : spec.precision,
                                 percent ? magnitude * 100 : magnitude);
  if (size < 0 || static_cast<std::size_t>(size) >= sizeof(buffer)) return bad_format("a number does not fit");
  return fmt::format("{}{}", buffer, percent ? "%" : "");
}

/// Pads to the width; `sign` stays before zeros.
Status pad(TextBuilder& out, const Text& body, const std::string& sign, const Spec& spec) {
  const auto size = static_cast<std::int64_t>(body.characters + sign.size());
  const std::int64_t missing = std::max<std::int64_t>(spec.width - size, 0);
  const std::int64_t before = spec.align == '<' ? 0 : spec.align == '^' ? missing / 2 : missing;
  if (spec.align == '=') out.append(sign);
  for (std::int64_t i = 0; i < before; ++i) out.append(spec.fill);
  if (spec.align != '=') out.append(sign);
  out.append(body);
  for (std::int64_t i = before; i < missing; ++i) out.append(spec.fill);
  return {};
}

Status pad_number(TextBuilder& out, std::string digits, bool negative, Spec spec) {
  if (spec.comma) digits = group_thousands(digits);
  if (spec.zero && spec.align == 0) {
    spec.fill = "0";
    spec.align = '=';
  }
  if (spec.align == 0) spec.align = '>';
  const std::string sign = negative ? "-" : spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  return pad(out, *make_constant(std::move(digits)), sign, spec);
}

Status put_integer(TextBuilder& out, std::int64_t number, const Spec& spec) {
  const auto bits = static_cast<std::uint64_t>(number);
  return pad_number(out, integer_digits(number < 0 ? 0 - bits : bits, spec), number < 0, spec);
}

Status put_float(TextBuilder& out, double number, const Spec& spec) {
  std::string digits = LOCKSTEP_TRY(float_digits(std::abs(number), spec));
  return pad_number(out, std::move(digits), std::signbit(number), spec);
}

/// A text cut to the precision and padded.
Status put_text(Runtime& runtime, TextBuilder& out, const TextPtr& text, Spec spec) {
  TextPtr body = text;
  if (spec.precision >= 0 && static_cast<std::size_t>(spec.precision) < text->characters) {
    body = LOCKSTEP_TRY(slice(runtime.budget(), text, 0, text->byte_of(static_cast<std::size_t>(spec.precision))));
  }
  return pad(out, *body, "", spec);
}

Result<double> need_float(const Value& value) {
  if (const auto* real = value.get<double>()) return *real;
  const auto number = LOCKSTEP_TRY(as_integer(value));
  if (!number) return type_error("a format string needs a number", value);
  return static_cast<double>(*number);
}

Result<TextPtr> repr_text(Runtime& runtime, const Value& value) {
  TextBuilder builder(runtime.budget());
  LOCKSTEP_TRY(append_repr(runtime, value, builder));
  return builder.finish();
}

/// Walks a "%" format and takes its arguments.
class PercentFormatter {
 public:
  PercentFormatter(Runtime& runtime, const Text& format, const Value& arguments)
      : runtime_(runtime), format_(format), text_(format.view()), arguments_(arguments), out_(runtime.budget()) {
    if (is_tuple(arguments)) positional_ = arguments.sequence();
  }

  Result<Value> run() {
    while (at_ < text_.size()) {
      const std::size_t mark = std::min(text_.find('%', at_), text_.size());
      out_.append(format_, at_, mark);
      at_ = mark + 1;
      if (mark < text_.size()) LOCKSTEP_TRY(conversion());
    }
    // Python does not mind unused arguments that could have been looked up by name; lists count among these.
    const bool by_name = arguments_.dict() != nullptr || arguments_.is_undefined() ||
                         (arguments_.sequence() != nullptr && positional_ == nullptr);
    const std::size_t given = positional_ != nullptr ? positional_->items.size() : 1;
    if (used_ < given && !by_name) return bad_format("not all arguments are used");
    return Value(LOCKSTEP_TRY(out_.finish()));
  }

 private:
  Result<Value> next() {
    if (positional_ == nullptr && used_ == 0) {
      ++used_;
      return arguments_;
    }
    if (positional_ == nullptr || used_ >= positional_->items.size()) return bad_format("too few arguments");
    return positional_->items[used_++];
  }

  Result<Value> named() {
    const std::size_t end = text_.find(')', at_);
    if (end == std::string_view::npos) return bad_format("a name has no )");
    const std::string_view name = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    if (arguments_.dict() == nullptr) return bad_format("names need a dict");
    const Value* const found = find_text_key(*arguments_.dict(), name);
    if (found == nullptr) return bad_format("a name is missing in the dict");
    return *found;
  }

  Status flags(Spec& spec) {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '-') {
        spec.align = '<';
      } else if (c == '0') {
        spec.zero = true;
      } else if (c == '+' || (c == ' ' && spec.sign != '+')) {
        spec.sign = c;
      } else if (c == '#') {
        spec.alternate = true;
      } else if (c != ' ') {
        break;
      }
    }
    spec.width = LOCKSTEP_TRY(read_number(text_, at_));
    return read_precision(text_, at_, spec);
  }

  Status conversion() {
    LOCKSTEP_TRY(runtime_.budget().spend(1));
    if (at_ < text_.size() && text_[at_] == '%') {
      out_.append(format_, at_, at_ + 1);
      ++at_;
      return {};
    }
    Value value;
    const bool is_named = at_ < text_.size() && text_[at_] == '(';
    if (is_named) value = LOCKSTEP_TRY(named());
    Spec spec;
    LOCKSTEP_TRY(flags(spec));
    if (at_ >= text_.size()) return bad_format("it ends within a conversion");
    spec.type = text_[at_++];
    if (!is_named) value = LOCKSTEP_TRY(next());
    return put(value, spec);
  }

  Status put(const Value& value, Spec spec) {
    static constexpr std::string_view kIntegers = "diuxXo", kFloats = "feEgGF";
    if (spec.type == 's' || spec.type == 'r') {
      const TextPtr text = LOCKSTEP_TRY(spec.type == 's' ? to_text(runtime_, value) : repr_text(runtime_, value));
      return put_text(runtime_, out_, text, spec);
    }
    if (kFloats.find(spec.type) != std::string_view::npos) {
      const double number = LOCKSTEP_TRY(need_float(value));
      return put_float(out_, number, spec);
    }
    if (kIntegers.find(spec.type) == std::string_view::npos) return bad_format("an unknown conversion");
    const double* const real = value.get<double>();
    if (real != nullptr && spec.type != 'x' && spec.type != 'X' && spec.type != 'o') {
      if (!(std::abs(*real) < 9e18)) return fail(ErrorKind::Limit, "an integer beyond 63 bits");
      return put_integer(out_, static_cast<std::int64_t>(*real), spec);
    }
    const auto number = LOCKSTEP_TRY(as_integer(value));
    if (!number) return type_error("a format string needs a number", value);
    return put_integer(out_, *number, spec);
  }

  Runtime& runtime_;
  const Text& format_;
  std::string_view text_;
  const Value& arguments_;
  const Sequence* positional_ = nullptr;
  std::size_t used_ = 0, at_ = 0;
  TextBuilder out_;
};

/// Walks a "{}" format.
class BraceFormatter {
 public:
  BraceFormatter(Runtime& runtime, const Text& format, const Arguments& arguments)
      : runtime_(runtime), format_(format), text_(format.view()), arguments_(arguments), out_(runtime.budget()) {}

  Result<Value> run() {
    while (at_ < text_.size()) {
      const std::size_t mark = std::min(text_.find_first_of("{}", at_), text_.size());
      out_.append(format_, at_, mark);
      at_ = mark + 1;
      if (mark == text_.size()) break;
      if (at_ < text_.size() && text_[at_] == text_[mark]) {  // a doubled brace
        out_.append(format_, at_, at_ + 1);
        ++at_;
      } else if (text_[mark] == '}') {
        return bad_format("a single }");
      } else {
        LOCKSTEP_TRY(field());
      }
    }
    return Value(LOCKSTEP_TRY(out_.finish()));
  }

 private:
  Status field() {
    LOCKSTEP_TRY(runtime_.budget().spend(1));
    const std::size_t end = text_.find('}', at_);
    if (end == std::string_view::npos) return bad_format("a { has no }");
    const std::string_view body = text_.substr(at_, end - at_);
    at_ = end + 1;
    const std::size_t mark = std::min(body.find_first_of("!:"), body.size());
    Value value = LOCKSTEP_TRY(argument(body.substr(0, mark)));
    std::string_view rest = body.substr(mark);
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2 || (rest[1] != 'r' && rest[1] != 's')) return bad_format("an unknown conversion");
      value = Value(LOCKSTEP_TRY(rest[1] == 'r' ? repr_text(runtime_, value) : to_text(runtime_, value)));
      rest.remove_prefix(2);
    }
    if (!rest.empty() && rest[0] != ':') return bad_format("a conversion is not followed by :");
    const Spec spec = LOCKSTEP_TRY(specification(rest.empty() ? rest : rest.substr(1)));
    return put(value, spec);
  }

  Result<Value> argument(std::string_view name) {
    if (name.find_first_of(".[") != std::string_view::npos) {
      return fail(ErrorKind::Unsupported, "format strings with attributes or elements are not supported");
    }
    std::size_t index = next_, at = 0;
    if (name.empty()) {
      ++next_;
    } else if (name[0] >= '0' && name[0] <= '9') {
      index = static_cast<std::size_t>(LOCKSTEP_TRY(read_number(name, at)));
      if (at < name.size()) return bad_format("a position is no number");
    } else {
      for (const auto& [key, value] : arguments_.named) {
        if (key == name) return value;
      }
      return bad_format("a name is missing in the arguments");
    }
    if (index >= arguments_.positional.size()) return bad_format("too few arguments");
    return arguments_.positional[index];
  }

  static Result<Spec> specification(std::string_view text) {
    static constexpr std::string_view kAligns = "<>^=";
    Spec spec;
    std::size_t at = 0;
    const std::size_t first = text.empty() ? 0 : character_length(text[0]);
    if (first < text.size() && kAligns.find(text[first]) != std::string_view::npos) {
      spec.fill = text.substr(0, first);
      spec.align = text[first];
      at = first + 1;
    } else if (!text.empty() && kAligns.find(text[0]) != std::string_view::npos) {
      spec.align = text[0];
      at = 1;
    }
    const auto skip = [&](char c) { return at < text.size() && text[at] == c && (++at, true); };
    for (const char sign : {'+', '-', ' '}) {
      if (skip(sign)) spec.sign = sign;
    }
    spec.alternate = skip('#');
    spec.zero = skip('0');
    spec.width = LOCKSTEP_TRY(read_number(text, at));
    spec.comma = skip(',');
    LOCKSTEP_TRY(read_precision(text, at, spec));
    if (at < text.size()) spec.type = text[at++];
    if (at < text.size()) return bad_format("an unknown specification");
    return spec;
  }

  Status put(const Value& value, Spec spec) {
    static constexpr std::string_view kIntegers = "dxXob", kFloats = "feEgGF%";
    const bool is_number = value.get<double>() != nullptr || value.get<std::int64_t>() != nullptr;
    if (spec.type != 0 && kFloats.find(spec.type) != std::string_view::npos) {
      const double number = LOCKSTEP_TRY(need_float(value));
      return put_float(out_, number, spec);
    }
    const bool wants_integer = spec.type != 0 && kIntegers.find(spec.type) != std::string_view::npos;
    if (wants_integer || (spec.type == 0 && value.get<std::int64_t>() != nullptr)) {
      if (value.get<double>() != nullptr) return bad_format("an integer type for a float");
      const auto number = LOCKSTEP_TRY(as_integer(value));
      if (!number) return type_error("a format string needs an integer", value);
      return put_integer(out_, *number, spec);
    }
    if (spec.type != 0 && (spec.type != 's' || is_number)) return bad_format("an unknown type");
    if (is_number && spec.precision >= 0) {
      return fail(ErrorKind::Unsupported, "a precision without a type is not supported for floats");
    }
    const TextPtr text = LOCKSTEP_TRY(to_text(runtime_, value));
    if (is_number && text->bytes[0] == '-') return pad_number(out_, text->bytes.substr(1), true, spec);
    if (is_number) return pad_number(out_, text->bytes, false, spec);
    if (spec.align == 0) spec.align = '<';
    return put_text(runtime_, out_, text, spec);
  }

  Runtime& runtime_;
  const Text& format_;
  std::string_view text_;
  const Arguments& arguments_;
  std::size_t next_ = 0, at_ = 0;
  TextBuilder out_;
};

}  // namespace

Result<Value> percent_format(Runtime& runtime, const Text& format, const Value& arguments) {
  return PercentFormatter(runtime, format, arguments).run();
}

Result<Value> brace_format(Runtime& runtime, const Text& format, const Arguments& arguments) {
  return BraceFormatter(runtime, format, arguments).run();
}

}  // namespace lockstep::text::jinja
