// One read of one plane of a row, from the aligned start to the last byte that the row needs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/ngram/row_format.hpp"
#include "backend/ngram/table_files.hpp"

namespace lockstep::backend {

class PlaneRead {
 public:
  /// Bytes of memory that any plane of at most `plane_bytes` needs.
  [[nodiscard]] static std::size_t span_bytes(std::size_t plane_bytes, std::size_t alignment);

  PlaneRead() = default;
  /// `memory`: span_bytes(), aligned.
  PlaneRead(const TableFiles& files, const RowPlane& plane, std::int64_t row, std::byte* memory);

  // What to ask the system for next.
  [[nodiscard]] int descriptor() const { return files_->descriptor(plane_.file); }
  [[nodiscard]] std::uint64_t offset() const { return start_ + from_; }
  [[nodiscard]] std::byte* memory() const { return memory_ + from_; }
  [[nodiscard]] std::size_t size() const { return asked_ - from_; }

  /// Takes what the system answered: bytes read or a negated errno. True when the plane has arrived, false when the
  /// next read is due. Errors: Io for a failure, or a file that ends before the row does.
  Result<bool> advance(std::int64_t result);
  /// Copies the plane to its place in the packed row.
  void unpack(std::byte* row) const;

 private:
  const TableFiles* files_ = nullptr;
  RowPlane plane_;
  std::int64_t row_ = 0;
  std::byte* memory_ = nullptr;
  std::uint64_t start_ = 0;                                  ///< offset in the file that memory_ starts at
  std::size_t needed_ = 0, asked_ = 0, got_ = 0, from_ = 0;  ///< bytes from start_
  unsigned interruptions_ = 0;
};

}  // namespace lockstep::backend
