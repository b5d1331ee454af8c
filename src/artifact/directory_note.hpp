// What the files of a model directory looked like at some time, to tell afterwards whether anybody has touched them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "base/result.hpp"

namespace lockstep::artifact {

/// Device, inode, size and time of the last write of every regular file of a directory; links are followed. A writer
/// that sets the time back, or writes within the same tick of the system's clock, is not noticed.
class DirectoryNote {
 public:
  /// Errors: NotFound, Io.
  static Result<DirectoryNote> take(const std::filesystem::path& directory);

  /// The first noted file that is not what it was: "DIR/FILE has been removed"; empty when there is none. Files that
  /// have come since do not count.
  [[nodiscard]] std::string difference() const;

 private:
  struct Stamp {
    std::uint64_t device = 0, inode = 0, bytes = 0;
    std::int64_t seconds = 0, nanoseconds = 0;
    bool operator==(const Stamp&) const = default;
  };
  /// False when there is no such regular file.
  static bool look(const std::filesystem::path& path, Stamp& stamp);

  std::map<std::filesystem::path, Stamp> files_;
};

}  // namespace lockstep::artifact
