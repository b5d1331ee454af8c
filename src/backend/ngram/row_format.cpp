#include "backend/ngram/row_format.hpp"

namespace lockstep::backend {

Result<RowFormat> RowFormat::create(const artifact::NgramTableView& view, const kernels::Kernels& kernels) {
  RowFormat format(kernels);
  format.view_ = &view;
  format.rows_ = view.rows;
  format.dim_ = view.dim;
  format.rows_per_file_ = view.table ? view.rows : view.rows_per_shard;
  const std::size_t files = view.table ? 1 : view.shards.size();
  // A table that was made in memory is in no file.
  const bool described = view.files.empty() || view.files.size() == files;
  if (files == 0 || !described || view.rows < 1 || format.rows_per_file_ < 1) {
    return fail(ErrorKind::Invalid, "the n-gram table has {} rows in {} parts but {} files", view.rows, files,
                view.files.size());
  }
  const artifact::MatrixView& matrix = view.table ? *view.table : view.shards.front();
  const CpuMatrix description(matrix);
  if (matrix.quantised) {
    format.affine_ = description.affine(0);
    format.affine_.rows = 1;
    format.code_bytes_ = matrix.code_row_bytes();
    format.scale_bytes_ = matrix.scale_row_bytes();
  } else {
    format.dense_ = description.dense(0);
    format.dense_.rows = 1;
    format.code_bytes_ = static_cast<std::size_t>(matrix.cols) * artifact::dtype_size(matrix.dtype);
  }
  return format;
}

RowPlane RowFormat::plane(std::int64_t row, std::size_t plane) const {
  const auto file = static_cast<std::size_t>(row / rows_per_file_);
  const auto inside = static_cast<std::uint64_t>(row % rows_per_file_);
  const artifact::RowsFile& place = view_->files[file];
  if (plane == 0) return {file, place.codes + inside * code_bytes_, code_bytes_, 0};
  const std::uint64_t start = plane == 1 ? place.scales : place.biases;
  return {file, start + inside * scale_bytes_, scale_bytes_, code_bytes_ + (plane - 1) * scale_bytes_};
}

void RowFormat::decode(const std::byte* packed, float* out) const {
  if (scale_bytes_ == 0) {
    kernels::DenseMatrix row = dense_;
    row.data = packed;
    kernels_->dense_row(row, 0, out);
    return;
  }
  kernels::AffineMatrix row = affine_;
  row.codes = reinterpret_cast<const std::uint8_t*>(packed);
  row.scales = packed + code_bytes_;
  row.biases = row.scales + scale_bytes_;
  kernels_->affine_row(row, 0, out);
}

Status RowFormat::check(std::span<const std::int64_t> row_ids) const {
  for (const std::int64_t row : row_ids) {
    if (row < 0 || row >= rows_) {
      return fail(ErrorKind::Internal, "row {} is outside the n-gram table of {} rows", row, rows_);
    }
  }
  return {};
}

}  // namespace lockstep::backend
