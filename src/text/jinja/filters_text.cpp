// Filters that make text of their input and change it.

#include <algorithm>

#include "text/jinja/filters.hpp"
#include "text/jinja/format.hpp"
#include "text/jinja/text_operations.hpp"
#include "text/jinja/unicode.hpp"

namespace lockstep::text::jinja {
namespace {

template <CaseChange kChange>
Result<Value> case_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("this filter", arguments, {}));
  const TextPtr text = LOCKSTEP_TRY(to_text(runtime, input));
  return Value(LOCKSTEP_TRY(change_case(runtime, text, kChange)));
}

Result<Value> string_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("this filter", arguments, {}));
  return Value(LOCKSTEP_TRY(to_text(runtime, input)));
}

Result<Value> trim_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("trim", arguments, {"chars"}));
  const TextPtr text = LOCKSTEP_TRY(to_text(runtime, input));
  if (bound.get(0) == nullptr || bound.get(0)->is_none()) {
    return Value(LOCKSTEP_TRY(strip(runtime, text, nullptr, true, true)));
  }
  const TextPtr set = LOCKSTEP_TRY(bound.text(0));
  return Value(LOCKSTEP_TRY(strip(runtime, text, set.get(), true, true)));
}

Result<Value> replace_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("replace", arguments, {"old", "new", "count"}, 2));
  const TextPtr text = LOCKSTEP_TRY(to_text(runtime, input));
  const TextPtr old = LOCKSTEP_TRY(to_text(runtime, *bound.get(0))),
                with = LOCKSTEP_TRY(to_text(runtime, *bound.get(1)));
  const std::int64_t count = LOCKSTEP_TRY(bound.integer(2, -1));
  return Value(LOCKSTEP_TRY(replace(runtime, text, *old, *with, count)));
}

Result<Value> escape_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("escape", arguments, {}));
  const TextPtr text = LOCKSTEP_TRY(to_text(runtime, input));
  static constexpr std::pair<char, std::string_view> kEntities[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
  TextBuilder out(runtime.budget());
  std::size_t plain = 0;
  for (std::size_t at = 0; at < text->bytes.size(); ++at) {
    for (const auto& [character, entity] : kEntities) {
      if (text->bytes[at] != character) continue;
      out.append(*text, plain, at);
      out.append(entity, is_literal(*text, at));
      plain = at + 1;
    }
  }
  out.append(*text, plain, text->bytes.size());
  return Value(LOCKSTEP_TRY(out.finish()));
}

Result<Value> indent_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("indent", arguments, {"width", "first", "blank"}));
  TextBuilder prefix(runtime.budget());
  if (bound.get(0) != nullptr && bound.get(0)->text() != nullptr) {
    prefix.append(*bound.get(0)->text());
  } else {
    const std::int64_t width = LOCKSTEP_TRY(bound.integer(0, 4));
    LOCKSTEP_TRY(append_fill(runtime, prefix, " ", width));
  }
  const TextPtr indent = LOCKSTEP_TRY(prefix.finish());
  if (input.text() == nullptr) return type_error("indent: expected a string", input);
  // Jinja2 adds a line end first, so that a text that ends with one keeps it.
  TextBuilder with_end(runtime.budget());
  with_end.append(*input.text());
  with_end.append("\n");
  const TextPtr whole = LOCKSTEP_TRY(with_end.finish());
  const std::vector<Value> lines = LOCKSTEP_TRY(split_lines(runtime, whole, false));
  TextBuilder out(runtime.budget());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Text& line = *lines[i].text();
    if (i > 0) out.append("\n");
    if (i == 0 ? bound.truth(1, false) : (bound.truth(2, false) || !line.bytes.empty())) out.append(*indent);
    out.append(line);
    LOCKSTEP_TRY(runtime.budget().spend(1));
  }
  return Value(LOCKSTEP_TRY(out.finish()));
}

Result<Value> center_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("center", arguments, {"width"}));
  const std::int64_t width = LOCKSTEP_TRY(bound.integer(0, 80));
  const TextPtr text = LOCKSTEP_TRY(to_text(runtime, input));
  const std::int64_t missing = width - std::min(static_cast<std::int64_t>(text->characters), width);
  const std::int64_t before = missing / 2 + (missing & width & 1);
  TextBuilder out(runtime.budget());
  LOCKSTEP_TRY(append_fill(runtime, out, " ", before));
  out.append(*text);
  LOCKSTEP_TRY(append_fill(runtime, out, " ", missing - before));
  return Value(LOCKSTEP_TRY(out.finish()));
}

Result<Value> truncate_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto bound = LOCKSTEP_TRY(Parameters::bind("truncate", arguments, {"length", "killwords", "end", "leeway"}));
  const std::int64_t length = LOCKSTEP_TRY(bound.integer(0, 255)), leeway = LOCKSTEP_TRY(bound.integer(3, 5));
  const TextPtr end = LOCKSTEP_TRY(bound.text(2, "..."));
  const auto end_size = static_cast<std::int64_t>(end->characters);
  if (length < end_size || leeway < 0) return fail(ErrorKind::Invalid, "truncate: the length is too small");
  if (LOCKSTEP_TRY(runtime.length(input)) - leeway <= length) return input;
  if (input.text() == nullptr) return type_error("truncate: expected a string", input);
  const TextPtr& text = *input.get<TextPtr>();
  std::size_t cut = text->byte_of(static_cast<std::size_t>(length - end_size));
  if (!bound.truth(1, false)) {
    if (const std::size_t blank = text->view().substr(0, cut).rfind(' '); blank != std::string_view::npos) cut = blank;
  }
  TextBuilder out(runtime.budget());
  out.append(*text, 0, cut);
  out.append(*end);
  return Value(LOCKSTEP_TRY(out.finish()));
}

Result<Value> wordcount_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  LOCKSTEP_TRY(Parameters::bind("wordcount", arguments, {}));
  const TextPtr text = LOCKSTEP_TRY(to_text(runtime, input));
  LOCKSTEP_TRY(runtime.budget().spend_bytes(4 * text->bytes.size()));
  std::int64_t words = 0;
  bool in_word = false;
  for (std::size_t at = 0; at < text->bytes.size(); at += character_length(text->bytes[at])) {
    const bool word = is_word(character_at(text->view(), at));
    if (word && !in_word) ++words;
    in_word = word;
  }
  return Value(words);
}

Result<Value> format_filter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    return fail(ErrorKind::Invalid, "format: positional and named arguments at once");
  }
  const TextPtr text = LOCKSTEP_TRY(to_text(runtime, input));
  if (arguments.named.empty()) {
    const Value tuple = LOCKSTEP_TRY(runtime.tuple(arguments.positional));
    return percent_format(runtime, *text, tuple);
  }
  std::vector<std::pair<Value, Value>> entries;
  for (const auto& [key, value] : arguments.named) entries.emplace_back(LOCKSTEP_TRY(runtime.text(key)), value);
  const Value dict = LOCKSTEP_TRY(runtime.unique_dict(std::move(entries)));
  return percent_format(runtime, *text, dict);
}

constexpr std::pair<std::string_view, FilterFunction> kTextFilters[] = {
    {"upper", case_filter<CaseChange::Upper>},
    {"lower", case_filter<CaseChange::Lower>},
    {"capitalize", case_filter<CaseChange::Capitalize>},
    {"title", case_filter<CaseChange::TitleWords>},
    {"string", string_filter},
    {"safe", string_filter},
    {"trim", trim_filter},
    {"replace", replace_filter},
    {"escape", escape_filter},
    {"e", escape_filter},
    {"forceescape", escape_filter},
    {"indent", indent_filter},
    {"center", center_filter},
    {"truncate", truncate_filter},
    {"wordcount", wordcount_filter},
    {"format", format_filter},
};

}  // namespace

FilterTable text_filters() {
  return kTextFilters;
}

}  // namespace lockstep::text::jinja
