// Re-lays affine weights for the vector kernels (src/kernels/cpu/packed.hpp says how).
#pragma once

#include <cstring>

#include "kernels/cpu/packed.hpp"
#include "numerics/affine.hpp"
#include "numerics/bits.hpp"

namespace lockstep::kernels::vector {

/// Brings the fields of a word in the artifact's order (ascending inputs from the lowest bit) into that of packed
/// words: even inputs in the lower half, odd ones in the upper. One step exchanges neighbouring fields of twice the
/// size.
LOCKSTEP_INLINE std::uint32_t exchange(std::uint32_t word, std::uint32_t mask, int shift) {
  const std::uint32_t t = (word ^ (word >> shift)) & mask;
  return word ^ t ^ (t << shift);
}

template <int Plane>
LOCKSTEP_INLINE std::uint32_t split_even_odd(std::uint32_t word) {
  if constexpr (Plane <= 1) word = exchange(word, 0x22222222U, 1);
  if constexpr (Plane <= 2) word = exchange(word, 0x0c0c0c0cU, 2);
  if constexpr (Plane <= 4) word = exchange(word, 0x00f000f0U, 4);
  return exchange(word, 0x0000ff00U, 8);
}

/// Packed words of one row's portion from its codes; word i goes to out[i * 16].
template <int Plane>
LOCKSTEP_INLINE void place_words(const std::uint8_t* codes, int shift, std::uint32_t* out) {
  constexpr int kInputs = 32 / Plane;
  constexpr unsigned kMask = (1U << Plane) - 1U;
  for (int w = 0; w < Plane; ++w) {
    std::uint32_t word = 0;
    for (int i = 0; i < kInputs; ++i) {
      word |= ((static_cast<unsigned>(codes[w * kInputs + i]) >> shift) & kMask) << (Plane * i);
    }
    out[w * kBlockRows] = split_even_odd<Plane>(word);
  }
}

/// One row's codes of one group; `out` is the row's word of the group's first line.
template <int Bits>
LOCKSTEP_INLINE void place_group(const std::uint8_t* stream, int group, std::uint32_t* out) {
  constexpr int kLow = low_plane_bits(Bits);
  if constexpr (kLow == Bits) {
    for (int w = 0; w < group * Bits / 32; ++w) {
      std::uint32_t word;
      std::memcpy(&word, stream + 4 * w, 4);
      out[w * kBlockRows] = split_even_odd<Bits>(word);
    }
  } else {
    std::uint8_t codes[128];
    numerics::unpack_codes(stream, Bits, group, codes);
    for (int i = 0; i < group; i += kPortionInputs, out += Bits * kBlockRows) {
      place_words<kLow>(codes + i, 0, out);
      place_words<Bits - kLow>(codes + i, kLow, out + kLow * kBlockRows);
    }
  }
}

/// Scales or biases: bf16 as they are, others widened (exactly).
LOCKSTEP_INLINE void place_scale(const std::byte* source, ElementType type, std::int64_t index, std::byte* lane0,
                                 std::int64_t lane) {
  if (type == ElementType::BF16) {
    std::memcpy(lane0 + 2 * lane, source + 2 * index, 2);
  } else if (type == ElementType::F32) {
    std::memcpy(lane0 + 4 * lane, source + 4 * index, 4);
  } else {
    std::uint16_t half;
    std::memcpy(&half, source + 2 * index, 2);
    const float wide = numerics::half_to_float(half);
    std::memcpy(lane0 + 4 * lane, &wide, 4);
  }
}

template <class Isa, int Bits>
void pack_block(const AffineMatrix& m, std::int64_t block, std::byte* out) {
  const std::int64_t groups = m.cols / m.group;
  const bool wide = m.scale_type != ElementType::BF16;
  const std::int64_t group_bytes = packed_group_bytes(Bits, m.group, wide);
  const std::int64_t code_bytes = std::int64_t{2} * m.group * Bits;
  const std::int64_t scale_bytes = kBlockRows * (wide ? 4 : 2);
  const std::int64_t first = block * kBlockRows;
  const std::int64_t rows = m.rows - first < kBlockRows ? m.rows - first : kBlockRows;
  if (rows < kBlockRows) std::memset(out, 0, static_cast<std::size_t>(groups * group_bytes));
  for (std::int64_t g = 0; g < groups; ++g) {
    std::byte* at = out + g * group_bytes;
    for (std::int64_t lane = 0; lane < rows; ++lane) {
      const std::int64_t row = first + lane;
      const std::uint8_t* stream = m.codes + (row * m.cols + g * m.group) * Bits / 8;
      place_group<Bits>(stream, m.group, reinterpret_cast<std::uint32_t*>(at) + lane);
      place_scale(m.scales, m.scale_type, row * groups + g, at + code_bytes, lane);
      place_scale(m.biases, m.scale_type, row * groups + g, at + code_bytes + scale_bytes, lane);
    }
  }
}

/// `Isa` only keeps the copies of this function for different instruction sets apart.
template <class Isa>
void pack_blocks(const AffineMatrix& m, std::int64_t begin, std::int64_t end, std::byte* out) {
  const std::int64_t bytes = m.cols / m.group * packed_group_bytes(m.bits, m.group, m.scale_type != ElementType::BF16);
  for (std::int64_t block = begin; block < end; ++block, out += bytes) {
    switch (m.bits) {
      case 2:
        pack_block<Isa, 2>(m, block, out);
        break;
      case 3:
        pack_block<Isa, 3>(m, block, out);
        break;
      case 4:
        pack_block<Isa, 4>(m, block, out);
        break;
      case 5:
        pack_block<Isa, 5>(m, block, out);
        break;
      case 6:
        pack_block<Isa, 6>(m, block, out);
        break;
      default:
        pack_block<Isa, 8>(m, block, out);
        break;
    }
  }
}

}  // namespace lockstep::kernels::vector
