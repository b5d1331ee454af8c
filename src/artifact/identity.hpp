// What a set of files is: hashes that change when a file's meaning may have changed (docs/artifact.md, "Identity").
#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "artifact/artifact.hpp"

namespace lockstep::artifact {

/// SHA-256 over lines "name dtype [d0, d1]\n"; `records` ascend by name.
[[nodiscard]] std::string inventory_sha256(std::span<const TensorRecord> records);

struct FileHash {
  std::string file, sha256;
  std::uint64_t bytes = 0;
};

/// SHA-256 and size of one file. `step` is called with the bytes hashed since its last call; its error ends the work.
/// Errors: as MappedFile::open(), Io when the file changes meanwhile.
Result<FileHash> hash_file(const std::filesystem::path& path, const std::function<Status(std::uint64_t)>& step);

/// SHA-256 of config.json, mtplx_runtime.json (when there is one) and every tensor file, in ascending order of name.
/// `progress` is called with the bytes hashed since its last call; false ends the work with Cancelled.
Result<std::vector<FileHash>> hash_files(const Artifact& artifact, const std::function<bool(std::uint64_t)>& progress);

/// Sum of the sizes that hash_files() will read.
Result<std::uint64_t> hashed_bytes(const Artifact& artifact);

}  // namespace lockstep::artifact
