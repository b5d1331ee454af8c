#include "artifact/tensor_set.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "artifact/config_fields.hpp"

namespace lockstep::artifact {
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::size_t kMaxFiles = 4096;

Result<std::optional<std::string>> side_file(Fields& extra, std::string_view key) {
  const Json* value = extra.find(key);
  if (value == nullptr) return std::optional<std::string>();
  if (!value->is_string() || !plain_tensor_file_name(value->get<std::string>())) {
    return fail(ErrorKind::Invalid, "{}: {} {} is not a plain .safetensors file name", extra.what(), key,
                brief(*value));
  }
  return std::optional(value->get<std::string>());
}

/// model*.safetensors in ascending order.
Result<std::vector<std::string>> list_model_files(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.starts_with("model") && name.ends_with(".safetensors")) names.push_back(std::move(name));
  }
  if (error) return fail(ErrorKind::Io, "{}: cannot list: {}", directory.string(), error.message());
  std::sort(names.begin(), names.end());
  return names;
}

/// metadata.total_size, which exporters write beside the map, if there is one.
Result<std::optional<std::uint64_t>> total_size(const Json& index, const std::string& what) {
  std::optional<std::uint64_t> none;
  const auto metadata = index.find("metadata");
  if (metadata == index.end() || metadata->is_null()) return none;
  if (!metadata->is_object()) return fail(ErrorKind::Invalid, "{}: metadata is {}, no object", what, brief(*metadata));
  const auto size = metadata->find("total_size");
  if (size == metadata->end()) return none;
  if (size->is_number_unsigned()) return std::optional(size->get<std::uint64_t>());
  const double value = size->is_number_float() ? size->get<double>() : -1;
  constexpr double kMost = 9.2e18;
  if (value >= 0 && value < kMost && value == std::floor(value))
    return std::optional(static_cast<std::uint64_t>(value));
  return fail(ErrorKind::Invalid, "{}: metadata.total_size is {}, not a number of bytes", what, brief(*size));
}

}  // namespace

bool plain_tensor_file_name(std::string_view name) {
  constexpr std::string_view suffix = ".safetensors";
  return name.size() > suffix.size() && name.ends_with(suffix) && name.front() != '.' &&
         std::none_of(name.begin(), name.end(),
                      [](unsigned char c) { return c < 0x20 || c == 0x7f || c == '/' || c == '\\'; });
}

Result<SideFiles> parse_side_files(const Json& config, const std::string& file) {
  SideFiles side;
  const auto found = config.find("mlx_lm_extra_tensors");
  if (found == config.end() || found->is_null()) return side;
  Fields extra = LOCKSTEP_TRY(Fields::of(*found, file + ": mlx_lm_extra_tensors"));
  side.draft = LOCKSTEP_TRY(side_file(extra, "mtp_file"));
  side.ngram = LOCKSTEP_TRY(side_file(extra, "ngram_file"));
  side.vision = LOCKSTEP_TRY(side_file(extra, "vision_file"));
  LOCKSTEP_TRY(extra.refuse_unknown());
  return side;
}

Status TensorSet::add_file(const std::filesystem::path& path) {
  files_.push_back(LOCKSTEP_TRY(SafetensorsFile::open(path)));
  const SafetensorsFile& file = files_.back();
  for (const TensorInfo& info : file.tensors()) {
    const auto [at, added] = tensors_.try_emplace(info.name, Entry{{&file, &info}, false});
    if (!added) {
      return fail(ErrorKind::Invalid, "{}: tensor '{}' is also in {}", path.string(), info.name,
                  at->second.tensor.file->path().string());
    }
  }
  return {};
}

Status TensorSet::add_indexed_files(const std::filesystem::path& directory, const std::filesystem::path& index,
                                    std::vector<std::string>& warnings) {
  const std::string text = LOCKSTEP_TRY(read_file(index, std::uint64_t{64} << 20));
  JsonLimits limits;
  limits.max_depth = 8;
  limits.unique_keys = true;
  const Json json = LOCKSTEP_TRY(parse_json(text, index.string(), limits));
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (map == json.end() || !map->is_object()) {
    return fail(ErrorKind::Invalid, "{}: field 'weight_map' is missing or no object", index.string());
  }
  const std::optional<std::uint64_t> total = LOCKSTEP_TRY(total_size(json, index.string()));
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string() || !plain_tensor_file_name(file.get_ref<const std::string&>())) {
      return fail(ErrorKind::Invalid, "{}: tensor '{}' lies in {}, not a plain .safetensors file name", index.string(),
                  tensor, brief(file));
    }
    names.insert(file.get<std::string>());
  }
  if (names.size() > kMaxFiles) return fail(ErrorKind::Limit, "{}: names {} files", index.string(), names.size());
  for (const std::string& name : names) LOCKSTEP_TRY(add_file(directory / name));
  for (const auto& [tensor, file] : map->items()) {
    const auto found = tensors_.find(tensor);
    if (found == tensors_.end() || found->second.tensor.file->path().filename() != file.get_ref<const std::string&>()) {
      return fail(ErrorKind::NotFound, "{}: tensor '{}' is not in {} as the index says", index.string(), tensor,
                  file.get_ref<const std::string&>());
    }
  }
  for (const auto& [name, entry] : tensors_) {
    if (!map->contains(name)) {
      return fail(ErrorKind::Invalid, "{}: tensor '{}' is missing in {}", entry.tensor.file->path().string(), name,
                  kIndexName);
    }
  }
  std::uint64_t bytes = 0;
  for (const auto& [name, entry] : tensors_) bytes += entry.tensor.info->bytes;
  if (total && *total != bytes) {  // no harm is done: every tensor is where the index says
    warnings.push_back(
        fmt::format("{}: metadata.total_size is {}, but the tensors have {} bytes", index.string(), *total, bytes));
  }
  return {};
}

Status TensorSet::add_model_files(const std::filesystem::path& directory, std::vector<std::string>& warnings) {
  const std::vector<std::string> present = LOCKSTEP_TRY(list_model_files(directory));
  const std::filesystem::path index = directory / kIndexName;
  if (LOCKSTEP_TRY(file_present(index))) {
    LOCKSTEP_TRY(add_indexed_files(directory, index, warnings));
    for (const std::string& name : present) {
      if (file(name) == nullptr && name != "model-vision.safetensors") {
        warnings.push_back(
            fmt::format("{}: not named in {}, so it was not read", (directory / name).string(), kIndexName));
      }
    }
    return {};
  }
  if (present.empty()) {
    return fail(ErrorKind::NotFound,
                "{}: no model.safetensors, no model-*.safetensors and no {}; is this a model directory?",
                directory.string(), kIndexName);
  }
  if (present.size() > kMaxFiles)
    return fail(ErrorKind::Limit, "{}: {} model files", directory.string(), present.size());
  for (const std::string& name : present) LOCKSTEP_TRY(add_file(directory / name));
  return {};
}

Result<TensorSet> TensorSet::open(const std::filesystem::path& directory, const SideFiles& side,
                                  std::vector<std::string>& warnings) {
  TensorSet set;
  set.directory_ = directory;
  LOCKSTEP_TRY(set.add_model_files(directory, warnings));
  for (const auto& name : {side.draft, side.ngram, side.vision}) {
    if (!name || set.file(*name) != nullptr) continue;
    if (name == side.vision && !LOCKSTEP_TRY(file_present(directory / *name))) {
      warnings.push_back(fmt::format("{}: absent (vision tower, not used)", (directory / *name).string()));
      continue;
    }
    LOCKSTEP_TRY(set.add_file(directory / *name));
  }
  return set;
}

Result<TensorSet::Tensor> TensorSet::take(std::string_view name) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    return fail(ErrorKind::NotFound, "{}: tensor '{}' is missing", directory_.string(), name);
  found->second.used = true;
  return found->second.tensor;
}

bool TensorSet::any_with_prefix(std::string_view prefix) const {
  const auto found = tensors_.lower_bound(prefix);
  return found != tensors_.end() && found->first.starts_with(prefix);
}

std::string TensorSet::file_of(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? "" : found->second.tensor.file->path().filename().string();
}

std::vector<std::string> TensorSet::unused() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : tensors_) {
    if (!entry.used) names.emplace_back(name);
  }
  return names;
}

std::vector<TensorRecord> TensorSet::inventory() const {
  std::vector<TensorRecord> records;
  for (const auto& [name, entry] : tensors_) {
    const TensorInfo& info = *entry.tensor.info;
    records.push_back(
        {info.name, entry.tensor.file->path().filename().string(), info.dtype, info.shape, info.offset, info.bytes});
  }
  return records;
}

Status TensorSet::intact() const {
  for (const SafetensorsFile& file : files_) LOCKSTEP_TRY(file.intact());
  return {};
}

const SafetensorsFile* TensorSet::file(std::string_view file_name) const {
  for (const SafetensorsFile& candidate : files_) {
    if (candidate.path().filename() == file_name) return &candidate;
  }
  return nullptr;
}

}  // namespace lockstep::artifact
