#include "text/tokenizer_added.hpp"

#include <algorithm>
#include <unordered_set>

#include "text/utf8.hpp"

namespace lockstep::text {
namespace {

constexpr std::size_t kMaxAddedTokens = 65536;
constexpr std::size_t kMaxContentBytes = 256;

unsigned char byte_of(char c) {
  return static_cast<unsigned char>(c);
}

}  // namespace

Result<AddedTokens> AddedTokens::create(std::vector<AddedToken> tokens) {
  if (tokens.size() > kMaxAddedTokens) {
    return fail(ErrorKind::Invalid, "added tokens: {}, more than the limit of {}", tokens.size(), kMaxAddedTokens);
  }
  std::sort(tokens.begin(), tokens.end(), [](const auto& a, const auto& b) { return a.content < b.content; });
  AddedTokens result;
  std::unordered_set<std::int32_t> ids;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto& [id, content, special] = tokens[i];
    if (content.empty() || content.size() > kMaxContentBytes || !is_valid_utf8(content)) {
      return fail(ErrorKind::Invalid, "added token {}: its text must be 1 to {} bytes of UTF-8", id, kMaxContentBytes);
    }
    if (i > 0 && tokens[i - 1].content == content) {
      return fail(ErrorKind::Invalid, "added tokens {} and {} have the same text '{}'", tokens[i - 1].id, id, content);
    }
    if (!ids.insert(id).second) return fail(ErrorKind::Invalid, "two added tokens have id {}", id);
    result.starts_[byte_of(content[0])] = true;
  }
  result.tokens_ = std::move(tokens);
  return result;
}

const AddedToken* AddedTokens::longest_prefix(std::string_view text) const {
  // The tokens that start with the first `depth` bytes of the text are a range of the sorted list; it narrows byte by
  // byte, and its first element is the range's shortest text.
  auto low = tokens_.begin();
  auto high = tokens_.end();
  const AddedToken* longest = nullptr;
  for (std::size_t depth = 0; depth < text.size() && low != high; ++depth) {
    const unsigned char wanted = byte_of(text[depth]);
    low = std::partition_point(low, high, [&](const AddedToken& token) {
      return token.content.size() <= depth || byte_of(token.content[depth]) < wanted;
    });
    high = std::partition_point(low, high,
                                [&](const AddedToken& token) { return byte_of(token.content[depth]) == wanted; });
    if (low != high && low->content.size() == depth + 1) longest = &*low;
  }
  return longest;
}

AddedTokens::Match AddedTokens::find(std::string_view text, std::size_t from,
                                     std::span<const ByteRange> literal) const {
  auto range = std::partition_point(literal.begin(), literal.end(), [&](const ByteRange& r) { return r.end <= from; });
  for (std::size_t at = from; at < text.size(); ++at) {
    while (range != literal.end() && range->end <= at) ++range;
    // A token must end where the next literal range begins, so the search sees only the text before it.
    const bool bounded = range != literal.end();
    if (bounded && range->begin <= at) {
      at = range->end - 1;
      continue;
    }
    if (!starts_[byte_of(text[at])]) continue;
    const std::size_t limit = bounded ? range->begin : text.size();
    if (const AddedToken* token = longest_prefix(text.substr(at, limit - at))) return {at, token};
  }
  return {text.size(), nullptr};
}

const AddedToken* AddedTokens::by_text(std::string_view content) const {
  const auto found = std::partition_point(tokens_.begin(), tokens_.end(),
                                          [&](const AddedToken& token) { return token.content < content; });
  return found != tokens_.end() && found->content == content ? &*found : nullptr;
}

}  // namespace lockstep::text
