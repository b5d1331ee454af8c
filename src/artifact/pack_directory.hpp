// The directory a pack grows in: DESTINATION.partial, with a record of the finished files, moved into place at the end.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "base/json.hpp"
#include "base/result.hpp"

namespace lockstep::artifact {

/// Errors: Cancelled when the flag is there and set.
[[nodiscard]] Status check_cancel(const std::atomic<bool>* cancel);

/// An error of a run into `destination` that has left its partial directory alone, which the message says unless it
/// names that already.
[[nodiscard]] Error with_partial(Error error, const std::filesystem::path& destination);

class PackDirectory {
 public:
  /// Opens or creates DESTINATION.partial and locks it against a second writer. `fingerprint` describes source and
  /// recipe, `names` are the files that it can record as finished. What an earlier run with the same fingerprint has
  /// finished of them is kept, everything else is removed. Errors: Invalid when the destination exists (unless `force`
  /// and it is a model directory or empty), or when the partial directory was not made by this program; Io.
  static Result<PackDirectory> open(const std::filesystem::path& destination, const Json& fingerprint,
                                    const std::set<std::string>& names, bool force);

  PackDirectory(PackDirectory&& other) noexcept;
  PackDirectory& operator=(PackDirectory&&) = delete;
  PackDirectory(const PackDirectory&) = delete;
  PackDirectory& operator=(const PackDirectory&) = delete;
  ~PackDirectory();

  [[nodiscard]] const std::filesystem::path& partial() const { return partial_; }
  /// Bytes of the files that an earlier run finished.
  [[nodiscard]] std::uint64_t finished_bytes() const;
  /// Reads them and forgets those whose SHA-256 is not the recorded one: they count as not finished. Returns how many
  /// that were. `step` is called with the bytes read since its last call; its error ends the work.
  Result<std::size_t> check_finished(const std::function<Status(std::uint64_t)>& step);
  /// Errors: Limit when the file system has less than `needed` bytes free.
  [[nodiscard]] Status check_space(std::uint64_t needed) const;
  /// True when this file is finished, by an earlier run for example.
  [[nodiscard]] bool has(const std::string& name) const { return finished_.contains(name); }
  /// Records a file that is now complete, with its SHA-256. `step`: as in check_finished().
  Status finish_file(const std::string& name, const std::function<Status(std::uint64_t)>& step);
  /// The error of a run that has failed, with what it leaves: without a finished file nothing, otherwise the partial
  /// directory, which the message then names.
  [[nodiscard]] tl::unexpected<Error> give_up(Error error);
  /// Removes the partial directory with all that is in it.
  void discard();
  /// Renames the directory to the destination, replacing an old one, and drops the record.
  Status publish();

 private:
  PackDirectory() = default;
  struct Finished {
    std::uint64_t bytes = 0;
    std::string sha256;
  };
  Status prepare(bool existed, const std::set<std::string>& names);
  Status load_record(const std::set<std::string>& names);
  Status remove_unfinished() const;
  Status save_record() const;

  std::filesystem::path destination_, partial_;
  Json fingerprint_;
  std::map<std::string, Finished> finished_;
  int lock_ = -1;
};

}  // namespace lockstep::artifact
