// The methods of Python's str.

#include <algorithm>
#include <array>

#include "text/jinja/access.hpp"
#include "text/jinja/format.hpp"
#include "text/jinja/text_operations.hpp"
#include "text/jinja/unicode.hpp"

namespace lockstep::text::jinja {
namespace {

const TextPtr& self_text(const Value& self) {
  return *self.get<TextPtr>();
}

template <bool kLeft, bool kRight>
Result<Value> strip_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("strip", arguments, {"chars"}));
  if (bound.get(0) == nullptr || bound.get(0)->is_none()) {
    return Value(LOCKSTEP_TRY(strip(runtime, self_text(self), nullptr, kLeft, kRight)));
  }
  const TextPtr set = LOCKSTEP_TRY(bound.text(0));
  return Value(LOCKSTEP_TRY(strip(runtime, self_text(self), set.get(), kLeft, kRight)));
}

template <CaseChange kChange>
Result<Value> case_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("this method", arguments, {}));
  return Value(LOCKSTEP_TRY(change_case(runtime, self_text(self), kChange)));
}

template <bool kFromRight>
Result<Value> split_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("split", arguments, {"sep", "maxsplit"}));
  const std::int64_t limit = LOCKSTEP_TRY(bound.integer(1, -1));
  const TextPtr& text = self_text(self);
  if (bound.get(0) == nullptr || bound.get(0)->is_none()) {
    auto words = kFromRight ? split_words_from_right(runtime, text, limit) : split_words(runtime, text, limit);
    return runtime.list(LOCKSTEP_TRY(std::move(words)));
  }
  const TextPtr separator = LOCKSTEP_TRY(bound.text(0));
  if (separator->bytes.empty()) return fail(ErrorKind::Invalid, "split(): the separator is empty");
  auto parts =
      kFromRight ? split_from_right(runtime, text, *separator, limit) : split(runtime, text, *separator, limit);
  return runtime.list(LOCKSTEP_TRY(std::move(parts)));
}

Result<Value> splitlines_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("splitlines", arguments, {"keepends"}));
  return runtime.list(LOCKSTEP_TRY(split_lines(runtime, self_text(self), bound.truth(0, false))));
}

Result<Value> replace_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("replace", arguments, {"old", "new", "count"}, 2));
  const TextPtr old = LOCKSTEP_TRY(bound.text(0)), with = LOCKSTEP_TRY(bound.text(1));
  const std::int64_t count = LOCKSTEP_TRY(bound.integer(2, -1));
  return Value(LOCKSTEP_TRY(replace(runtime, self_text(self), *old, *with, count)));
}

Result<Value> join_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("join", arguments, {"iterable"}, 1));
  const SequencePtr items = LOCKSTEP_TRY(runtime.iterate(*bound.get(0)));
  return Value(LOCKSTEP_TRY(join(runtime, *self_text(self), items->items, false)));
}

/// The bytes between the optional arguments start and end, counted in characters; nothing if they cross.
struct Window {
  std::size_t begin = 0, end = 0;
  bool valid = true;
};

Result<Window> window_of(const Text& text, const Parameters& bound, std::size_t first) {
  const auto size = static_cast<std::int64_t>(text.characters);
  const auto place = [&](std::int64_t index) { return index < 0 ? std::max<std::int64_t>(index + size, 0) : index; };
  const std::int64_t start = place(LOCKSTEP_TRY(bound.integer(first, 0)));
  const std::int64_t stop = std::min(place(LOCKSTEP_TRY(bound.integer(first + 1, size))), size);
  if (start > stop) return Window{0, 0, false};
  return Window{text.byte_of(static_cast<std::size_t>(start)), text.byte_of(static_cast<std::size_t>(stop)), true};
}

template <bool kEnd>
Result<Value> affix_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const std::string_view name = kEnd ? "endswith" : "startswith";
  const auto bound = LOCKSTEP_TRY(Parameters::bind(name, arguments, {"prefix", "start", "end"}, 1));
  const Text& text = *self_text(self);
  const Window window = LOCKSTEP_TRY(window_of(text, bound, 1));
  const std::string_view bytes = text.view().substr(window.begin, window.end - window.begin);
  const auto matches = [&](const Text& affix) {
    return window.valid && (kEnd ? bytes.ends_with(affix.view()) : bytes.starts_with(affix.view()));
  };
  if (const Text* affix = bound.get(0)->text()) return Value(matches(*affix));
  if (!is_tuple(*bound.get(0))) return type_error(fmt::format("{}() needs a string", name), *bound.get(0));
  for (const Value& item : bound.get(0)->sequence()->items) {
    LOCKSTEP_TRY(runtime.budget().spend(1));
    if (item.text() == nullptr) return type_error(fmt::format("{}() needs strings", name), item);
    if (matches(*item.text())) return Value(true);
  }
  return Value(false);
}

/// find, rfind, index, rindex.
template <bool kLast, bool kRaise>
Result<Value> find_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("find", arguments, {"sub", "start", "end"}, 1));
  const Text& text = *self_text(self);
  const TextPtr what = LOCKSTEP_TRY(bound.text(0));
  const Window window = LOCKSTEP_TRY(window_of(text, bound, 1));
  const std::string_view bytes = text.view().substr(window.begin, window.end - window.begin);
  LOCKSTEP_TRY(runtime.budget().spend_bytes(text.bytes.size()));
  if (kLast) LOCKSTEP_TRY(charge_backward_search(runtime, bytes, what->view()));
  std::size_t at = std::string_view::npos;
  if (window.valid) at = kLast ? find_last(bytes, what->view(), bytes.size()) : find_text(bytes, what->view());
  if (at != std::string_view::npos) {
    return Value(static_cast<std::int64_t>(count_characters(text.view().substr(0, window.begin + at))));
  }
  if (kRaise) return fail(ErrorKind::Invalid, "index(): the text does not contain the string");
  return Value(std::int64_t{-1});
}

Result<Value> count_text_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("count", arguments, {"sub", "start", "end"}, 1));
  const Text& text = *self_text(self);
  const TextPtr what = LOCKSTEP_TRY(bound.text(0));
  const Window window = LOCKSTEP_TRY(window_of(text, bound, 1));
  if (!window.valid) return Value(std::int64_t{0});
  const std::string_view bytes = text.view().substr(window.begin, window.end - window.begin);
  LOCKSTEP_TRY(runtime.budget().spend_bytes(8 * bytes.size()));
  if (what->bytes.empty()) return Value(static_cast<std::int64_t>(count_characters(bytes)) + 1);
  std::int64_t count = 0;
  for (std::size_t at = 0; (at = find_text(bytes, what->view(), at)) != std::string_view::npos; ++count) {
    at += what->bytes.size();
  }
  return Value(count);
}

template <bool kLast>
Result<Value> partition_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("partition", arguments, {"sep"}, 1));
  const TextPtr separator = LOCKSTEP_TRY(bound.text(0));
  if (separator->bytes.empty()) return fail(ErrorKind::Invalid, "partition(): the separator is empty");
  const TextPtr& text = self_text(self);
  LOCKSTEP_TRY(runtime.budget().spend_bytes(text->bytes.size()));
  if (kLast) LOCKSTEP_TRY(charge_backward_search(runtime, text->view(), separator->view()));
  const std::size_t size = text->bytes.size();
  const std::size_t at =
      kLast ? find_last(text->view(), separator->view(), size) : find_text(text->view(), separator->view());
  const Value empty = LOCKSTEP_TRY(runtime.text(""));
  if (at == std::string_view::npos) {
    return runtime.tuple(kLast ? std::vector<Value>{empty, empty, self} : std::vector<Value>{self, empty, empty});
  }
  Value head(LOCKSTEP_TRY(slice(runtime.budget(), text, 0, at)));
  Value tail(LOCKSTEP_TRY(slice(runtime.budget(), text, at + separator->bytes.size(), size)));
  return runtime.tuple({std::move(head), Value(TextPtr(separator)), std::move(tail)});
}

template <bool kEnd>
Result<Value> remove_affix_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("removeprefix", arguments, {"prefix"}, 1));
  const TextPtr affix = LOCKSTEP_TRY(bound.text(0));
  const TextPtr& text = self_text(self);
  const std::size_t size = text->bytes.size(), cut = affix->bytes.size();
  if (kEnd && text->view().ends_with(affix->view())) {
    return Value(LOCKSTEP_TRY(slice(runtime.budget(), text, 0, size - cut)));
  }
  if (!kEnd && text->view().starts_with(affix->view())) {
    return Value(LOCKSTEP_TRY(slice(runtime.budget(), text, cut, size)));
  }
  return self;
}

enum class Align : std::uint8_t { Left, Center, Right };

template <Align kAlign>
Result<Value> align_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("center", arguments, {"width", "fillchar"}, 1));
  const std::int64_t width = LOCKSTEP_TRY(bound.integer(0, 0));
  const TextPtr fill = LOCKSTEP_TRY(bound.text(1, " "));
  if (fill->characters != 1) return fail(ErrorKind::Invalid, "center(): the fill must be one character");
  const Text& text = *self_text(self);
  const auto size = static_cast<std::int64_t>(text.characters);
  if (width <= size) return self;
  const std::int64_t missing = width - size;
  // CPython's rule for the odd column of center().
  const std::int64_t centered = missing / 2 + (missing & width & 1);
  const std::int64_t before = kAlign == Align::Left ? 0 : kAlign == Align::Right ? missing : centered;
  TextBuilder out(runtime.budget());
  LOCKSTEP_TRY(append_fill(runtime, out, fill->view(), before));
  out.append(text);
  LOCKSTEP_TRY(append_fill(runtime, out, fill->view(), missing - before));
  return Value(LOCKSTEP_TRY(out.finish()));
}

Result<Value> zfill_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("zfill", arguments, {"width"}, 1));
  const std::int64_t width = LOCKSTEP_TRY(bound.integer(0, 0));
  const Text& text = *self_text(self);
  const std::size_t sign = !text.bytes.empty() && (text.bytes[0] == '-' || text.bytes[0] == '+') ? 1 : 0;
  TextBuilder out(runtime.budget());
  out.append(text, 0, sign);
  const auto size = static_cast<std::int64_t>(text.characters);
  if (width > size) LOCKSTEP_TRY(append_fill(runtime, out, "0", width - size));
  out.append(text, sign, text.bytes.size());
  return Value(LOCKSTEP_TRY(out.finish()));
}

Result<Value> expandtabs_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("expandtabs", arguments, {"tabsize"}));
  const std::int64_t tab = LOCKSTEP_TRY(bound.integer(0, 8));
  const Text& text = *self_text(self);
  TextBuilder out(runtime.budget());
  std::int64_t column = 0;
  for (std::size_t at = 0; at < text.bytes.size(); at += character_length(text.bytes[at])) {
    const char c = text.bytes[at];
    if (c == '\t') {
      const std::int64_t blanks = tab > 0 ? tab - column % tab : 0;
      LOCKSTEP_TRY(append_fill(runtime, out, " ", blanks));
      column += blanks;
    } else {
      out.append(text, at, at + character_length(c));
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  LOCKSTEP_TRY(runtime.budget().spend_bytes(8 * text.bytes.size()));
  return Value(LOCKSTEP_TRY(out.finish()));
}

bool is_numeral(char32_t c) {
  return is_word(c) && !is_alpha(c) && c != '_';
}
bool is_alphanumeric(char32_t c) {
  return is_word(c) && c != '_';
}
bool is_digit_like(char32_t c) {
  const bool raised = c == 0xB2 || c == 0xB3 || c == 0xB9 || c == 0x2070 || (c >= 0x2074 && c <= 0x2079);
  return is_decimal(c) || raised || (c >= 0x2080 && c <= 0x2089);
}

/// Whether a text is not empty and all its characters are of a kind.
template <bool (*kKind)(char32_t)>
Result<Value> all_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("this method", arguments, {}));
  const std::string_view bytes = self_text(self)->view();
  LOCKSTEP_TRY(runtime.budget().spend_bytes(bytes.size()));
  bool all = !bytes.empty();
  for (std::size_t at = 0; all && at < bytes.size(); at += character_length(bytes[at])) {
    all = kKind(character_at(bytes, at));
  }
  return Value(all);
}

Result<Value> isprintable_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  if (self_text(self)->bytes.empty()) return Value(true);
  return all_method<is_printable>(runtime, self, arguments);
}

Result<Value> isascii_method(Runtime&, const Value& self, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("isascii", arguments, {}));
  return Value(self_text(self)->is_ascii());
}

Result<Value> isidentifier_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const std::string_view bytes = self_text(self)->view();
  if (bytes.empty() || is_numeral(character_at(bytes, 0))) return Value(false);
  return all_method<is_word>(runtime, self, arguments);
}

/// isupper and islower: some letter has the case and none has the other.
template <bool kUpper>
Result<Value> cased_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("this method", arguments, {}));
  const std::string_view bytes = self_text(self)->view();
  LOCKSTEP_TRY(runtime.budget().spend_bytes(bytes.size()));
  bool some = false;
  for (std::size_t at = 0; at < bytes.size(); at += character_length(bytes[at])) {
    const char32_t c = character_at(bytes, at);
    if ((kUpper ? is_lower(c) : is_upper(c)) || is_title(c)) return Value(false);
    some |= kUpper ? is_upper(c) : is_lower(c);
  }
  return Value(some);
}

Result<Value> istitle_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("istitle", arguments, {}));
  const std::string_view bytes = self_text(self)->view();
  LOCKSTEP_TRY(runtime.budget().spend_bytes(bytes.size()));
  bool some = false, in_word = false;
  for (std::size_t at = 0; at < bytes.size(); at += character_length(bytes[at])) {
    const char32_t c = character_at(bytes, at);
    const bool upper = is_upper(c) || is_title(c), lower = is_lower(c);
    if ((upper && in_word) || (lower && !in_word)) return Value(false);
    in_word = upper || lower;
    some |= in_word;
  }
  return Value(some);
}

Result<Value> format_method(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return brace_format(runtime, *self_text(self), arguments);
}

Result<Value> unsupported_method(Runtime&, const Value&, const Arguments&) {
  return fail(ErrorKind::Unsupported, "encode, format_map, maketrans and translate are not supported");
}

constexpr std::array kMethods = {
    Method{"capitalize", case_method<CaseChange::Capitalize>},
    Method{"casefold", case_method<CaseChange::Lower>},
    Method{"center", align_method<Align::Center>},
    Method{"count", count_text_method},
    Method{"encode", unsupported_method},
    Method{"endswith", affix_method<true>},
    Method{"expandtabs", expandtabs_method},
    Method{"find", find_method<false, false>},
    Method{"format", format_method},
    Method{"format_map", unsupported_method},
    Method{"index", find_method<false, true>},
    Method{"isalnum", all_method<is_alphanumeric>},
    Method{"isalpha", all_method<is_alpha>},
    Method{"isascii", isascii_method},
    Method{"isdecimal", all_method<is_decimal>},
    Method{"isdigit", all_method<is_digit_like>},
    Method{"isidentifier", isidentifier_method},
    Method{"islower", cased_method<false>},
    Method{"isnumeric", all_method<is_numeral>},
    Method{"isprintable", isprintable_method},
    Method{"isspace", all_method<is_space>},
    Method{"istitle", istitle_method},
    Method{"isupper", cased_method<true>},
    Method{"join", join_method},
    Method{"ljust", align_method<Align::Left>},
    Method{"lower", case_method<CaseChange::Lower>},
    Method{"lstrip", strip_method<true, false>},
    Method{"maketrans", unsupported_method},
    Method{"partition", partition_method<false>},
    Method{"removeprefix", remove_affix_method<false>},
    Method{"removesuffix", remove_affix_method<true>},
    Method{"replace", replace_method},
    Method{"rfind", find_method<true, false>},
    Method{"rindex", find_method<true, true>},
    Method{"rjust", align_method<Align::Right>},
    Method{"rpartition", partition_method<true>},
    Method{"rsplit", split_method<true>},
    Method{"rstrip", strip_method<false, true>},
    Method{"split", split_method<false>},
    Method{"splitlines", splitlines_method},
    Method{"startswith", affix_method<false>},
    Method{"strip", strip_method<true, true>},
    Method{"swapcase", case_method<CaseChange::Swap>},
    Method{"title", case_method<CaseChange::Title>},
    Method{"translate", unsupported_method},
    Method{"upper", case_method<CaseChange::Upper>},
    Method{"zfill", zfill_method},
};

}  // namespace

const Method* find_text_method(std::string_view name) {
  const auto* const found =
      std::find_if(kMethods.begin(), kMethods.end(), [&](const Method& m) { return m.name == name; });
  return found == kMethods.end() ? nullptr : found;
}

}  // namespace lockstep::text::jinja
