// Files: read-only memory maps, bounded whole-file reads, and writes that never leave a half file under the final name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/mapping_guard.hpp"
#include "base/result.hpp"
#include "base/temporary_files.hpp"

namespace lockstep {

/// A read-only map of a whole regular file. Movable; the bytes live as long as the object. Where the file is cut
/// shorter meanwhile, or the disk fails, the bytes from there on are zeros; where it is written to, they are others.
/// intact() says so ever after: whoever has read the bytes asks it before the result is used. A writer that sets the
/// time of the last write back is not noticed.
class MappedFile {
 public:
  /// Maps `path`. An empty file maps to an empty span. Errors: NotFound, Io, Invalid (not a regular file).
  static Result<MappedFile> open(const std::filesystem::path& path);

  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Takes the map's pages out of this process; the next access brings them back from the system's cache or the disk.
  void release_pages() const noexcept;
  /// Whether what was read so far were the bytes that the file had when it was opened. Costs an fstat(). Errors: Io,
  /// naming the file.
  [[nodiscard]] Status intact() const;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int descriptor_ = -1;  ///< of the mapped file, whatever becomes of its name
  std::int64_t written_seconds_ = 0, written_nanoseconds_ = 0;
  std::filesystem::path path_;
  MappingGuard guard_;
};

/// Whether a file may count as absent: nothing has that name. Errors: Io for a name that cannot be looked up, and for a
/// symbolic link that leads nowhere, which somebody meant to be a file.
Result<bool> file_present(const std::filesystem::path& path);

/// A message that begins with the name of a file, with the directory in front: "DIR/config.json: ...". For parsers that
/// know no directory.
[[nodiscard]] std::string in_directory(const std::filesystem::path& directory, std::string_view message);

/// Reads a whole file into a string. Errors: NotFound when nothing has that name, Io, Limit when it is larger than
/// `max_bytes`.
Result<std::string> read_file(const std::filesystem::path& path, std::uint64_t max_bytes);

/// Writes a file under a temporary name next to `path`; commit() flushes it to disk and renames it into place.
/// An object destroyed without commit() removes the temporary file, and so does remove_temporary_files(); a process
/// that is killed leaves it behind as PATH.tmp-PID-N, never a half file under the final name.
class AtomicFile {
 public:
  /// `mode` are the permissions of the file, less what the umask takes away. Errors: Invalid when `path` exists and is
  /// not a regular file (a directory, a device), Io.
  static Result<AtomicFile> create(const std::filesystem::path& path, unsigned mode = 0666);

  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  /// Appends bytes. Errors: Io with the system's reason (full disk, say).
  [[nodiscard]] Status write(std::span<const std::byte> bytes);
  [[nodiscard]] Status write(std::string_view text);
  /// Writes at an absolute offset without moving the append position.
  [[nodiscard]] Status write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// The append position: the number of bytes that write() took.
  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Errors: Io, also when an earlier write failed: what is committed is whole.
  [[nodiscard]] Status commit();

 private:
  AtomicFile() = default;
  void discard() noexcept;
  Status write_all(std::uint64_t offset, std::span<const std::byte> bytes);

  int fd_ = -1;
  std::uint64_t size_ = 0;
  bool failed_ = false;
  std::filesystem::path path_, temporary_;
  TemporaryName name_;
};

/// Writes the whole text atomically. Errors: as AtomicFile.
[[nodiscard]] Status write_file(const std::filesystem::path& path, std::string_view text);

}  // namespace lockstep
