// The names of files that are being written, so that a signal that ends the process at once can remove them.
#pragma once

#include <string>

namespace lockstep {

/// While it exists, remove_temporary_files() removes the file of that name. Movable.
class TemporaryName {
 public:
  TemporaryName() = default;
  /// A name that is too long for the list, or one too many, is not kept: its file then stays behind in such a case.
  explicit TemporaryName(const std::string& path);
  TemporaryName(TemporaryName&& other) noexcept;
  TemporaryName& operator=(TemporaryName&& other) noexcept;
  TemporaryName(const TemporaryName&) = delete;
  TemporaryName& operator=(const TemporaryName&) = delete;
  ~TemporaryName();

 private:
  void forget() noexcept;
  int slot_ = -1;
};

/// Removes the files of all names there are. Safe in a signal handler; for a process that is about to end.
void remove_temporary_files() noexcept;

}  // namespace lockstep
