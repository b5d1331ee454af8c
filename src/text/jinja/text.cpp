#include "text/jinja/text.hpp"

#include <algorithm>

#include "text/jinja/unicode.hpp"

namespace lockstep::text::jinja {
namespace {

/// The first range that ends after byte `at`.
auto first_after(const std::vector<ByteRange>& ranges, std::size_t at) {
  return std::partition_point(ranges.begin(), ranges.end(), [at](const ByteRange& range) { return range.end <= at; });
}

}  // namespace

std::size_t Text::byte_of(std::size_t index) const {
  if (is_ascii()) return index;
  std::size_t at = 0;
  for (; index > 0; --index) at += character_length(bytes[at]);
  return at;
}

TextPtr make_constant(std::string bytes) {
  Text text;
  text.characters = count_characters(bytes);
  text.bytes = std::move(bytes);
  return std::make_shared<const Text>(std::move(text));
}

bool TextBuilder::admit(std::size_t more) {
  if (full_) return false;
  const std::size_t room = max_bytes_ - bytes_.size();
  // Twice the size, since a growing string holds its old and its new bytes for a moment.
  if (more > room || !budget_->fits(2 * (bytes_.size() + more) + literal_.size() * sizeof(ByteRange))) full_ = true;
  return !full_;
}

void TextBuilder::mark(std::size_t begin, std::size_t end) {
  if (!literal_.empty() && literal_.back().end == begin) {
    literal_.back().end = end;
  } else {
    literal_.push_back({begin, end});
  }
}

void TextBuilder::append(std::string_view bytes, bool literal) {
  if (bytes.empty() || !admit(bytes.size())) return;
  if (literal) mark(bytes_.size(), bytes_.size() + bytes.size());
  bytes_.append(bytes);
}

void TextBuilder::append(const Text& text, std::size_t begin, std::size_t end) {
  if (begin >= end || !admit(end - begin)) return;
  const std::size_t base = bytes_.size();
  for (auto range = first_after(text.literal, begin); range != text.literal.end() && range->begin < end; ++range) {
    mark(base + std::max(range->begin, begin) - begin, base + std::min(range->end, end) - begin);
  }
  bytes_.append(text.bytes, begin, end - begin);
}

Result<TextPtr> TextBuilder::finish() {
  if (full_) return fail(ErrorKind::Limit, "the template makes a text that is too long");
  Text text;
  text.charge =
      LOCKSTEP_TRY(budget_->charge(sizeof(Text) + 32 + bytes_.capacity() + literal_.capacity() * sizeof(ByteRange)));
  LOCKSTEP_TRY(budget_->spend_bytes(bytes_.size()));
  text.characters = count_characters(bytes_);
  text.bytes = std::move(bytes_);
  text.literal = std::move(literal_);
  return std::make_shared<const Text>(std::move(text));
}

Result<TextPtr> slice(Budget& budget, const TextPtr& text, std::size_t begin, std::size_t end) {
  if (begin == 0 && end == text->bytes.size()) return text;
  TextBuilder builder(budget);
  builder.append(*text, begin, end);
  return builder.finish();
}

bool is_literal(const Text& text, std::size_t at) {
  const auto range = first_after(text.literal, at);
  return range != text.literal.end() && range->begin <= at;
}

}  // namespace lockstep::text::jinja
