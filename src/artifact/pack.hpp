// Makes a quantised pack from a checkpoint in the official layout.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "artifact/artifact.hpp"
#include "artifact/recipe.hpp"

namespace lockstep::artifact {

struct PackOptions {
  Recipe recipe;
  bool force = false;       ///< replace an existing pack
  std::size_t threads = 0;  ///< 0: physical cores
  std::uint64_t shard_bytes = std::uint64_t{4} << 30;
  const std::atomic<bool>* cancel = nullptr;
  /// Called with the bytes of the source's matrices read so far and in all; files that an interrupted run had finished
  /// count for neither.
  std::function<void(std::uint64_t, std::uint64_t)> progress = [](std::uint64_t, std::uint64_t) {};
  /// Called before that, with the bytes of those finished files that have been read again and in all.
  std::function<void(std::uint64_t, std::uint64_t)> checking = [](std::uint64_t, std::uint64_t) {};
};

struct PackResult {
  std::size_t files = 0, reused = 0;  ///< tensor files, and those an interrupted run had finished
  std::size_t damaged = 0;            ///< finished files that had changed since and were made again
  std::uint64_t bytes = 0;
};

/// Writes DESTINATION, which appears only when it is complete and opens again. A run that ends early leaves
/// DESTINATION.partial with the files that it finished, if any, and is continued by the same call. Errors: Unsupported
/// (quantised source), Invalid (a weight that is not finite or too large, an existing destination), Limit (not enough
/// space), Io (also for a source that shrinks meanwhile), Cancelled. They say what is left.
Result<PackResult> write_pack(const std::filesystem::path& source, const std::filesystem::path& destination,
                              const PackOptions& options);

}  // namespace lockstep::artifact
