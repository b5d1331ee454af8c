// All tensors of a model directory: which files belong to it, every tensor by name, and which of them were used.
#pragma once

#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "artifact/artifact.hpp"
#include "artifact/safetensors.hpp"

namespace lockstep::artifact {

/// Side files that config.json may name under mlx_lm_extra_tensors.
struct SideFiles {
  std::optional<std::string> draft, ngram, vision;
};

/// Reads mlx_lm_extra_tensors. Errors: Invalid for a name that is not a plain file name, Unsupported for unknown keys.
/// `file` is the path that errors name.
Result<SideFiles> parse_side_files(const Json& config, const std::string& file = "config.json");

/// True for a file name without directories: no separator, not hidden, ending in ".safetensors".
[[nodiscard]] bool plain_tensor_file_name(std::string_view name);

class TensorSet {
 public:
  struct Tensor {
    const SafetensorsFile* file = nullptr;
    const TensorInfo* info = nullptr;
    [[nodiscard]] std::span<const std::byte> data() const { return file->data(*info); }
  };

  /// Opens the files named by model.safetensors.index.json, or else model*.safetensors, and the side files. Checks
  /// every header, that names are unique over all files, and that the index and the headers agree.
  static Result<TensorSet> open(const std::filesystem::path& directory, const SideFiles& side,
                                std::vector<std::string>& warnings);

  [[nodiscard]] bool contains(std::string_view name) const { return tensors_.contains(name); }
  /// The tensor, marked as used. Errors: NotFound.
  Result<Tensor> take(std::string_view name);
  /// Name of the file that has the tensor, without the directory; empty for a tensor that is not there.
  [[nodiscard]] std::string file_of(std::string_view name) const;
  /// True when any name starts with `prefix`.
  [[nodiscard]] bool any_with_prefix(std::string_view prefix) const;
  /// Names nobody took, ascending.
  [[nodiscard]] std::vector<std::string> unused() const;
  [[nodiscard]] std::vector<TensorRecord> inventory() const;
  void release_pages() const noexcept {
    for (const SafetensorsFile& file : files_) file.release_pages();
  }
  /// Fails once one of the files has changed or could not be read.
  [[nodiscard]] Status intact() const;
  [[nodiscard]] const SafetensorsFile* file(std::string_view file_name) const;

 private:
  struct Entry {
    Tensor tensor;
    bool used = false;
  };
  Status add_file(const std::filesystem::path& path);
  Status add_model_files(const std::filesystem::path& directory, std::vector<std::string>& warnings);
  Status add_indexed_files(const std::filesystem::path& directory, const std::filesystem::path& index,
                           std::vector<std::string>& warnings);

  std::filesystem::path directory_;
  std::deque<SafetensorsFile> files_;  // a deque keeps addresses
  std::map<std::string_view, Entry, std::less<>> tensors_;
};

}  // namespace lockstep::artifact
