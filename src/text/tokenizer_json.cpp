#include "text/tokenizer_json.hpp"

#include <algorithm>
#include <unordered_map>

#include "base/json.hpp"
#include "text/utf8.hpp"

namespace lockstep::text {
namespace {

constexpr std::string_view kFile = "tokenizer.json";
constexpr std::string_view kConfigFile = "tokenizer_config.json";
constexpr std::int64_t kMaxTokenId = std::int64_t{1} << 24;
constexpr JsonLimits kLimits{.max_bytes = std::size_t{256} << 20, .max_depth = 64};

using TokenIds = std::unordered_map<std::string_view, std::int32_t>;

/// A member of an object, or null (also for a member that is JSON null).
const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string type_of(const Json* object) {
  const Json* type = object == nullptr ? nullptr : member(*object, "type");
  if (type == nullptr || !type->is_string()) return object == nullptr ? "none" : "without a type";
  return type->get<std::string>();
}

/// Whether a member is absent, null, or equal to the given harmless value.
bool is_default(const Json& object, const char* key, const Json& harmless) {
  const Json* value = member(object, key);
  return value == nullptr || *value == harmless;
}

Status require_default(const Json& object, const char* key, const Json& harmless, std::string_view what) {
  if (is_default(object, key, harmless)) return {};
  return fail(ErrorKind::Unsupported, "{}: {} with '{}' other than {} is not supported", kFile, what, key,
              harmless.dump());
}

Result<std::int32_t> token_id(const Json& value, std::string_view what) {
  if (!value.is_number_integer() || value < 0 || value >= kMaxTokenId) {
    return fail(ErrorKind::Invalid, "{}: {} has no id between 0 and {}", kFile, what, kMaxTokenId - 1);
  }
  return value.get<std::int32_t>();
}

/// The byte-level alphabet: printable Latin-1 characters stand for themselves, and the other 68 bytes, in ascending
/// order, are U+0100 and following. Entry c is the byte of character c, or -1.
std::array<std::int16_t, 324> alphabet_bytes() {
  std::array<std::int16_t, 324> bytes;
  bytes.fill(-1);
  std::size_t next = 0x100;
  for (std::int16_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    bytes[printable ? static_cast<std::size_t>(byte) : next++] = byte;
  }
  return bytes;
}

/// The bytes that a vocabulary entry stands for. An entry with a character outside of the alphabet, which merging can
/// never produce, stands for its own UTF-8 text.
std::string bytes_of_entry(std::string_view entry) {
  static const std::array<std::int16_t, 324> alphabet = alphabet_bytes();
  std::string bytes;
  for (std::string_view rest = entry; !rest.empty();) {
    const Utf8Unit unit = next_utf8(rest);
    rest.remove_prefix(unit.length);
    if (unit.code_point >= alphabet.size() || alphabet[unit.code_point] < 0) return std::string(entry);
    bytes += static_cast<char>(alphabet[unit.code_point]);
  }
  return bytes;
}

Status read_normalizer(const Json& root, TokenizerSpec& spec) {
  const Json* normalizer = member(root, "normalizer");
  const std::string type = type_of(normalizer);
  if (type != "NFC" && normalizer != nullptr) {
    return fail(ErrorKind::Unsupported, "{}: normalizer '{}' is not supported, only NFC or none", kFile, type);
  }
  spec.nfc = normalizer != nullptr;
  return {};
}

Status read_split(const Json& split, TokenizerSpec& spec) {
  const Json* pattern = member(split, "pattern");
  const Json* regex = pattern == nullptr ? nullptr : member(*pattern, "Regex");
  if (regex == nullptr || !regex->is_string()) {
    return fail(ErrorKind::Unsupported, "{}: the Split pre-tokenizer has no pattern of kind Regex", kFile);
  }
  const Json* behavior = member(split, "behavior");
  if (behavior == nullptr || *behavior != "Isolated") {
    return fail(ErrorKind::Unsupported, "{}: Split with a behavior other than Isolated is not supported", kFile);
  }
  LOCKSTEP_TRY(require_default(split, "invert", false, "Split"));
  spec.split_pattern = regex->get<std::string>();
  return {};
}

Status read_pre_tokenizer(const Json& root, TokenizerSpec& spec) {
  const Json* sequence = member(root, "pre_tokenizer");
  if (type_of(sequence) != "Sequence") {
    return fail(ErrorKind::Unsupported,
                "{}: pre_tokenizer '{}' is not supported, only a Sequence of Split and ByteLevel", kFile,
                type_of(sequence));
  }
  const Json* steps = member(*sequence, "pretokenizers");
  const bool two = steps != nullptr && steps->is_array() && steps->size() == 2;
  if (!two || type_of(&(*steps)[0]) != "Split" || type_of(&(*steps)[1]) != "ByteLevel") {
    return fail(ErrorKind::Unsupported, "{}: the pre_tokenizer Sequence must be [Split, ByteLevel]", kFile);
  }
  LOCKSTEP_TRY(read_split((*steps)[0], spec));
  const Json& byte_level = (*steps)[1];
  LOCKSTEP_TRY(require_default(byte_level, "add_prefix_space", false, "ByteLevel"));
  const Json* use_regex = member(byte_level, "use_regex");
  if (use_regex == nullptr || *use_regex != false) {
    return fail(ErrorKind::Unsupported, "{}: ByteLevel with use_regex other than false is not supported", kFile);
  }
  return {};
}

Status check_other_stages(const Json& root) {
  const std::string decoder = type_of(member(root, "decoder"));
  if (decoder != "ByteLevel") {
    return fail(ErrorKind::Unsupported, "{}: decoder '{}' is not supported, only ByteLevel", kFile, decoder);
  }
  // A ByteLevel post-processor moves offsets and no ids.
  const std::string post = type_of(member(root, "post_processor"));
  if (post != "none" && post != "ByteLevel") {
    return fail(ErrorKind::Unsupported, "{}: post_processor '{}' is not supported", kFile, post);
  }
  for (const char* stage : {"truncation", "padding"}) {
    if (member(root, stage) != nullptr) {
      return fail(ErrorKind::Unsupported, "{}: '{}' is set; remove it, lengths are checked elsewhere", kFile, stage);
    }
  }
  return {};
}

Status check_model_options(const Json& model) {
  if (type_of(&model) != "BPE") {
    return fail(ErrorKind::Unsupported, "{}: model '{}' is not supported, only BPE", kFile, type_of(&model));
  }
  LOCKSTEP_TRY(require_default(model, "dropout", 0.0, "BPE"));
  LOCKSTEP_TRY(require_default(model, "unk_token", nullptr, "BPE"));
  LOCKSTEP_TRY(require_default(model, "continuing_subword_prefix", "", "BPE"));
  LOCKSTEP_TRY(require_default(model, "end_of_word_suffix", "", "BPE"));
  LOCKSTEP_TRY(require_default(model, "byte_fallback", false, "BPE"));
  return require_default(model, "ignore_merges", false, "BPE");
}

/// Fills tokens and byte_ids; `ids` views the keys of the vocabulary inside `model`.
Status read_vocabulary(const Json& model, TokenizerSpec& spec, TokenIds& ids) {
  const Json* vocab = member(model, "vocab");
  if (vocab == nullptr || !vocab->is_object()) return fail(ErrorKind::Invalid, "{}: model.vocab is missing", kFile);
  ids.reserve(vocab->size());
  for (const auto& [entry, value] : vocab->get_ref<const Json::object_t&>()) {
    const std::int32_t id = LOCKSTEP_TRY(token_id(value, "a vocabulary entry"));
    const auto index = static_cast<std::size_t>(id);
    if (entry.empty()) return fail(ErrorKind::Invalid, "{}: vocabulary entry {} is empty", kFile, id);
    if (spec.tokens.size() <= index) spec.tokens.resize(index + 1);
    if (!spec.tokens[index].empty()) return fail(ErrorKind::Invalid, "{}: two entries have id {}", kFile, id);
    spec.tokens[index] = bytes_of_entry(entry);
    ids.emplace(entry, id);
  }
  const std::array<std::int16_t, 324> alphabet = alphabet_bytes();
  for (char32_t character = 0; character < alphabet.size(); ++character) {
    if (alphabet[character] < 0) continue;
    std::string entry;
    append_utf8(character, entry);
    const auto found = ids.find(entry);
    if (found == ids.end()) {
      return fail(ErrorKind::Invalid, "{}: the vocabulary has no entry for byte {}", kFile, alphabet[character]);
    }
    spec.byte_ids[static_cast<std::size_t>(alphabet[character])] = found->second;
  }
  return {};
}

/// The two halves of a merge, written as ["a", "b"] or "a b".
Result<std::pair<std::string_view, std::string_view>> halves_of(const Json& merge, std::size_t rank) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair<std::string_view, std::string_view>(merge[0].get_ref<const std::string&>(),
                                                         merge[1].get_ref<const std::string&>());
  }
  if (merge.is_string()) {
    const std::string_view both = merge.get_ref<const std::string&>();
    const std::size_t space = both.find(' ');
    if (space != std::string_view::npos) return std::pair(both.substr(0, space), both.substr(space + 1));
  }
  return fail(ErrorKind::Invalid, "{}: merge {} is not a pair of texts", kFile, rank);
}

Status read_merges(const Json& model, const TokenIds& ids, TokenizerSpec& spec) {
  const Json* merges = member(model, "merges");
  if (merges == nullptr || !merges->is_array()) return fail(ErrorKind::Invalid, "{}: model.merges is missing", kFile);
  const auto id_of = [&](std::string_view entry) {
    const auto found = ids.find(entry);
    return found == ids.end() ? -1 : found->second;
  };
  spec.merges.reserve(merges->size());
  std::string joined;
  for (std::size_t rank = 0; rank < merges->size(); ++rank) {
    const auto [left, right] = LOCKSTEP_TRY(halves_of((*merges)[rank], rank));
    joined.assign(left);
    joined += right;
    const MergeRule rule{id_of(left), id_of(right), id_of(joined)};
    if (rule.left < 0 || rule.right < 0 || rule.merged < 0) {
      return fail(ErrorKind::Invalid, "{}: merge {} ('{}' + '{}') uses a text that is not in the vocabulary", kFile,
                  rank, left, right);
    }
    spec.merges.push_back(rule);
  }
  return {};
}

Result<AddedToken> read_added(const Json& entry, std::int32_t id, std::string_view file) {
  const Json* content = member(entry, "content");
  if (content == nullptr || !content->is_string()) {
    return fail(ErrorKind::Invalid, "{}: added token {} has no text", file, id);
  }
  for (const char* option : {"single_word", "lstrip", "rstrip", "normalized"}) {
    if (!is_default(entry, option, false)) {
      return fail(ErrorKind::Unsupported, "{}: added token {} with '{}' is not supported, only literal matching", file,
                  id, option);
    }
  }
  return AddedToken{id, content->get<std::string>(), !is_default(entry, "special", false)};
}

Status read_added_tokens(const Json& root, const TokenIds& ids, TokenizerSpec& spec) {
  const Json* added = member(root, "added_tokens");
  if (added == nullptr) return {};
  if (!added->is_array()) return fail(ErrorKind::Invalid, "{}: added_tokens is not a list", kFile);
  for (const Json& entry : *added) {
    const Json* value = member(entry, "id");
    const std::int32_t id = LOCKSTEP_TRY(token_id(value == nullptr ? Json() : *value, "an added token"));
    AddedToken token = LOCKSTEP_TRY(read_added(entry, id, kFile));
    // A text may be in both lists, then with one id; an id may not mean two texts.
    const auto found = ids.find(token.content);
    const bool used =
        static_cast<std::size_t>(id) < spec.tokens.size() && !spec.tokens[static_cast<std::size_t>(id)].empty();
    if (found != ids.end() ? found->second != id : used) {
      return fail(ErrorKind::Invalid, "{}: added token {} '{}' contradicts the vocabulary", kFile, id, token.content);
    }
    spec.added.push_back(std::move(token));
  }
  return {};
}

/// "added_tokens_decoder": {"248046": {"content": ...}, ...}
Status merge_config_tokens(const Json& config, TokenizerSpec& spec) {
  const Json* decoder = member(config, "added_tokens_decoder");
  if (decoder == nullptr) return {};
  if (!decoder->is_object()) return fail(ErrorKind::Invalid, "{}: added_tokens_decoder is not an object", kConfigFile);
  std::unordered_map<std::int32_t, std::string> known;
  for (const AddedToken& token : spec.added) known.emplace(token.id, token.content);
  for (const auto& [key, entry] : decoder->get_ref<const Json::object_t&>()) {
    const bool digits = !key.empty() && key.size() <= 8 && key.find_first_not_of("0123456789") == std::string::npos;
    const std::int64_t id = digits ? std::stoll(key) : -1;
    if (id < 0 || id >= kMaxTokenId) {
      return fail(ErrorKind::Invalid, "{}: added_tokens_decoder has the key '{}', not a token id", kConfigFile, key);
    }
    AddedToken token = LOCKSTEP_TRY(read_added(entry, static_cast<std::int32_t>(id), kConfigFile));
    const auto found = known.find(token.id);
    const auto index = static_cast<std::size_t>(id);
    const bool in_vocabulary = found == known.end() && index < spec.tokens.size() && !spec.tokens[index].empty();
    if (found != known.end() ? found->second != token.content : in_vocabulary) {
      return fail(ErrorKind::Invalid, "{}: added_tokens_decoder says that token {} is '{}', which contradicts {}",
                  kConfigFile, id, token.content, kFile);
    }
    if (found == known.end()) spec.added.push_back(std::move(token));
  }
  return {};
}

/// A split pattern that does not know combining marks: without \p{M}, and without the brackets that it then leaves.
std::string without_marks(std::string pattern) {
  const auto replace = [&pattern](std::string_view from, std::string_view to) {
    for (std::size_t at = pattern.find(from); at != std::string::npos; at = pattern.find(from, at + to.size())) {
      pattern.replace(at, from.size(), to);
    }
  };
  replace("\\p{M}", "");
  replace("[\\p{L}]", "\\p{L}");
  return pattern;
}

/// "pretokenize_regex" is the pattern of tokenizer.json, or that pattern with combining marks added.
Status read_config_pattern(const Json& config, TokenizerSpec& spec) {
  const Json* pattern = member(config, "pretokenize_regex");
  if (pattern == nullptr) return {};
  if (!pattern->is_string()) return fail(ErrorKind::Invalid, "{}: pretokenize_regex is not a text", kConfigFile);
  if (*pattern == spec.split_pattern) return {};
  const bool older = spec.split_pattern.find("\\p{M}") == std::string::npos;
  if (!older || without_marks(*pattern) != without_marks(spec.split_pattern)) {
    return fail(ErrorKind::Invalid,
                "{}: pretokenize_regex contradicts the Split pattern of {}; use both files as published with the model",
                kConfigFile, kFile);
  }
  spec.split_pattern = pattern->get<std::string>();
  return {};
}

Status read_config(std::string_view text, TokenizerSpec& spec) {
  const Json config = LOCKSTEP_TRY(parse_json(text, kConfigFile, kLimits));
  if (!config.is_object()) return fail(ErrorKind::Invalid, "{}: not a JSON object", kConfigFile);
  LOCKSTEP_TRY(merge_config_tokens(config, spec));
  LOCKSTEP_TRY(read_config_pattern(config, spec));
  const Json* eos = member(config, "eos_token");
  if (eos != nullptr && eos->is_object()) eos = member(*eos, "content");
  if (eos == nullptr) return {};
  const auto named =
      std::find_if(spec.added.begin(), spec.added.end(), [&](const AddedToken& t) { return *eos == t.content; });
  if (named == spec.added.end()) {
    return fail(ErrorKind::Invalid, "{}: eos_token {} is not an added token", kConfigFile, eos->dump());
  }
  spec.eos = named->id;
  return {};
}

}  // namespace

Result<TokenizerSpec> parse_tokenizer(std::string_view tokenizer_json, std::string_view config_json) {
  const Json root = LOCKSTEP_TRY(parse_json(tokenizer_json, kFile, kLimits));
  if (!root.is_object()) return fail(ErrorKind::Invalid, "{}: not a JSON object", kFile);
  TokenizerSpec spec;
  LOCKSTEP_TRY(read_normalizer(root, spec));
  LOCKSTEP_TRY(read_pre_tokenizer(root, spec));
  LOCKSTEP_TRY(check_other_stages(root));
  const Json* model = member(root, "model");
  if (model == nullptr) return fail(ErrorKind::Invalid, "{}: 'model' is missing", kFile);
  LOCKSTEP_TRY(check_model_options(*model));
  TokenIds ids;
  LOCKSTEP_TRY(read_vocabulary(*model, spec, ids));
  LOCKSTEP_TRY(read_merges(*model, ids, spec));
  LOCKSTEP_TRY(read_added_tokens(root, ids, spec));
  if (!config_json.empty()) LOCKSTEP_TRY(read_config(config_json, spec));
  return spec;
}

}  // namespace lockstep::text
