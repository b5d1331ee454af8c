#include "artifact/draft_vocabulary.hpp"

#include <algorithm>

#include "base/file.hpp"
#include "base/json.hpp"

namespace lockstep::artifact {
namespace {

constexpr std::string_view kFormat = "lockstep-frspec-1";
constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;
constexpr std::uint64_t kMostBytes = std::uint64_t{256} << 20;

/// A count that may be left out.
Result<std::int64_t> optional_count(const Json& root, std::string_view key, std::string_view what) {
  if (!root.contains(key)) return 0;
  const std::int64_t count = LOCKSTEP_TRY(json_integer(root, key, what));
  if (count < 0) return fail(ErrorKind::Invalid, "{}: {} is {}, not a count", what, key, count);
  return count;
}

}  // namespace

Result<DraftVocabulary> parse_draft_vocabulary(std::string_view text, std::string_view what) {
  JsonLimits limits;
  limits.max_bytes = kMostBytes;
  limits.max_depth = 4;
  limits.unique_keys = true;
  const Json root = LOCKSTEP_TRY(parse_json(text, what, limits));
  if (!root.is_object()) return fail(ErrorKind::Invalid, "{}: not a JSON object", what);
  const std::string format = LOCKSTEP_TRY(json_string(root, "format", what));
  if (format != kFormat) {
    return fail(ErrorKind::Invalid, "{}: format is not {}: make the list with lockstep frspec", what, kFormat);
  }
  DraftVocabulary list;
  list.vocab_size = LOCKSTEP_TRY(json_integer(root, "vocab_size", what));
  if (list.vocab_size < 1 || list.vocab_size > kMostTokens) {
    return fail(ErrorKind::Invalid, "{}: vocab_size {} is outside 1..{}", what, list.vocab_size, kMostTokens);
  }
  list.counted = LOCKSTEP_TRY(optional_count(root, "counted", what));
  list.covered = LOCKSTEP_TRY(optional_count(root, "covered", what));
  const auto ids = root.find("ids");
  if (ids == root.end() || !ids->is_array() || ids->empty()) {
    return fail(ErrorKind::Invalid, "{}: ids is not a list of at least one token id", what);
  }
  std::vector<bool> seen(static_cast<std::size_t>(list.vocab_size));
  list.ids.reserve(std::min(ids->size(), seen.size()));
  for (const Json& id : *ids) {
    if (!id.is_number_integer() || id < 0 || id >= list.vocab_size) {
      return fail(ErrorKind::Invalid, "{}: ids[{}] is not a token id below {}", what, list.ids.size(), list.vocab_size);
    }
    const auto token = id.get<std::int32_t>();
    if (seen[static_cast<std::size_t>(token)]) {
      return fail(ErrorKind::Invalid, "{}: ids[{}]: token {} is in the list already", what, list.ids.size(), token);
    }
    seen[static_cast<std::size_t>(token)] = true;
    list.ids.push_back(token);
  }
  return list;
}

Result<DraftVocabulary> read_draft_vocabulary(const std::filesystem::path& path) {
  const std::string text = LOCKSTEP_TRY(read_file(path, kMostBytes));
  return parse_draft_vocabulary(text, path.string());
}

std::string draft_vocabulary_text(const DraftVocabulary& list) {
  OrderedJson root;
  root["format"] = kFormat;
  root["vocab_size"] = list.vocab_size;
  root["counted"] = list.counted;
  root["covered"] = list.covered;
  root["ids"] = list.ids;
  return root.dump() + "\n";
}

Result<DraftVocabulary> rank_draft_vocabulary(std::span<const std::uint64_t> counts,
                                              std::span<const std::int32_t> always, std::size_t size) {
  DraftVocabulary list;
  list.vocab_size = static_cast<std::int64_t>(counts.size());
  std::vector<bool> taken(counts.size());
  for (const std::int32_t id : always) {
    if (id < 0 || id >= list.vocab_size) {
      return fail(ErrorKind::Invalid, "token {} is outside the vocabulary of {}", id, list.vocab_size);
    }
    if (taken[static_cast<std::size_t>(id)] || list.ids.size() == size) continue;
    taken[static_cast<std::size_t>(id)] = true;
    list.ids.push_back(id);
  }
  std::vector<std::int32_t> others;
  for (std::size_t id = 0; id < counts.size(); ++id) {
    if (counts[id] > 0 && !taken[id]) others.push_back(static_cast<std::int32_t>(id));
  }
  std::sort(others.begin(), others.end(), [&](std::int32_t a, std::int32_t b) {
    const std::uint64_t of_a = counts[static_cast<std::size_t>(a)];
    const std::uint64_t of_b = counts[static_cast<std::size_t>(b)];
    return of_a != of_b ? of_a > of_b : a < b;
  });
  others.resize(std::min(others.size(), size - list.ids.size()));
  list.ids.insert(list.ids.end(), others.begin(), others.end());
  if (list.ids.empty()) return fail(ErrorKind::Invalid, "no token was counted: the list would be empty");
  for (const std::uint64_t count : counts) list.counted += static_cast<std::int64_t>(count);
  for (const std::int32_t id : list.ids)
    list.covered += static_cast<std::int64_t>(counts[static_cast<std::size_t>(id)]);
  return list;
}

}  // namespace lockstep::artifact
