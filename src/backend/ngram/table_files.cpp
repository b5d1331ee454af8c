#include "backend/ngram/table_files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "backend/ngram/memory_block.hpp"

namespace lockstep::backend {
namespace {

/// A multiple of the logical block size of every common device; rows are far smaller anyway.
constexpr std::size_t kDirectAlignment = 4096;

}  // namespace

Result<TableFiles> TableFiles::open(const artifact::NgramTableView& view, const RowFormat& format, bool direct) {
  TableFiles files;
  if (view.files.empty()) {
    return fail(ErrorKind::Unsupported, "the n-gram table is in memory and in no file: it can only be resident");
  }
  for (const artifact::RowsFile& place : view.files) LOCKSTEP_TRY(files.add(place.path));
  LOCKSTEP_TRY(files.check_rows(view, format));
  files.set_direct(direct);
  if (direct && !files.all_allow_direct()) files.set_direct(false);
  if (!files.direct()) {
    // Neighbours of a row are not wanted, so reading ahead would only waste time.
    for (const File& file : files.open_) (void)::posix_fadvise(file.descriptor, 0, 0, POSIX_FADV_RANDOM);
  }
  return files;
}

TableFiles::~TableFiles() {
  for (const File& file : open_) ::close(file.descriptor);
}

Status TableFiles::add(const std::string& path) {
  const auto same = std::find_if(open_.begin(), open_.end(), [&](const File& file) { return file.path == path; });
  index_.push_back(static_cast<std::size_t>(same - open_.begin()));
  if (same != open_.end()) return {};
  // O_NONBLOCK keeps a FIFO from blocking for ever; set_direct() clears it.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    const ErrorKind kind = errno == ENOENT || errno == ENOTDIR ? ErrorKind::NotFound : ErrorKind::Io;
    return fail(kind, "{}: cannot open the n-gram table: {}", path, std::strerror(errno));
  }
  File& file = open_.emplace_back(File{path, descriptor, 0});
  struct stat info {};
  if (::fstat(descriptor, &info) != 0) return fail(ErrorKind::Io, "{}: cannot stat: {}", path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return fail(ErrorKind::Invalid, "{}: not a regular file", path);
  file.size = static_cast<std::uint64_t>(info.st_size);
  return {};
}

Status TableFiles::check_rows(const artifact::NgramTableView& view, const RowFormat& format) const {
  const std::int64_t rows_per_file = view.table ? view.rows : view.rows_per_shard;
  for (std::size_t i = 0; i < index_.size(); ++i) {
    const std::int64_t last = std::min(view.rows, (static_cast<std::int64_t>(i) + 1) * rows_per_file) - 1;
    for (std::size_t p = 0; p < format.planes(); ++p) {
      const RowPlane plane = format.plane(last, p);
      const File& file = open_[index_[i]];
      if (plane.offset + plane.bytes <= file.size) continue;
      return fail(ErrorKind::Invalid, "{}: {} bytes, but the n-gram table in it ends at byte {}: copy the file again",
                  file.path, file.size, plane.offset + plane.bytes);
    }
  }
  return {};
}

/// Changing the flag of an open file, unlike opening it again, cannot come upon another file.
void TableFiles::set_direct(bool direct) {
  alignment_ = direct ? kDirectAlignment : 1;
  for (const File& file : open_) {
    if (::fcntl(file.descriptor, F_SETFL, direct ? O_DIRECT : 0) != 0) alignment_ = 1;
  }
}

/// Some file systems take the flag and then refuse the reads.
bool TableFiles::all_allow_direct() const {
  if (alignment_ == 1) return false;
  const auto page = aligned_block(kDirectAlignment, kDirectAlignment);
  if (!page) return false;
  return std::all_of(open_.begin(), open_.end(),
                     [&](const File& file) { return ::pread(file.descriptor, page->get(), kDirectAlignment, 0) >= 0; });
}

}  // namespace lockstep::backend
