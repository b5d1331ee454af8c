#include "artifact/directory_note.hpp"

#include <sys/stat.h>

namespace lockstep::artifact {

bool DirectoryNote::look(const std::filesystem::path& path, Stamp& stamp) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  stamp = {info.st_dev, info.st_ino, static_cast<std::uint64_t>(info.st_size), info.st_mtim.tv_sec,
           info.st_mtim.tv_nsec};
  return true;
}

Result<DirectoryNote> DirectoryNote::take(const std::filesystem::path& directory) {
  DirectoryNote note;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    Stamp stamp;
    if (look(it->path(), stamp)) note.files_[it->path()] = stamp;
  }
  if (error) {
    const bool missing = error == std::errc::no_such_file_or_directory;
    return fail(missing ? ErrorKind::NotFound : ErrorKind::Io, "{}: cannot list: {}", directory.string(),
                error.message());
  }
  return note;
}

std::string DirectoryNote::difference() const {
  for (const auto& [path, before] : files_) {
    Stamp now;
    if (!look(path, now)) return path.string() + " has been removed";
    if (now.device != before.device || now.inode != before.inode) return path.string() + " has been replaced";
    if (now.bytes != before.bytes) {
      return fmt::format("{} has grown or shrunk from {} to {} bytes", path.string(), before.bytes, now.bytes);
    }
    if (now != before) return path.string() + " has been written to";
  }
  return {};
}

}  // namespace lockstep::artifact
