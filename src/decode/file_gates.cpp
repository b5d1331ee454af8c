#include "decode/file_gates.hpp"

#include <algorithm>
#include <map>

#include "artifact/model_walk.hpp"
#include "artifact/safetensors.hpp"

namespace lockstep::decode {
namespace {

using artifact::Artifact;
using artifact::TensorRecord;

std::string record_difference(const TensorRecord& a, const TensorRecord& b) {
  if (a.name != b.name) return fmt::format("tensor '{}' stands where '{}' stood", b.name, a.name);
  if (a.file != b.file) return fmt::format("tensor '{}' lies in {}, not in {}", a.name, b.file, a.file);
  if (a.dtype != b.dtype || a.shape != b.shape) return fmt::format("tensor '{}' has another type or shape", a.name);
  if (a.offset != b.offset || a.bytes != b.bytes) return fmt::format("tensor '{}' lies elsewhere in its file", a.name);
  return {};
}

/// Byte ranges, file by file: as long as the shapes need, without overlap.
std::string range_difference(const Artifact& artifact) {
  std::map<std::string, std::map<std::uint64_t, const TensorRecord*>> files;
  for (const TensorRecord& record : artifact.inventory()) {
    if (artifact::tensor_bytes(record.dtype, record.shape) != record.bytes) {
      return fmt::format("tensor '{}' has {} bytes, which is not its shape", record.name, record.bytes);
    }
    if (record.bytes == 0) continue;
    if (!files[record.file].emplace(record.offset, &record).second) {
      return fmt::format("tensor '{}' lies where another one begins", record.name);
    }
  }
  for (const auto& [name, tensors] : files) {
    std::uint64_t end = 0;
    for (const auto& [offset, record] : tensors) {
      if (offset < end) return fmt::format("tensor '{}' overlaps another one in {}", record->name, name);
      end = offset + record->bytes;
    }
    std::error_code error;
    const std::uint64_t size = std::filesystem::file_size(artifact.directory() / name, error);
    if (error || size < end) return fmt::format("{} ends before its tensors do", name);
  }
  return {};
}

}  // namespace

std::string identity_difference(const Artifact& artifact) {
  const artifact::Identity& first = artifact.identity();
  if (artifact::inventory_sha256(artifact.inventory()) != first.inventory_sha256) return "the inventory's hash differs";
  const Result<Artifact> again = Artifact::open_shapes(artifact.directory());
  if (!again) return fmt::format("the model cannot be opened a second time: {}", again.error().message);
  const artifact::Identity& second = again->identity();
  if (first.config_sha256 != second.config_sha256) return "config.json has changed";
  if (first.runtime_sha256 != second.runtime_sha256) return "mtplx_runtime.json has changed";
  if (first.inventory_sha256 != second.inventory_sha256) return "the tensors' names, types or shapes have changed";
  return {};
}

std::string inventory_difference(const Artifact& artifact) {
  const Result<Artifact> again = Artifact::open_shapes(artifact.directory());
  if (!again) return again.error().message;
  const auto& records = artifact.inventory();
  if (again->inventory().size() != records.size()) {
    return fmt::format("{} tensors, and {} on the second reading", records.size(), again->inventory().size());
  }
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (i > 0 && records[i - 1].name >= records[i].name) return fmt::format("tensor '{}' comes twice", records[i].name);
    std::string difference = record_difference(records[i], again->inventory()[i]);
    if (!difference.empty()) return difference;
  }
  if (again->ignored() != artifact.ignored()) return "other tensors are ignored on the second reading";
  for (const artifact::MatrixPart& part : artifact::walk_model(artifact.view()).matrices) {
    const artifact::MatrixView& matrix = *part.matrix;
    const bool whole = matrix.quantised
                           ? matrix.codes != nullptr && matrix.scales != nullptr && matrix.biases != nullptr
                           : matrix.data != nullptr;
    if (!whole || matrix.count < 1 || matrix.rows < 1 || matrix.cols < 1) {
      return fmt::format("matrix '{}' of the model has no data", part.module);
    }
  }
  return range_difference(artifact);
}

std::string hash_difference(const std::vector<artifact::FileHash>& first,
                            const std::vector<artifact::FileHash>& second) {
  if (first.size() != second.size()) return "the directory has other files than at the beginning";
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (first[i].file != second[i].file) return "the directory has other files than at the beginning";
    if (first[i].sha256 != second[i].sha256) return fmt::format("{} has changed", first[i].file);
  }
  return {};
}

}  // namespace lockstep::decode
