// Rows of the n-gram table on CUDA (docs/numerics.md E5): gathered and dequantised by the device itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/queue.hpp"
#include "kernels/element_type.hpp"

namespace lockstep::kernels::cuda {

/// Packed rows in several pieces of memory that the device can read: its own, or page-locked memory of the host. Row r
/// is row r % (1 << shift) of the piece chunks[r >> shift]; rows are `stride` bytes apart, a multiple of four. A row is
/// `dim` codes of `bits` bits in a stream of bits, then the scales and then the biases of its groups, or `dim` elements
/// when bits is 0.
struct PackedTable {
  const std::byte* const* chunks = nullptr;  ///< in device memory
  int shift = 0;
  std::size_t stride = 0;
  std::int64_t dim = 0;
  int bits = 0, group = 32;
  ElementType type = ElementType::BF16;  ///< of scales and biases, or of the elements
};

/// out [n, dim] = fma(scale, code, bias) of the rows ids [n], which are in the table. Both in device memory.
void gather_rows(Queue& queue, const PackedTable& table, const std::int64_t* ids, std::int64_t n, float* out);

/// The rows of a token that the device has drawn: heads of the same number of tokens follow each other.
struct HashedRows {
  std::uint64_t multiplier = 0;            ///< of the token itself
  const std::uint64_t* sizes = nullptr;    ///< [heads], on the device
  const std::uint64_t* offsets = nullptr;  ///< [heads], on the device
  std::int64_t heads = 0, per = 1;         ///< of one number of tokens
  const std::uint64_t* past = nullptr;     ///< artifact::ngram_past(), in page-locked memory written before the launch
  const std::int32_t* token = nullptr;     ///< on the device
};

/// out [heads, dim] = the rows that docs/artifact.md, "N-gram hash", names for the token.
void gather_hashed(Queue& queue, const PackedTable& table, const HashedRows& rows, float* out);

}  // namespace lockstep::kernels::cuda
