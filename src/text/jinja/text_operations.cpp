#include "text/jinja/text_operations.hpp"

#include <algorithm>

#include "text/jinja/format.hpp"
#include "text/jinja/unicode.hpp"

namespace lockstep::text::jinja {
namespace {

/// Characters to strip: blanks, or those of a text.
class StripSet {
 public:
  explicit StripSet(const Text* set) : blanks_(set == nullptr) {
    for (std::size_t at = 0; set != nullptr && at < set->bytes.size(); at += character_length(set->bytes[at])) {
      characters_.push_back(character_at(set->view(), at));
    }
    std::sort(characters_.begin(), characters_.end());
  }
  [[nodiscard]] bool has(char32_t c) const {
    return blanks_ ? is_space(c) : std::binary_search(characters_.begin(), characters_.end(), c);
  }

 private:
  bool blanks_;
  std::vector<char32_t> characters_;
};

Status append_part(Runtime& runtime, const TextPtr& text, std::size_t begin, std::size_t end,
                   std::vector<Value>& parts) {
  parts.emplace_back(LOCKSTEP_TRY(slice(runtime.budget(), text, begin, end)));
  return {};
}

}  // namespace

Result<TextPtr> strip(Runtime& runtime, const TextPtr& text, const Text* set, bool left, bool right) {
  const StripSet stripped(set);
  const std::string_view bytes = text->view();
  LOCKSTEP_TRY(runtime.budget().spend_bytes(set == nullptr ? bytes.size() : 16 * (bytes.size() + set->bytes.size())));
  std::size_t begin = 0, end = bytes.size();
  while (left && begin < end && stripped.has(character_at(bytes, begin))) begin += character_length(bytes[begin]);
  while (right && end > begin) {
    const std::size_t before = previous_character(bytes, end);
    if (!stripped.has(character_at(bytes, before))) break;
    end = before;
  }
  return slice(runtime.budget(), text, begin, end);
}

Result<TextPtr> replace(Runtime& runtime, const TextPtr& text, const Text& old, const Text& with, std::int64_t count) {
  const std::string_view bytes = text->view();
  LOCKSTEP_TRY(runtime.budget().spend_bytes(bytes.size()));
  TextBuilder out(runtime.budget());
  std::size_t done = 0;
  if (old.bytes.empty()) {
    for (std::size_t at = 0; count != 0 && !out.full(); --count) {
      out.append(*text, done, at);
      out.append(with);
      done = at;
      if (at == bytes.size()) break;
      at += character_length(bytes[at]);
    }
  } else {
    for (; count != 0 && !out.full(); --count) {
      const std::size_t at = find_text(bytes, old.view(), done);
      if (at == std::string_view::npos) break;
      LOCKSTEP_TRY(runtime.budget().spend(1));
      out.append(*text, done, at);
      out.append(with);
      done = at + old.bytes.size();
    }
    if (done == 0 && !out.full()) return text;
  }
  out.append(*text, done, bytes.size());
  return out.finish();
}

Result<std::vector<Value>> split(Runtime& runtime, const TextPtr& text, const Text& separator, std::int64_t limit) {
  std::vector<Value> parts;
  std::size_t begin = 0;
  LOCKSTEP_TRY(runtime.budget().spend_bytes(text->bytes.size()));
  for (; limit != 0; --limit) {
    const std::size_t at = find_text(text->view(), separator.view(), begin);
    if (at == std::string_view::npos) break;
    LOCKSTEP_TRY(append_part(runtime, text, begin, at, parts));
    begin = at + separator.bytes.size();
  }
  LOCKSTEP_TRY(append_part(runtime, text, begin, text->bytes.size(), parts));
  return parts;
}

Result<std::vector<Value>> split_from_right(Runtime& runtime, const TextPtr& text, const Text& separator,
                                            std::int64_t limit) {
  std::vector<Value> parts;
  std::size_t end = text->bytes.size();
  LOCKSTEP_TRY(charge_backward_search(runtime, text->view(), separator.view()));
  for (; limit != 0; --limit) {
    const std::size_t at = find_last(text->view(), separator.view(), end);
    if (at == std::string_view::npos) break;
    LOCKSTEP_TRY(append_part(runtime, text, at + separator.bytes.size(), end, parts));
    end = at;
  }
  LOCKSTEP_TRY(append_part(runtime, text, 0, end, parts));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Result<std::vector<Value>> split_words(Runtime& runtime, const TextPtr& text, std::int64_t limit) {
  std::vector<Value> parts;
  const std::string_view bytes = text->view();
  LOCKSTEP_TRY(runtime.budget().spend_bytes(bytes.size()));
  std::size_t begin = skip_space(bytes, 0);
  for (; begin < bytes.size(); --limit) {
    std::size_t end = begin;
    if (limit == 0) {
      end = bytes.size();
    } else {
      while (end < bytes.size() && !is_space(character_at(bytes, end))) end += character_length(bytes[end]);
    }
    LOCKSTEP_TRY(append_part(runtime, text, begin, end, parts));
    begin = skip_space(bytes, end);
  }
  return parts;
}

Result<std::vector<Value>> split_words_from_right(Runtime& runtime, const TextPtr& text, std::int64_t limit) {
  std::vector<Value> parts;
  const std::string_view bytes = text->view();
  LOCKSTEP_TRY(runtime.budget().spend_bytes(bytes.size()));
  std::size_t end = trim_space_end(bytes, bytes.size());
  for (; end > 0; --limit) {
    std::size_t begin = end;
    if (limit == 0) {
      begin = 0;
    } else {
      while (begin > 0) {
        const std::size_t before = previous_character(bytes, begin);
        if (is_space(character_at(bytes, before))) break;
        begin = before;
      }
    }
    LOCKSTEP_TRY(append_part(runtime, text, begin, end, parts));
    end = limit == 0 ? 0 : trim_space_end(bytes.substr(0, begin), begin);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Result<std::vector<Value>> split_lines(Runtime& runtime, const TextPtr& text, bool keep_ends) {
  std::vector<Value> parts;
  const std::string_view bytes = text->view();
  LOCKSTEP_TRY(runtime.budget().spend_bytes(bytes.size()));
  std::size_t begin = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t end = at;
    const char32_t c = character_at(bytes, at);
    at += character_length(bytes[at]);
    if (!is_line_break(c)) continue;
    if (c == '\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    LOCKSTEP_TRY(append_part(runtime, text, begin, keep_ends ? at : end, parts));
    begin = at;
  }
  if (begin < bytes.size()) LOCKSTEP_TRY(append_part(runtime, text, begin, bytes.size(), parts));
  return parts;
}

Result<TextPtr> join(Runtime& runtime, const Text& separator, const std::vector<Value>& items, bool convert) {
  TextBuilder out(runtime.budget());
  for (std::size_t i = 0; i < items.size(); ++i) {
    LOCKSTEP_TRY(runtime.budget().spend(1));
    if (!convert && items[i].text() == nullptr) return type_error("join() needs strings", items[i]);
    if (i > 0) out.append(separator);
    const TextPtr item = LOCKSTEP_TRY(to_text(runtime, items[i]));
    out.append(*item);
    if (out.full()) break;
  }
  return out.finish();
}

Status append_fill(Runtime& runtime, TextBuilder& out, std::string_view fill, std::int64_t count) {
  if (count <= 0) return {};
  const auto size = static_cast<std::uint64_t>(count);
  if (size > SIZE_MAX / 8 || !runtime.budget().fits(size * fill.size())) {
    return fail(ErrorKind::Limit, "a text filled up to {} characters", count);
  }
  LOCKSTEP_TRY(runtime.budget().spend_bytes(size * 8));
  for (std::uint64_t i = 0; i < size && !out.full(); ++i) out.append(fill);
  return {};
}

Result<TextPtr> change_case(Runtime& runtime, const TextPtr& text, CaseChange change) {
  const std::string_view bytes = text->view();
  LOCKSTEP_TRY(runtime.budget().spend_bytes(32 * bytes.size()));
  TextBuilder out(runtime.budget());
  bool at_start = true;
  std::string changed;
  for (std::size_t at = 0; at < bytes.size() && !out.full(); at += character_length(bytes[at])) {
    const char32_t c = character_at(bytes, at);
    changed.clear();
    const bool is_upper_case = is_upper(c) || is_title(c);
    if (change == CaseChange::Upper || (change == CaseChange::Swap && !is_upper_case) ||
        (change == CaseChange::TitleWords && at_start)) {
      append_upper(c, changed);
    } else if ((change == CaseChange::Capitalize || change == CaseChange::Title) && at_start) {
      append_title(c, changed);
    } else {
      append_lower(c, changed);
    }
    out.append(changed, is_literal(*text, at));
    if (change == CaseChange::Title) {
      at_start = !(is_upper_case || is_lower(c));
    } else if (change == CaseChange::TitleWords) {
      at_start = is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    } else {
      at_start = false;
    }
  }
  return out.finish();
}

std::size_t find_last(std::string_view text, std::string_view what, std::size_t end) {
  return text.substr(0, end).rfind(what);
}

Status charge_backward_search(Runtime& runtime, std::string_view text, std::string_view what) {
  if (what.size() > text.size()) return {};
  const std::size_t places = 1 + text.size() - what.size();
  std::size_t product = 0;
  if (__builtin_mul_overflow(places, 1 + what.size(), &product)) return fail(ErrorKind::Limit, "a search is too long");
  return runtime.budget().spend_bytes(product);
}

}  // namespace lockstep::text::jinja
