#include "text/jinja/format.hpp"

#include <charconv>
#include <cmath>

#include "text/jinja/unicode.hpp"

namespace lockstep::text::jinja {
namespace {

void append_escape(char32_t c, std::string& out) {
  if (c == '\n') {
    out += "\\n";
  } else if (c == '\r') {
    out += "\\r";
  } else if (c == '\t') {
    out += "\\t";
  } else if (c < 0x100) {
    out += fmt::format("\\x{:02x}", static_cast<std::uint32_t>(c));
  } else if (c < 0x10000) {
    out += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c));
  } else {
    out += fmt::format("\\U{:08x}", static_cast<std::uint32_t>(c));
  }
}

/// A quoted text. The quotes have the mark of the first character, so that a text of the input is literal as a whole.
void append_quoted(const Text& text, TextBuilder& out) {
  const std::string_view bytes = text.view();
  const bool single = bytes.find('\'') != std::string_view::npos;
  const char quote = single && bytes.find('"') == std::string_view::npos ? '"' : '\'';
  const bool literal = is_literal(text, 0);
  out.append(std::string_view(&quote, 1), literal);
  std::size_t plain = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const char32_t c = character_at(bytes, at);
    const std::size_t next = at + character_length(bytes[at]);
    const bool quoted = c == static_cast<unsigned char>(quote) || c == '\\';
    if (quoted || !is_printable(c)) {
      out.append(text, plain, at);
      std::string escape;
      if (quoted) {
        escape = {'\\', static_cast<char>(c)};
      } else {
        append_escape(c, escape);
      }
      out.append(escape, is_literal(text, at));
      plain = next;
    }
    at = next;
  }
  out.append(text, plain, bytes.size());
  out.append(std::string_view(&quote, 1), literal);
}

Status append_items(Runtime& runtime, const std::vector<Value>& items, TextBuilder& out) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(", ");
    LOCKSTEP_TRY(append_repr(runtime, items[i], out));
  }
  return {};
}

Status append_dict(Runtime& runtime, const Dict& dict, TextBuilder& out) {
  out.append("{");
  for (std::size_t i = 0; i < dict.entries.size(); ++i) {
    if (i > 0) out.append(", ");
    LOCKSTEP_TRY(append_repr(runtime, dict.entries[i].first, out));
    out.append(": ");
    LOCKSTEP_TRY(append_repr(runtime, dict.entries[i].second, out));
  }
  out.append("}");
  return {};
}

Status append_sequence(Runtime& runtime, const Sequence& list, TextBuilder& out) {
  switch (list.kind) {
    case SequenceKind::List:
      out.append("[");
      LOCKSTEP_TRY(append_items(runtime, list.items, out));
      out.append("]");
      break;
    case SequenceKind::Tuple:
    case SequenceKind::Group:
      out.append("(");
      LOCKSTEP_TRY(append_items(runtime, list.items, out));
      out.append(list.items.size() == 1 ? ",)" : ")");
      break;
    case SequenceKind::Range:
      out.append(fmt::format("range({}, {}", list.range.start, list.range.stop));
      if (list.range.step != 1) out.append(fmt::format(", {}", list.range.step));
      out.append(")");
      break;
    case SequenceKind::Generator:
      out.append("<generator object>");
      break;
    default:
      out.append(list.kind == SequenceKind::Keys     ? "dict_keys(["
                 : list.kind == SequenceKind::Values ? "dict_values(["
                                                     : "dict_items([");
      LOCKSTEP_TRY(append_items(runtime, list.items, out));
      out.append("])");
  }
  return {};
}

/// The text of a value without parts.
std::string scalar_text(const Value& value) {
  if (const auto* flag = value.get<bool>()) return *flag ? "True" : "False";
  if (const auto* number = value.get<std::int64_t>()) return std::to_string(*number);
  if (const auto* big = value.get<BigInteger>()) return std::to_string(big->value);
  if (const auto* real = value.get<double>()) return format_float(*real);
  if (value.is_none()) return "None";
  if (value.name_space() != nullptr) return "<Namespace>";
  if (const Function* function = value.function()) {
    return function->macro != nullptr ? fmt::format("<Macro '{}'>", function->name) : "<function>";
  }
  return value.loop() != nullptr ? "<LoopContext>" : "";
}

}  // namespace

std::string format_float(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::scientific).ptr;
  const std::string_view shortest(buffer, static_cast<std::size_t>(end - buffer));
  const std::size_t mark = shortest.find('e');
  const int exponent = std::stoi(std::string(shortest.substr(mark + 1)));
  if (exponent < -4 || exponent >= 16) return std::string(shortest);
  // Between these bounds Python writes no exponent, and marks whole numbers by ".0".
  const auto fixed_end = std::to_chars(buffer, buffer + sizeof(buffer), number, std::chars_format::fixed).ptr;
  std::string fixed(buffer, fixed_end);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

Status append_repr(Runtime& runtime, const Value& value, TextBuilder& out) {
  LOCKSTEP_TRY(runtime.budget().spend(1));
  if (out.full()) return fail(ErrorKind::Limit, "the template makes a text that is too long");
  if (const Text* text = value.text()) {
    LOCKSTEP_TRY(runtime.budget().spend_bytes(text->bytes.size()));
    append_quoted(*text, out);
  } else if (const Sequence* list = value.sequence()) {
    LOCKSTEP_TRY(append_sequence(runtime, *list, out));
  } else if (const Dict* dict = value.dict()) {
    LOCKSTEP_TRY(append_dict(runtime, *dict, out));
  } else if (value.is_undefined()) {
    out.append("Undefined");
  } else {
    out.append(scalar_text(value));
  }
  return {};
}

Result<TextPtr> to_text(Runtime& runtime, const Value& value) {
  if (const TextPtr* text = value.get<TextPtr>()) return *text;
  TextBuilder out(runtime.budget());
  if (!value.is_undefined()) LOCKSTEP_TRY(append_repr(runtime, value, out));
  return out.finish();
}

}  // namespace lockstep::text::jinja
