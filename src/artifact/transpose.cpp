#include <algorithm>
#include <cstring>

#include "artifact/view_builder.hpp"

namespace lockstep::artifact {
namespace {

/// out[c][r] = in[r][c] for one slice of columns, in tiles that stay in the cache.
void transpose_slice(const std::byte* in, std::size_t rows, std::size_t row_stride, std::size_t begin, std::size_t cols,
                     std::size_t element, std::byte* out) {
  constexpr std::size_t kTile = 64;
  for (std::size_t r0 = 0; r0 < rows; r0 += kTile) {
    for (std::size_t c0 = 0; c0 < cols; c0 += kTile) {
      for (std::size_t c = c0; c < std::min(cols, c0 + kTile); ++c) {
        for (std::size_t r = r0; r < std::min(rows, r0 + kTile); ++r) {
          std::memcpy(out + (c * rows + r) * element, in + (r * row_stride + begin + c) * element, element);
        }
      }
    }
  }
}

}  // namespace

std::vector<std::byte> transpose_part(const TransposedExperts& job, std::size_t part, MatrixView& view) {
  const std::size_t element = dtype_size(job.dtype);
  const auto rows = static_cast<std::size_t>(job.in), row_stride = static_cast<std::size_t>(job.out);
  const std::size_t slice = row_stride / job.views.size(), bytes = rows * slice * element;
  std::vector<std::byte> copy(static_cast<std::size_t>(job.count) * bytes);
  for (std::size_t i = 0; i < static_cast<std::size_t>(job.count); ++i) {
    transpose_slice(job.source + i * rows * row_stride * element, rows, row_stride, part * slice, slice, element,
                    copy.data() + i * bytes);
  }
  view.matrix_stride = bytes;
  return copy;
}

void transpose_experts(const std::vector<TransposedExperts>& list, std::deque<std::vector<std::byte>>& memory) {
  for (const TransposedExperts& job : list) {
    for (std::size_t part = 0; part < job.views.size(); ++part) {
      MatrixView& view = *job.views[part];
      view.data = memory.emplace_back(transpose_part(job, part, view)).data();
    }
  }
}

}  // namespace lockstep::artifact
