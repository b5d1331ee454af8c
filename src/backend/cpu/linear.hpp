// Matrices and activations of the CPU backend.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "backend/backend.hpp"
#include "backend/ngram/memory_block.hpp"
#include "base/thread_pool.hpp"
#include "kernels/cpu/packed.hpp"

namespace lockstep::backend {

/// A stack of matrices. Rows are read in the artifact's own layout from the mapped file; products use the layout of the
/// vector kernels after pack().
class CpuMatrix final : public Matrix {
 public:
  explicit CpuMatrix(const artifact::MatrixView& view) : Matrix(view.count, view.rows, view.cols), view_(view) {}

  /// Lays the codes out for the vector kernels of `kernels`. Errors: Limit.
  Status pack(const kernels::Kernels& kernels, ThreadPool& pool);
  /// Copies a matrix that is not quantised into large pages. Errors: Limit.
  Status copy(ThreadPool& pool);

  [[nodiscard]] bool reads_view() const override { return packed_ == nullptr && copy_ == nullptr; }
  [[nodiscard]] bool quantised() const { return view_.quantised; }
  [[nodiscard]] int group() const { return view_.group; }
  [[nodiscard]] bool packed() const { return packed_ != nullptr; }
  [[nodiscard]] kernels::PackedMatrix packed(std::int64_t index) const;
  /// Blocks of kernels::kBlockRows output rows: the unit in which threads share a product.
  [[nodiscard]] std::int64_t blocks() const { return kernels::packed_blocks(rows()); }
  [[nodiscard]] kernels::AffineMatrix affine(std::int64_t index) const;
  [[nodiscard]] kernels::DenseMatrix dense(std::int64_t index) const;

 private:
  artifact::MatrixView view_;
  MemoryBlock<std::byte> packed_;
  MemoryBlock<std::byte> copy_;
  std::int64_t packed_bytes_ = 0;  ///< of one matrix
};

/// Room for n elements of a buffer that is used again; its contents are lost. A quarter more than before at least, so
/// that what grows by the token is not asked for every time.
template <class T>
void grow(std::vector<T>& buffer, std::size_t n) {
  if (buffer.size() >= n) return;
  const std::size_t size = std::max(n, buffer.size() + buffer.size() / 4);
  buffer = {};  // first, so that there are never two
  buffer.resize(size);
}

/// Memory for quantised activations, reused between operations.
struct QuantisedStorage {
  std::vector<std::int16_t> values;
  std::vector<float> steps;
  std::vector<std::int32_t> sums;
};

/// Input rows of one operation. They are quantised at most once per group size and shared by all matrices that use it.
class Activations {
 public:
  Activations(const kernels::Kernels& kernels, ThreadPool& pool, std::array<QuantisedStorage, 3>& storage,
              const float* x, std::int64_t rows, std::int64_t cols)
      : kernels_(kernels), pool_(pool), storage_(storage), x_(x), rows_(rows), cols_(cols) {}

  [[nodiscard]] const float* x() const { return x_; }
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::int64_t cols() const { return cols_; }
  /// The quantised form for groups of 32, 64 or 128 inputs.
  const kernels::QuantisedRows& quantised(int group);

 private:
  const kernels::Kernels& kernels_;
  ThreadPool& pool_;
  std::array<QuantisedStorage, 3>& storage_;
  const float* x_;
  std::int64_t rows_, cols_;
  std::array<kernels::QuantisedRows, 3> quantised_{};
};

/// out[t * matrix.rows() + r] of matrix `index` for the rows of the blocks [begin, end), in the calling thread.
/// Quantised products take x.quantised() unless `unquantised`; where threads share x, that form must have been made
/// before.
void product_blocks(const kernels::Kernels& kernels, bool unquantised, const CpuMatrix& matrix, std::int64_t index,
                    Activations& x, std::int64_t begin, std::int64_t end, float* out);

}  // namespace lockstep::backend
