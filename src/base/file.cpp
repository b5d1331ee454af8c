#include "base/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

namespace lockstep {
namespace {

constexpr int kNameAttempts = 100;

std::string reason() {
  return std::strerror(errno);
}

bool is_link(const std::filesystem::path& path) {
  const int error = errno;
  struct stat info {};
  const bool link = ::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
  errno = error;
  return link;
}

tl::unexpected<Error> dead_link(const std::filesystem::path& path) {
  return fail(ErrorKind::Io, "{}: a symbolic link that leads nowhere: mend or remove it", path.string());
}

/// An open file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

tl::unexpected<Error> open_failure(const std::filesystem::path& path) {
  const bool missing = errno == ENOENT || errno == ENOTDIR;
  if (missing && is_link(path)) return dead_link(path);
  return fail(missing ? ErrorKind::NotFound : ErrorKind::Io, "{}: cannot open: {}", path.string(), reason());
}

/// Opens for reading. O_NONBLOCK keeps a FIFO without a writer from blocking for ever; regular files ignore it. A name
/// with a NUL inside (from a JSON string, say) would silently open a different file.
int open_for_reading(const std::filesystem::path& path) {
  if (path.native().find('\0') != std::string::npos) {
    errno = EINVAL;
    return -1;
  }
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

/// What the system says of a regular file, or an error.
Result<struct stat> regular_file(int fd, const std::filesystem::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return fail(ErrorKind::Io, "{}: cannot stat: {}", path.string(), reason());
  if (!S_ISREG(info.st_mode)) return fail(ErrorKind::Invalid, "{}: not a regular file", path.string());
  return info;
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::filesystem::path& path) {
  MappedFile file;
  file.descriptor_ = open_for_reading(path);
  if (file.descriptor_ < 0) return open_failure(path);
  const struct stat info = LOCKSTEP_TRY(regular_file(file.descriptor_, path));
  const auto size = static_cast<std::uint64_t>(info.st_size);
  file.path_ = path;
  file.written_seconds_ = info.st_mtim.tv_sec;
  file.written_nanoseconds_ = info.st_mtim.tv_nsec;
  if (size == 0) return file;
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.descriptor_, 0);
  if (data == MAP_FAILED) return fail(ErrorKind::Io, "{}: cannot map {} bytes: {}", path.string(), size, reason());
  file.data_ = static_cast<const std::byte*>(data);
  file.size_ = size;
  file.guard_ = LOCKSTEP_TRY(MappingGuard::watch(file.bytes()));
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      written_seconds_(other.written_seconds_),
      written_nanoseconds_(other.written_nanoseconds_),
      path_(std::move(other.path_)),
      guard_(std::move(other.guard_)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(descriptor_, other.descriptor_);
  std::swap(written_seconds_, other.written_seconds_);
  std::swap(written_nanoseconds_, other.written_nanoseconds_);
  std::swap(path_, other.path_);
  std::swap(guard_, other.guard_);
  return *this;
}

Status MappedFile::intact() const {
  // A fault alone does not tell: the rest of the page behind a new end reads as zeros without any, and a file may have
  // been cut and written again while nobody read. The descriptor is asked, not the name: another file that has taken
  // the name is none of this map's business.
  if (size_ == 0) return {};
  struct stat info {};
  const bool seen = ::fstat(descriptor_, &info) == 0;
  if (seen && static_cast<std::uint64_t>(info.st_size) < size_) {
    guard_.mark_lost();
    return fail(ErrorKind::Io, "{}: shrank from {} to {} bytes while it was read: restore it and start again",
                path_.string(), size_, info.st_size);
  }
  if (!seen || info.st_mtim.tv_sec != written_seconds_ || info.st_mtim.tv_nsec != written_nanoseconds_) {
    guard_.mark_lost();
    return fail(ErrorKind::Io, "{}: was written to while it was read: make sure that it is whole and start again",
                path_.string());
  }
  if (!guard_.lost()) return {};
  return fail(
      ErrorKind::Io,
      "{}: a part could not be read: it was changed for a while, or the disk failed; restore it and start again",
      path_.string());
}

void MappedFile::release_pages() const noexcept {
  // Private and never written: nothing is lost, and failure leaves things as they are.
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  guard_.release();  // first: another map may get the same addresses
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

Result<bool> file_present(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0) return true;
  if (is_link(path)) return dead_link(path);
  if (errno == ENOENT || errno == ENOTDIR) return false;
  return fail(ErrorKind::Io, "{}: cannot look at it: {}", path.string(), reason());
}

std::string in_directory(const std::filesystem::path& directory, std::string_view message) {
  return (directory / "").string().append(message);
}

Result<std::string> read_file(const std::filesystem::path& path, std::uint64_t max_bytes) {
  const Descriptor fd(open_for_reading(path));
  if (fd.get() < 0) return open_failure(path);
  const struct stat info = LOCKSTEP_TRY(regular_file(fd.get(), path));
  const auto size = static_cast<std::uint64_t>(info.st_size);
  if (size > max_bytes) {
    return fail(ErrorKind::Limit, "{}: {} bytes, more than the limit of {}", path.string(), size, max_bytes);
  }
  std::string text(size, '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t n = ::read(fd.get(), text.data() + filled, text.size() - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return fail(ErrorKind::Io, "{}: cannot read: {}", path.string(), reason());
    if (n == 0) return fail(ErrorKind::Io, "{}: shrank while it was read", path.string());
    filled += static_cast<std::size_t>(n);
  }
  return text;
}

Result<AtomicFile> AtomicFile::create(const std::filesystem::path& path, unsigned mode) {
  // Renaming over a directory fails only at the very end, and over a device such as /dev/null it would replace it.
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return fail(ErrorKind::Invalid, "{}: exists and is not a regular file", path.string());
  }
  AtomicFile file;
  file.path_ = path;
  static std::atomic<unsigned> counter{0};
  for (int attempt = 0; attempt < kNameAttempts && file.fd_ < 0; ++attempt) {
    file.temporary_ = fmt::format("{}.tmp-{}-{}", path.string(), ::getpid(), counter.fetch_add(1));
    file.fd_ = ::open(file.temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (file.fd_ < 0 && errno != EEXIST) break;
  }
  if (file.fd_ < 0) return fail(ErrorKind::Io, "{}: cannot create: {}", path.string(), reason());
  file.name_ = TemporaryName(file.temporary_.native());
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      failed_(other.failed_),
      path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      name_(std::move(other.name_)) {}

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  if (this == &other) return *this;
  discard();
  fd_ = std::exchange(other.fd_, -1);
  size_ = other.size_;
  failed_ = other.failed_;
  path_ = std::move(other.path_);
  temporary_ = std::move(other.temporary_);
  name_ = std::move(other.name_);
  return *this;
}

AtomicFile::~AtomicFile() {
  discard();
}

void AtomicFile::discard() noexcept {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
  fd_ = -1;
  name_ = {};
}

Status AtomicFile::write_all(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      failed_ = true;
      return fail(ErrorKind::Io, "{}: cannot write: {}", path_.string(), reason());
    }
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

Status AtomicFile::write(std::span<const std::byte> bytes) {
  LOCKSTEP_TRY(write_all(size_, bytes));
  size_ += bytes.size();
  return {};
}

Status AtomicFile::write(std::string_view text) {
  return write(std::as_bytes(std::span(text.data(), text.size())));
}

Status AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  return write_all(offset, bytes);
}

Status AtomicFile::commit() {
  if (fd_ < 0) return fail(ErrorKind::Internal, "{}: committed twice", path_.string());
  if (failed_) return fail(ErrorKind::Io, "{}: not kept, because a write to it failed", path_.string());
  if (::fsync(fd_) != 0) return fail(ErrorKind::Io, "{}: cannot flush: {}", path_.string(), reason());
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const std::string why = reason();
    ::unlink(temporary_.c_str());
    name_ = {};
    return fail(ErrorKind::Io, "{}: cannot move into place: {}", path_.string(), why);
  }
  name_ = {};
  // The new name itself must reach the disk. Some file systems cannot flush a directory; the file is complete anyway.
  const std::filesystem::path parent = path_.has_parent_path() ? path_.parent_path() : ".";
  const Descriptor directory(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() >= 0) ::fsync(directory.get());
  return {};
}

Status write_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file = LOCKSTEP_TRY(AtomicFile::create(path));
  LOCKSTEP_TRY(file.write(text));
  return file.commit();
}

}  // namespace lockstep
