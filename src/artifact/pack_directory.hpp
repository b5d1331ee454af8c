// The directory a pack grows in: DESTINATION.partial, with a record of the finished files, moved into place at the end.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "base/json.hpp"
#include "base/result.hpp"

namespace lockstep::artifact {

class PackDirectory {
 public:
  /// Opens or creates DESTINATION.partial and locks it against a second writer. `fingerprint` describes source and
  /// recipe: finished files of an earlier run with the same fingerprint are kept, those of another one are removed.
  /// Errors: Invalid when the destination exists (unless `force` and it is a model directory or empty), or when the
  /// partial directory was not made by this program; Io.
  static Result<PackDirectory> open(const std::filesystem::path& destination, const Json& fingerprint, bool force);

  PackDirectory(PackDirectory&& other) noexcept;
  PackDirectory& operator=(PackDirectory&&) = delete;
  PackDirectory(const PackDirectory&) = delete;
  PackDirectory& operator=(const PackDirectory&) = delete;
  ~PackDirectory();

  [[nodiscard]] const std::filesystem::path& partial() const { return partial_; }
  /// Errors: Limit when the file system has less than `needed` bytes free.
  [[nodiscard]] Status check_space(std::uint64_t needed) const;
  /// True when an earlier run finished this file.
  [[nodiscard]] bool has(const std::string& name) const { return finished_.contains(name); }
  /// Records a file that is now complete.
  Status finish_file(const std::string& name);
  /// Removes the partial directory with all that is in it.
  void discard();
  /// Renames the directory to the destination, replacing an old one, and drops the record.
  Status publish();

 private:
  PackDirectory() = default;
  Status load_record();
  Status remove_unfinished() const;
  Status save_record() const;

  std::filesystem::path destination_, partial_;
  Json fingerprint_;
  std::map<std::string, std::uint64_t> finished_;  // name -> bytes
  int lock_ = -1;
};

}  // namespace lockstep::artifact
