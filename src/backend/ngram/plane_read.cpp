#include "backend/ngram/plane_read.hpp"

#include <cerrno>
#include <cstring>

namespace lockstep::backend {
namespace {

/// A read that the system keeps putting off is a failure in the end.
constexpr unsigned kMaxInterruptions = 1000;

std::size_t round_up(std::size_t value, std::size_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

}  // namespace

std::size_t PlaneRead::span_bytes(std::size_t plane_bytes, std::size_t alignment) {
  return round_up(alignment - 1 + plane_bytes, alignment);
}

PlaneRead::PlaneRead(const TableFiles& files, const RowPlane& plane, std::int64_t row, std::byte* memory)
    : files_(&files), plane_(plane), row_(row), memory_(memory) {
  start_ = plane.offset / files.alignment() * files.alignment();
  needed_ = static_cast<std::size_t>(plane.offset - start_) + plane.bytes;
  asked_ = round_up(needed_, files.alignment());
}

Result<bool> PlaneRead::advance(std::int64_t result) {
  if ((result == -EINTR || result == -EAGAIN) && ++interruptions_ < kMaxInterruptions) return false;
  const std::string& path = files_->path(plane_.file);
  if (result < 0) {
    return fail(ErrorKind::Io, "{}: cannot read row {} of the n-gram table at byte {}: {}; reload the model", path,
                row_, plane_.offset, std::strerror(static_cast<int>(-result)));
  }
  const std::size_t end = from_ + static_cast<std::size_t>(result);
  if (end >= needed_) return true;
  if (end <= got_) {
    return fail(ErrorKind::Io,
                "{}: ends inside row {} of the n-gram table, at byte {}: the file was cut while in use; restore it and "
                "reload the model",
                path, row_, start_ + end);
  }
  // A piece: the rest is read from the last aligned byte of it. At the end of the file that brings nothing new.
  got_ = end;
  from_ = end / files_->alignment() * files_->alignment();
  return false;
}

void PlaneRead::unpack(std::byte* row) const {
  std::memcpy(row + plane_.at, memory_ + (plane_.offset - start_), plane_.bytes);
}

}  // namespace lockstep::backend
