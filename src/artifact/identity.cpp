#include "artifact/identity.hpp"

#include <algorithm>
#include <set>

#include "artifact/safetensors.hpp"
#include "base/file.hpp"
#include "base/sha256.hpp"

namespace lockstep::artifact {
namespace {

std::set<std::string> identity_files(const Artifact& artifact) {
  std::set<std::string> names{"config.json"};
  if (!artifact.identity().runtime_sha256.empty()) names.insert("mtplx_runtime.json");
  for (const TensorRecord& record : artifact.inventory()) names.insert(record.file);
  // Tokenizer, template and generation defaults decide the output as much as weights do.
  std::error_code unreadable;
  for (const auto& entry : std::filesystem::directory_iterator(artifact.directory(), unreadable)) {
    std::error_code ignored;
    if (entry.is_regular_file(ignored)) names.insert(entry.path().filename().string());
  }
  return names;
}

}  // namespace

std::string inventory_sha256(std::span<const TensorRecord> records) {
  Sha256 hash;
  for (const TensorRecord& record : records) {
    hash.update(fmt::format("{} {} {}\n", record.name, dtype_name(record.dtype), shape_text(record.shape)));
  }
  return hash.hex();
}

Result<std::uint64_t> hashed_bytes(const Artifact& artifact) {
  std::uint64_t total = 0;
  for (const std::string& name : identity_files(artifact)) {
    std::error_code error;
    total += std::filesystem::file_size(artifact.directory() / name, error);
    if (error) return fail(ErrorKind::Io, "{}: {}", (artifact.directory() / name).string(), error.message());
  }
  return total;
}

Result<FileHash> hash_file(const std::filesystem::path& path, const std::function<Status(std::uint64_t)>& step) {
  constexpr std::size_t kBlock = std::size_t{8} << 20;
  const MappedFile file = LOCKSTEP_TRY(MappedFile::open(path));
  Sha256 hash;
  for (auto rest = file.bytes(); !rest.empty();) {
    const auto block = rest.first(std::min(kBlock, rest.size()));
    hash.update(block);
    LOCKSTEP_TRY(step(block.size()));
    rest = rest.subspan(block.size());
    file.release_pages();
  }
  LOCKSTEP_TRY(file.intact());
  return FileHash{path.filename().string(), hash.hex(), file.bytes().size()};
}

Result<std::vector<FileHash>> hash_files(const Artifact& artifact, const std::function<bool(std::uint64_t)>& progress) {
  std::vector<FileHash> hashes;
  for (const std::string& name : identity_files(artifact)) {
    hashes.push_back(LOCKSTEP_TRY(hash_file(artifact.directory() / name, [&](std::uint64_t bytes) -> Status {
      if (!progress(bytes)) return fail(ErrorKind::Cancelled, "interrupted");
      return {};
    })));
  }
  return hashes;
}

}  // namespace lockstep::artifact
