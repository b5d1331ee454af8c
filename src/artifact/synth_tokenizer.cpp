#include "artifact/synth_tokenizer.hpp"

#include <set>
#include <string>

#include "artifact/pack_config.hpp"
#include "base/file.hpp"
#include "base/json.hpp"

namespace lockstep::artifact {
namespace {

constexpr const char* kTokenizer = "tokenizer.json";
constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 20;

/// tokenizer.json and the ids it uses.
struct Tokenizer {
  Json json;
  std::set<std::int64_t> ids;
};

/// A field of an object, or nullptr.
const Json* member(const Json& json, const char* key) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(key);
  return found == json.end() ? nullptr : &*found;
}

Result<Tokenizer> read_tokenizer(const std::filesystem::path& source) {
  const std::filesystem::path path = source / kTokenizer;
  const std::string text = LOCKSTEP_TRY(read_file(path, kMaxBytes));
  Tokenizer tokenizer{LOCKSTEP_TRY(parse_json(text, path.string())), {}};
  const Json& json = tokenizer.json;
  const Json* model = member(json, "model");
  const Json* vocabulary = model == nullptr ? nullptr : member(*model, "vocab");
  if (vocabulary == nullptr || !vocabulary->is_object()) {
    return fail(ErrorKind::Invalid, "{}: model.vocab is missing", path.string());
  }
  for (const auto& [entry, id] : vocabulary->items()) {
    if (id.is_number_unsigned()) tokenizer.ids.insert(id.get<std::int64_t>());
  }
  const Json* added = member(json, "added_tokens");
  if (added != nullptr && added->is_array()) {
    for (const Json& token : *added) {
      tokenizer.ids.insert(LOCKSTEP_TRY(json_integer(token, "id", path.string() + ": an added token")));
    }
  }
  if (tokenizer.ids.empty()) return fail(ErrorKind::Invalid, "{}: has no tokens", path.string());
  return tokenizer;
}

}  // namespace

Status check_tokenizer(const std::filesystem::path& source, std::int64_t vocabulary) {
  const Tokenizer tokenizer = LOCKSTEP_TRY(read_tokenizer(source));
  if (*tokenizer.ids.rbegin() < vocabulary) return {};
  return fail(ErrorKind::Invalid, "the tokenizer in {} has the token {}, but the geometry a vocabulary of {}",
              source.string(), *tokenizer.ids.rbegin(), vocabulary);
}

Status write_padded_tokenizer(const std::filesystem::path& source, std::int64_t vocabulary,
                              const std::filesystem::path& directory) {
  Tokenizer tokenizer = LOCKSTEP_TRY(read_tokenizer(source));
  Json& entries = tokenizer.json["model"]["vocab"];
  for (std::int64_t id = 0; id < vocabulary; ++id) {
    if (!tokenizer.ids.contains(id)) entries[fmt::format("[PAD{}]", id)] = id;
  }
  const std::string text = tokenizer.json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  LOCKSTEP_TRY(write_file(directory / kTokenizer, text));
  for (const std::string& name : LOCKSTEP_TRY(copied_files(source))) {
    if (name == kTokenizer) continue;
    const std::string copy = LOCKSTEP_TRY(read_file(source / name, kMaxBytes));
    LOCKSTEP_TRY(write_file(directory / name, copy));
  }
  return {};
}

}  // namespace lockstep::artifact
