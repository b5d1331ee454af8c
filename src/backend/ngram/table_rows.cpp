#include "backend/ngram/table_rows.hpp"

#include <algorithm>
#include <cstring>

namespace lockstep::backend {
namespace {

const artifact::MatrixView& part_of(const artifact::NgramTableView& view, std::int64_t index) {
  return view.table ? *view.table : view.shards[static_cast<std::size_t>(index)];
}

/// Rows of one part that follow one another.
void copy_part(const artifact::MatrixView& part, std::size_t first, std::size_t count, std::size_t stride,
               std::byte* to) {
  if (!part.quantised) {
    const std::size_t bytes = static_cast<std::size_t>(part.cols) * artifact::dtype_size(part.dtype);
    for (std::size_t row = first; row < first + count; ++row, to += stride) {
      std::memcpy(to, part.data + row * bytes, bytes);
    }
    return;
  }
  const std::size_t codes = part.code_row_bytes();
  const std::size_t scales = part.scale_row_bytes();
  for (std::size_t row = first; row < first + count; ++row, to += stride) {
    std::memcpy(to, part.codes + row * codes, codes);
    std::memcpy(to + codes, part.scales + row * scales, scales);
    std::memcpy(to + codes + scales, part.biases + row * scales, scales);
  }
}

}  // namespace

std::size_t packed_row_bytes(const artifact::NgramTableView& view) {
  if (!view.table && view.shards.empty()) return 0;
  const artifact::MatrixView& part = part_of(view, 0);
  return part.quantised ? part.code_row_bytes() + 2 * part.scale_row_bytes()
                        : static_cast<std::size_t>(part.cols) * artifact::dtype_size(part.dtype);
}

std::size_t packed_row_stride(const artifact::NgramTableView& view) {
  return (packed_row_bytes(view) + 3) / 4 * 4;
}

std::uint64_t packed_table_bytes(const artifact::NgramTableView& view) {
  return static_cast<std::uint64_t>(view.rows) * packed_row_stride(view);
}

void copy_packed_rows(const artifact::NgramTableView& view, std::int64_t first, std::int64_t count, std::byte* to) {
  const std::int64_t rows_per_part = view.table ? view.rows : view.rows_per_shard;
  const std::size_t stride = packed_row_stride(view);
  while (count > 0) {
    const std::int64_t inside = first % rows_per_part;
    const std::int64_t here = std::min(count, rows_per_part - inside);
    copy_part(part_of(view, first / rows_per_part), static_cast<std::size_t>(inside), static_cast<std::size_t>(here),
              stride, to);
    to += static_cast<std::size_t>(here) * stride;
    first += here;
    count -= here;
  }
}

}  // namespace lockstep::backend
