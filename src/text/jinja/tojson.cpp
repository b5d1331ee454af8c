#include "text/jinja/tojson.hpp"

#include <algorithm>
#include <cmath>

#include "text/jinja/format.hpp"
#include "text/jinja/operators.hpp"
#include "text/jinja/unicode.hpp"

namespace lockstep::text::jinja {
namespace {

/// The escape of a character, or nothing if it stands for itself.
std::string escape_of(char32_t c, bool ensure_ascii) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case '\f':
      return "\\f";
    case '\b':
      return "\\b";
    default:
      break;
  }
  const auto code = static_cast<std::uint32_t>(c);
  if (code < 0x20 || (ensure_ascii && code > 0x7E && code < 0x10000)) {
    return fmt::format("\\u{:04x}", code);
  }
  if (!ensure_ascii || code < 0x10000) return {};
  return fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF));
}

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, const JsonStyle& style) : runtime_(runtime), style_(style), out_(runtime.budget()) {}

  Result<Value> run(const Value& value) {
    LOCKSTEP_TRY(write(value));
    return Value(LOCKSTEP_TRY(out_.finish()));
  }

 private:
  Status write(const Value& value) {
    LOCKSTEP_TRY(runtime_.budget().spend(1));
    if (out_.full()) return fail(ErrorKind::Limit, "the template makes a text that is too long");
    if (const Text* text = value.text()) {
      string(*text);
      return runtime_.budget().spend_bytes(text->bytes.size());
    }
    if (value.dict() != nullptr) return object(*value.dict());
    if (is_list(value) || is_tuple(value)) return array(*value.sequence());
    const std::string scalar = LOCKSTEP_TRY(scalar_of(value));
    out_.append(scalar);
    return {};
  }

  /// The JSON of a number, truth value or none.
  Result<std::string> scalar_of(const Value& value) {
    if (value.is_none()) return std::string("null");
    if (const auto* flag = value.get<bool>()) return std::string(*flag ? "true" : "false");
    if (const auto* real = value.get<double>()) {
      if (std::isnan(*real)) return std::string("NaN");
      if (std::isinf(*real)) return std::string(*real < 0 ? "-Infinity" : "Infinity");
      return format_float(*real);
    }
    if (value.get<std::int64_t>() != nullptr || value.get<BigInteger>() != nullptr) {
      return LOCKSTEP_TRY(to_text(runtime_, value))->bytes;
    }
    return fail(ErrorKind::Invalid, "tojson: a value of type {} has no JSON", type_name(value));
  }

  void string(const Text& text) {
    const std::string_view bytes = text.view();
    const bool literal = is_literal(text, 0);
    out_.append("\"", literal);
    std::size_t plain = 0;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t next = at + character_length(bytes[at]);
      const std::string escape = escape_of(character_at(bytes, at), style_.ensure_ascii);
      if (!escape.empty()) {
        out_.append(text, plain, at);
        out_.append(escape, is_literal(text, at));
        plain = next;
      }
      at = next;
    }
    out_.append(text, plain, bytes.size());
    out_.append("\"", literal);
  }

  void new_line() {
    if (!style_.indent) return;
    out_.append("\n");
    for (int i = 0; i < level_; ++i) out_.append(**style_.indent);
  }

  Status array(const Sequence& list) {
    if (list.items.empty()) {
      out_.append("[]");
      return {};
    }
    out_.append("[");
    ++level_;
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_.append(*style_.item_separator);
      new_line();
      LOCKSTEP_TRY(write(list.items[i]));
    }
    --level_;
    new_line();
    out_.append("]");
    return {};
  }

  Status key(const Value& value) {
    if (const Text* text = value.text()) {
      string(*text);
      return {};
    }
    if (is_tuple(value)) return fail(ErrorKind::Invalid, "tojson: a key must be a string, number or none");
    const std::string scalar = LOCKSTEP_TRY(scalar_of(value));
    out_.append("\"" + scalar + "\"");
    return {};
  }

  Status object(const Dict& dict) {
    if (dict.entries.empty()) {
      out_.append("{}");
      return {};
    }
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) LOCKSTEP_TRY(sort(entries));
    out_.append("{");
    ++level_;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out_.append(*style_.item_separator);
      new_line();
      LOCKSTEP_TRY(key(entries[i]->first));
      out_.append(*style_.key_separator);
      LOCKSTEP_TRY(write(entries[i]->second));
    }
    --level_;
    new_line();
    out_.append("}");
    return {};
  }

  Status sort(std::vector<const std::pair<Value, Value>*>& entries) {
    Status status;
    std::stable_sort(entries.begin(), entries.end(), [&](const auto* left, const auto* right) {
      if (!status) return false;
      const auto order = compare(runtime_, left->first, right->first);
      if (!order) status = tl::unexpected(order.error());
      return order && *order < 0;
    });
    return status;
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  TextBuilder out_;
  int level_ = 0;
};

}  // namespace

Result<Value> to_json(Runtime& runtime, const Value& value, const JsonStyle& style) {
  return JsonWriter(runtime, style).run(value);
}

}  // namespace lockstep::text::jinja
