// Writes one planned file of a pack, quantising as it goes.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>

#include "artifact/pack_plan.hpp"
#include "base/thread_pool.hpp"

namespace lockstep::artifact {

/// What long writing needs from its caller.
struct PackWork {
  ThreadPool& pool;
  const Artifact& source;                       ///< what is read; its experts may still have to be transposed
  std::function<void(std::uint64_t)> progress;  ///< called with the source's bytes read since the last call
  const std::atomic<bool>* cancel = nullptr;    ///< looked at every few megabytes
};

/// Reads sources in row blocks of at most 32 MiB, transposes one matrix stack at a time and gives the pages of each
/// matrix back, so resident memory does not depend on the number of layers. The file appears under its name when it is
/// complete. Errors: Invalid, naming tensor and row, for a weight that is not finite or too large for the scale of its
/// group, Io, Cancelled.
Status write_pack_file(const PlannedFile& file, const std::filesystem::path& directory, const PackWork& work);

}  // namespace lockstep::artifact
