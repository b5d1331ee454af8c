#include "engine/identity.hpp"

#include <chrono>
#include <set>

#include "base/sha256.hpp"

namespace lockstep::engine {

Result<std::string> model_identity(const artifact::Artifact& artifact) {
  const artifact::Identity& identity = artifact.identity();
  Sha256 hash;
  hash.update(fmt::format("{}\n{}\n{}\n", identity.config_sha256, identity.runtime_sha256, identity.inventory_sha256));
  std::set<std::string> files;
  for (const artifact::TensorRecord& record : artifact.inventory()) files.insert(record.file);
  for (const std::string& name : files) {
    const std::filesystem::path path = artifact.directory() / name;
    std::error_code error;
    const std::uint64_t size = std::filesystem::file_size(path, error);
    if (error) return fail(ErrorKind::Io, "{}: {}", path.string(), error.message());
    const auto time = std::filesystem::last_write_time(path, error);
    if (error) return fail(ErrorKind::Io, "{}: {}", path.string(), error.message());
    const auto changed = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
    hash.update(fmt::format("{} {} {}\n", name, size, changed));
  }
  return hash.hex();
}

}  // namespace lockstep::engine
