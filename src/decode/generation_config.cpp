#include "decode/generation_config.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/file.hpp"

namespace lockstep::decode {
namespace {

constexpr std::string_view kFileName = "generation_config.json";
constexpr std::uint64_t kMaxBytes = 1 << 20;

// Fields with no effect on generation here, and fields that are harmless at the given neutral value.
constexpr std::array<std::string_view, 7> kInformative = {
    "bos_token_id", "pad_token_id", "transformers_version",  "_from_model_config",
    "use_cache",    "max_length",   "decoder_start_token_id"};
struct Neutral {
  std::string_view name;
  double value;
};
constexpr std::array<Neutral, 6> kNeutral = {{{"repetition_penalty", 1},
                                              {"num_beams", 1},
                                              {"typical_p", 1},
                                              {"no_repeat_ngram_size", 0},
                                              {"length_penalty", 1},
                                              {"num_return_sequences", 1}}};

/// Overwrites `value` when the field is present and not null.
Status read_number(const Json& root, std::string_view key, double& value) {
  const auto found = root.find(key);
  if (found == root.end() || found->is_null()) return {};
  value = LOCKSTEP_TRY(json_number(root, key, kFileName));
  return {};
}

Result<TokenId> token_id(const Json& value, std::int64_t vocab) {
  const bool small =
      value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() < (1U << 31));
  const std::int64_t id = small ? value.get<std::int64_t>() : -1;
  if (id < 0 || id >= vocab) {
    return fail(ErrorKind::Invalid, "{}: eos_token_id holds {}; the vocabulary has ids 0 to {}", kFileName,
                value.dump(-1, ' ', true, Json::error_handler_t::replace), vocab - 1);
  }
  return static_cast<TokenId>(id);
}

Result<std::vector<TokenId>> stop_ids(const Json& root, std::int64_t vocab, std::span<const TokenId> fallback) {
  std::vector<TokenId> ids;
  const auto found = root.find("eos_token_id");
  if (found != root.end() && found->is_array()) {
    for (const Json& value : *found) ids.push_back(LOCKSTEP_TRY(token_id(value, vocab)));
  } else if (found != root.end() && !found->is_null()) {
    ids.push_back(LOCKSTEP_TRY(token_id(*found, vocab)));
  }
  if (ids.empty()) ids.assign(fallback.begin(), fallback.end());
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

void warn_about_unused(const Json& root, std::vector<std::string>& warnings) {
  constexpr std::array<std::string_view, 8> kUsed = {
      "do_sample", "temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "eos_token_id"};
  for (const auto& [key, value] : root.items()) {
    if (std::count(kUsed.begin(), kUsed.end(), key) != 0 || value.is_null()) continue;
    if (std::count(kInformative.begin(), kInformative.end(), key) != 0) continue;
    const auto neutral = std::find_if(kNeutral.begin(), kNeutral.end(),
                                      [name = std::string_view(key)](const Neutral& n) { return n.name == name; });
    if (neutral != kNeutral.end() && value.is_number() && value.get<double>() == neutral->value) continue;
    warnings.push_back(fmt::format("{}: field '{}' is not used by this program", kFileName, key));
  }
}

/// The same with paths in place of the file's name.
Result<GenerationDefaults> with_directory(Result<GenerationDefaults> defaults, const std::filesystem::path& directory) {
  if (!defaults) {
    return tl::unexpected(Error{defaults.error().kind, in_directory(directory, defaults.error().message)});
  }
  for (std::string& warning : defaults->warnings) warning = in_directory(directory, warning);
  return defaults;
}

}  // namespace

Result<GenerationDefaults> parse_generation_config(const Json& root, std::int64_t vocab,
                                                   std::span<const TokenId> fallback_stop_ids) {
  if (!root.is_object()) return fail(ErrorKind::Invalid, "{}: not a JSON object", kFileName);
  GenerationDefaults defaults;
  SamplerParams& sampler = defaults.sampler;
  LOCKSTEP_TRY(read_number(root, "temperature", sampler.temperature));
  LOCKSTEP_TRY(read_number(root, "top_p", sampler.top_p));
  LOCKSTEP_TRY(read_number(root, "min_p", sampler.min_p));
  LOCKSTEP_TRY(read_number(root, "presence_penalty", sampler.presence_penalty));
  LOCKSTEP_TRY(read_number(root, "frequency_penalty", sampler.frequency_penalty));
  const auto top_k = root.find("top_k");
  if (top_k != root.end() && !top_k->is_null()) sampler.top_k = LOCKSTEP_TRY(json_integer(root, "top_k", kFileName));
  const auto do_sample = root.find("do_sample");
  if (do_sample != root.end() && !do_sample->is_null()) {
    const bool sample = LOCKSTEP_TRY(json_bool(root, "do_sample", kFileName));
    if (!sample) sampler.temperature = 0;
  }
  auto checked = checked_params(std::move(sampler), vocab);
  if (!checked) return with_context(std::move(checked).error(), kFileName);
  defaults.sampler = *std::move(checked);

  defaults.stop_ids = LOCKSTEP_TRY(stop_ids(root, vocab, fallback_stop_ids));
  if (defaults.stop_ids.empty()) {
    defaults.warnings.push_back(
        fmt::format("{}: no eos_token_id; generation ends only at the token limit or a stop string", kFileName));
  }
  warn_about_unused(root, defaults.warnings);
  return defaults;
}

Result<GenerationDefaults> read_generation_config(const std::filesystem::path& directory, std::int64_t vocab,
                                                  std::span<const TokenId> fallback_stop_ids) {
  const auto text = read_file(directory / kFileName, kMaxBytes);
  if (!text && text.error().kind == ErrorKind::NotFound) {
    return with_directory(parse_generation_config(Json::object(), vocab, fallback_stop_ids), directory);
  }
  if (!text) return tl::unexpected(text.error());
  const auto root = parse_json(*text, kFileName, {.max_bytes = kMaxBytes, .max_depth = 32});
  if (!root) return with_directory(tl::unexpected(root.error()), directory);
  return with_directory(parse_generation_config(*root, vocab, fallback_stop_ids), directory);
}

}  // namespace lockstep::decode
