#include "backend/cpu/linear.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "artifact/model_walk.hpp"
#include "backend/cpu/memory_use.hpp"
#include "backend/element_type.hpp"
#include "base/checked.hpp"

namespace lockstep::backend {
namespace {

constexpr std::uint64_t kLargePage = std::uint64_t{2} << 20;

/// Memory for weights. That of a large matrix starts at a huge page, so that the system can back it with such.
Result<MemoryBlock<std::byte>> weight_block(std::uint64_t bytes, const std::string& name) {
  const std::uint64_t alignment = bytes >= kLargePage ? kLargePage : 64;
  const std::optional<std::uint64_t> rounded = checked_round_up(std::max<std::uint64_t>(bytes, 1), alignment);
  if (!rounded) return fail(ErrorKind::Limit, "{}: {} bytes are too many", name, bytes);
  MemoryBlock<std::byte> block = LOCKSTEP_TRY(aligned_block(alignment, *rounded));
  if (alignment == kLargePage) ::madvise(block.get(), *rounded, MADV_HUGEPAGE);  // a hint: failure changes no result
  return block;
}

}  // namespace

kernels::AffineMatrix CpuMatrix::affine(std::int64_t index) const {
  const auto matrix = static_cast<std::size_t>(index) * static_cast<std::size_t>(rows());
  const std::byte* codes = view_.codes + matrix * view_.code_row_bytes();
  return {reinterpret_cast<const std::uint8_t*>(codes),
          view_.scales + matrix * view_.scale_row_bytes(),
          view_.biases + matrix * view_.scale_row_bytes(),
          element_type(view_.scale_dtype),
          rows(),
          cols(),
          view_.bits,
          view_.group};
}

Status CpuMatrix::pack(const kernels::Kernels& kernels, ThreadPool& pool) {
  const std::uint64_t bytes = backend::packed_bytes(view_);
  packed_bytes_ = static_cast<std::int64_t>(bytes) / count();
  const std::int64_t block_bytes = packed_bytes_ / blocks();
  packed_ = LOCKSTEP_TRY(weight_block(bytes, view_.name));
  const std::int64_t total = count() * blocks();
  const std::int64_t grain = std::max<std::int64_t>(1, (1 << 16) / block_bytes);
  pool.parallel_for(static_cast<std::size_t>(total), static_cast<std::size_t>(grain),
                    [&](std::size_t b, std::size_t e) {
                      const auto end = static_cast<std::int64_t>(e);
                      for (auto at = static_cast<std::int64_t>(b); at < end;) {
                        const std::int64_t index = at / blocks();
                        const std::int64_t first = at % blocks();
                        const std::int64_t last = std::min(blocks(), first + end - at);
                        kernels.pack_blocks(affine(index), first, last, packed_.get() + at * block_bytes);
                        at += last - first;
                      }
                    });
  return {};
}

Status CpuMatrix::copy(ThreadPool& pool) {
  const std::size_t bytes = artifact::matrix_bytes(view_) / static_cast<std::size_t>(count());
  copy_ = LOCKSTEP_TRY(weight_block(artifact::matrix_bytes(view_), view_.name));
  for (std::size_t i = 0; i < static_cast<std::size_t>(count()); ++i) {
    const std::byte* from = view_.data + i * view_.matrix_stride;
    pool.parallel_for(bytes, std::size_t{256} << 10, [&](std::size_t begin, std::size_t end) {
      std::memcpy(copy_.get() + i * bytes + begin, from + begin, end - begin);
    });
  }
  view_.data = copy_.get();
  view_.matrix_stride = bytes;
  return {};
}

kernels::PackedMatrix CpuMatrix::packed(std::int64_t index) const {
  return {packed_.get() + index * packed_bytes_,     rows(), cols(), view_.bits, view_.group,
          view_.scale_dtype != artifact::DType::BF16};
}

kernels::DenseMatrix CpuMatrix::dense(std::int64_t index) const {
  return {view_.data + static_cast<std::size_t>(index) * view_.matrix_stride, element_type(view_.dtype), rows(),
          cols()};
}

const kernels::QuantisedRows& Activations::quantised(int group) {
  const std::size_t slot = group == 32 ? 0 : (group == 64 ? 1 : 2);
  kernels::QuantisedRows& rows = quantised_.at(slot);
  if (rows.values != nullptr) return rows;
  QuantisedStorage& storage = storage_.at(slot);
  const auto values = static_cast<std::size_t>(rows_ * cols_);
  const std::size_t groups = values / static_cast<std::size_t>(group);
  grow(storage.values, values);
  grow(storage.steps, groups);
  grow(storage.sums, groups);
  rows = {storage.values.data(), storage.steps.data(), storage.sums.data(), rows_, cols_, group};
  pool_.parallel_for(groups, 256, [&](std::size_t begin, std::size_t end) {
    const std::size_t first = begin * static_cast<std::size_t>(group);
    kernels_.quantise_rows(x_ + first, static_cast<std::int64_t>(end - begin), group, group,
                           storage.values.data() + first, storage.steps.data() + begin, storage.sums.data() + begin);
  });
  return rows;
}

void product_blocks(const kernels::Kernels& kernels, bool unquantised, const CpuMatrix& matrix, std::int64_t index,
                    Activations& x, std::int64_t begin, std::int64_t end, float* out) {
  const std::int64_t stride = matrix.rows();
  const std::int64_t first = begin * kernels::kBlockRows;
  const std::int64_t last = std::min(stride, end * kernels::kBlockRows);
  if (!matrix.quantised()) {
    kernels.dense_rows(matrix.dense(index), x.x(), x.rows(), first, last, out, stride);
  } else if (unquantised) {
    kernels.affine_rows_unquantised(matrix.affine(index), x.x(), x.rows(), first, last, out, stride);
  } else if (matrix.packed()) {
    kernels.packed_rows(matrix.packed(index), x.quantised(matrix.group()), begin, end, out, stride);
  } else {
    kernels.affine_rows(matrix.affine(index), x.quantised(matrix.group()), first, last, out, stride);
  }
}

}  // namespace lockstep::backend
