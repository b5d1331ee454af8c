// What a row of the n-gram table is: where its planes lie in the files, how they are packed in memory, and its values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "artifact/model_view.hpp"
#include "backend/cpu/linear.hpp"
#include "base/result.hpp"
#include "kernels/cpu/kernels.hpp"

namespace lockstep::backend {

/// One plane of one row: `bytes` at `offset` of file number `file` (an index of NgramTableView::files) belong at `at`
/// in the packed row.
struct RowPlane {
  std::size_t file = 0;
  std::uint64_t offset = 0;
  std::size_t bytes = 0, at = 0;
};

/// A packed row is codes, scales and biases one after the other, or the elements of a dense row.
class RowFormat {
 public:
  static constexpr std::size_t kMaxPlanes = 3;

  /// Errors: Invalid for a view without rows, or whose files are not as many as its parts; none at all are
  /// right for a table in memory, of which plane() must not be asked.
  static Result<RowFormat> create(const artifact::NgramTableView& view, const kernels::Kernels& kernels);

  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t dim() const { return dim_; }
  [[nodiscard]] std::size_t bytes() const { return code_bytes_ + 2 * scale_bytes_; }
  [[nodiscard]] std::size_t planes() const { return scale_bytes_ == 0 ? 1 : kMaxPlanes; }
  [[nodiscard]] RowPlane plane(std::int64_t row, std::size_t plane) const;
  /// Bytes of the largest plane.
  [[nodiscard]] std::size_t plane_bytes() const { return std::max(code_bytes_, scale_bytes_); }
  /// Values of a packed row: out [dim].
  void decode(const std::byte* packed, float* out) const;
  /// Errors: Internal for an id outside the table.
  [[nodiscard]] Status check(std::span<const std::int64_t> row_ids) const;

 private:
  explicit RowFormat(const kernels::Kernels& kernels) : kernels_(&kernels) {}

  const kernels::Kernels* kernels_;
  const artifact::NgramTableView* view_ = nullptr;
  std::int64_t rows_ = 0, dim_ = 0, rows_per_file_ = 0;
  std::size_t code_bytes_ = 0, scale_bytes_ = 0;  ///< of a row; scale_bytes_ is 0 for a dense table
  kernels::AffineMatrix affine_;
  kernels::DenseMatrix dense_;
};

}  // namespace lockstep::backend
