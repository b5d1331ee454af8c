// The layout of quantised weights for vector kernels that compute 16 output rows at once.
//
// A matrix is cut into blocks of 16 output rows; a last partial block is padded with rows of zeros. A block is a
// sequence of groups of inputs, ascending. A group is its codes, then 16 scales, then 16 biases, each a whole number of
// 64-byte lines. Codes come in words of 32 bits, one word of each of the 16 rows side by side, in portions of 32
// inputs. A plane of p bits (1, 2 or 4; 8 bits are one plane) takes p words a portion: a word holds 32 / p consecutive
// inputs, the even ones in its lower half and the odd ones in its upper half, ascending from the lowest bit. Codes of
// 3, 5 and 6 bits are a plane of their 2, 4 and 4 lower bits and one of the rest, portion by portion.
//
// So `(word >> p * i) & mask` is a pair of 16-bit codes, which one multiply-add instruction takes with a pair of 16-bit
// activations (docs/numerics.md N3).
#pragma once

#include "kernels/cpu/kernels.hpp"

namespace lockstep::kernels {

inline constexpr std::int64_t kBlockRows = 16;
inline constexpr int kPortionInputs = 32;

/// Bits of the plane of lower bits.
[[nodiscard]] constexpr int low_plane_bits(int bits) {
  return bits == 3 ? 2 : (bits == 5 || bits == 6 ? 4 : bits);
}

[[nodiscard]] constexpr std::int64_t packed_group_bytes(int bits, int group, bool wide_scales) {
  return 2 * group * bits + 2 * kBlockRows * (wide_scales ? 4 : 2);
}

[[nodiscard]] constexpr std::int64_t packed_blocks(std::int64_t rows) {
  return (rows + kBlockRows - 1) / kBlockRows;
}

}  // namespace lockstep::kernels
