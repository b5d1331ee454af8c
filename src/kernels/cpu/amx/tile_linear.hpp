// Quantised products of many activation rows on 8-bit matrix tiles, from packed weights (src/kernels/cpu/packed.hpp).
//
// An activation of 16 bits is 256 * h + l with a signed h and an unsigned l, and the exact integer sum of a group is
// 256 * (sum q h) + (sum q l) (docs/numerics.md N3). A tile multiplies 16 activation rows with 16 output rows over up
// to 64 inputs, once for h and once for l. What follows in binary32 is that of vector/packed_linear.hpp, lane by lane.
//
// `Tiles` are the matrix registers: the processor's (amx/table.cpp), or a model of them in tests.
#pragma once

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cpu/avx512/isa.hpp"
#include "kernels/cpu/vector/packed_linear.hpp"

namespace lockstep::kernels::amx {

using avx512::Isa;

inline constexpr std::int64_t kTileRows = 16;
inline constexpr std::int64_t kSegment = numerics::kSegmentInputs;
/// Blocks of 16 output rows whose codes are unpacked at a time; they stay in the second cache.
inline constexpr std::int64_t kPanelBlocks = 16;

/// What a tile of activation rows needs of one segment of 512 inputs.
struct Activations {
  alignas(64) std::int8_t high[kTileRows][kSegment];
  alignas(64) std::uint8_t low[kTileRows][kSegment];
  alignas(64) float steps[kSegment / 32][kTileRows];  ///< by group
  alignas(64) float sums[kSegment / 32][kTileRows];
};

/// Inputs come in fours in the order 0, 2, 1, 3: that of unpack_portion().
inline void split_row(const std::int16_t* values, std::int64_t count, std::int8_t* high, std::uint8_t* low) {
  const __m256i order =
      _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
  for (std::int64_t i = 0; i < count; i += 32) {
    const __m512i v = _mm512_loadu_si512(values + i);
    const __m256i h = _mm512_cvtepi16_epi8(_mm512_srai_epi16(v, 8));
    const __m256i l = _mm512_cvtepi16_epi8(v);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(high + i), _mm256_shuffle_epi8(h, order));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(low + i), _mm256_shuffle_epi8(l, order));
  }
}

/// Rows [first, first + count) of the product, inputs [from, from + inputs). Rows that are not there are left as they
/// are: nobody looks at their results.
inline void load_activations(const QuantisedRows& x, std::int64_t cols, std::int64_t first, std::int64_t count,
                             std::int64_t from, std::int64_t inputs, Activations& a) {
  const std::int64_t groups = cols / x.group;
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t row = x.source == nullptr ? first + r : x.source[first + r];
    split_row(x.values + row * cols + from, inputs, a.high[r], a.low[r]);
    for (std::int64_t g = 0; g < inputs / x.group; ++g) {
      const std::int64_t at = row * groups + from / x.group + g;
      a.steps[g][r] = x.steps[at];
      a.sums[g][r] = static_cast<float>(x.sums[at]);
    }
  }
}

/// The codes of 32 inputs of 16 output rows as bytes: four inputs of every output row a line.
template <int Bits>
LOCKSTEP_INLINE void unpack_portion(const std::byte* portion, std::uint8_t* out) {
  [&]<int... K>(std::integer_sequence<int, K...>) {
    (_mm512_storeu_si512(out + 64 * K,
                         _mm512_or_si512(vector::code_pair<Isa, Bits, 2 * K>(portion),
                                         _mm512_slli_epi32(vector::code_pair<Isa, Bits, 2 * K + 1>(portion), 8))),
     ...);
  }
  (std::make_integer_sequence<int, 8>());
}

/// Where a block's segment lies in the packed matrix, and its codes as bytes.
struct Block {
  const std::byte* packed;    ///< its first group
  const std::uint8_t* codes;  ///< [inputs / 4][16 output rows][4]
  std::int64_t group_bytes;
};

/// The sums of B blocks for one group: sums[b][0] of h, sums[b][1] of l.
template <class Tiles, int B>
LOCKSTEP_INLINE void group_products(const Activations& a, const Block (&blocks)[B], std::int64_t at, int group,
                                    std::int32_t (&sums)[B][2][kTileRows][16]) {
  Tiles::template zero<0>();
  Tiles::template zero<1>();
  if constexpr (B == 2) {
    Tiles::template zero<2>();
    Tiles::template zero<3>();
  }
  for (std::int64_t i = at; i < at + group; i += 64) {
    Tiles::template load<4>(&a.high[0][i], kSegment);
    Tiles::template load<5>(&a.low[0][i], kSegment);
    Tiles::template load<6>(blocks[0].codes + i * 16, 64);
    Tiles::template signed_products<0, 4, 6>();
    Tiles::template unsigned_products<1, 5, 6>();
    if constexpr (B == 2) {
      Tiles::template load<7>(blocks[1].codes + i * 16, 64);
      Tiles::template signed_products<2, 4, 7>();
      Tiles::template unsigned_products<3, 5, 7>();
    }
  }
  Tiles::template store<0>(sums[0][0], 64);
  Tiles::template store<1>(sums[0][1], 64);
  if constexpr (B == 2) {
    Tiles::template store<2>(sums[1][0], 64);
    Tiles::template store<3>(sums[1][1], 64);
  }
}

/// One segment of B neighbouring blocks for a tile of `count` rows: added to what `out` holds, or the first of it.
template <class Tiles, int B>
void segment_tile(const PackedMatrix& m, const Activations& a, const Block (&blocks)[B], std::int64_t inputs,
                  std::int64_t count, bool first, float* out, std::int64_t out_stride, const int (&widths)[B]) {
  alignas(64) std::int32_t sums[B][2][kTileRows][16];
  alignas(64) float segment[B][kTileRows][16];
  const std::int64_t code_bytes = std::int64_t{2} * m.group * m.bits;
  const std::int64_t scale_bytes = kBlockRows * (m.wide_scales ? 4 : 2);
  for (std::int64_t g = 0; g < inputs / m.group; ++g) {
    group_products<Tiles, B>(a, blocks, g * m.group, m.group, sums);
    for (int b = 0; b < B; ++b) {
      const std::byte* scales = blocks[b].packed + g * blocks[b].group_bytes + code_bytes;
      const __m512 s = Isa::load_scales(scales, m.wide_scales);
      const __m512 bias = Isa::load_scales(scales + scale_bytes, m.wide_scales);
      for (std::int64_t r = 0; r < count; ++r) {
        const __m512i dot =
            _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(sums[b][0][r]), 8), _mm512_load_si512(sums[b][1][r]));
        const __m512 t = Isa::broadcast(a.steps[g][r]);
        const __m512 value =
            Isa::fma(Isa::mul(s, t), Isa::to_float(dot), Isa::mul(Isa::mul(bias, t), Isa::broadcast(a.sums[g][r])));
        const __m512 before = g == 0 ? Isa::zero() : _mm512_load_ps(segment[b][r]);
        _mm512_store_ps(segment[b][r], Isa::add(before, value));
      }
    }
  }
  for (int b = 0; b < B; ++b) {
    const auto mask = static_cast<__mmask16>((1U << widths[b]) - 1U);
    for (std::int64_t r = 0; r < count; ++r) {
      float* to = out + r * out_stride + b * kBlockRows;
      const __m512 total = first ? Isa::zero() : _mm512_maskz_loadu_ps(mask, to);
      _mm512_mask_storeu_ps(to, mask, Isa::add(total, _mm512_load_ps(segment[b][r])));
    }
  }
}

template <class Tiles, int Bits>
void packed_rows_bits(const PackedMatrix& m, const QuantisedRows& x, std::int64_t begin, std::int64_t end, float* out,
                      std::int64_t out_stride) {
  alignas(64) std::uint8_t codes[kPanelBlocks][kSegment * 16];
  Activations a;
  const std::int64_t group_bytes = packed_group_bytes(Bits, m.group, m.wide_scales);
  const std::int64_t block_bytes = m.cols / m.group * group_bytes;
  const std::int64_t tiles = (x.rows + kTileRows - 1) / kTileRows;
  std::memset(&a, 0, sizeof(a));
  for (std::int64_t from = 0; from < m.cols; from += kSegment) {
    const std::int64_t inputs = std::min(kSegment, m.cols - from);
    for (std::int64_t panel = begin; panel < end; panel += kPanelBlocks) {
      const std::int64_t stop = std::min(end, panel + kPanelBlocks);
      const auto block_at = [&](std::int64_t block) {
        return Block{m.data + block * block_bytes + from / m.group * group_bytes, codes[block - panel], group_bytes};
      };
      const auto width_of = [&](std::int64_t block) {
        return static_cast<int>(std::min(kBlockRows, m.rows - block * kBlockRows));
      };
      for (std::int64_t block = panel; block < stop; ++block) {
        for (std::int64_t i = 0; i < inputs; i += kPortionInputs) {
          const std::int64_t group = i / m.group;
          const std::byte* portion = block_at(block).packed + group * group_bytes + (i - group * m.group) * 2 * Bits;
          unpack_portion<Bits>(portion, codes[block - panel] + i * 16);
        }
      }
      for (std::int64_t i = 0; i < tiles; ++i) {
        const std::int64_t first = x.rows * i / tiles;
        const std::int64_t count = x.rows * (i + 1) / tiles - first;
        load_activations(x, m.cols, first, count, from, inputs, a);
        std::int64_t block = panel;
        const auto to = [&] { return out + first * out_stride + block * kBlockRows; };
        for (; block + 2 <= stop; block += 2) {
          segment_tile<Tiles, 2>(m, a, {block_at(block), block_at(block + 1)}, inputs, count, from == 0, to(),
                                 out_stride, {width_of(block), width_of(block + 1)});
        }
        if (block < stop) {
          segment_tile<Tiles, 1>(m, a, {block_at(block)}, inputs, count, from == 0, to(), out_stride,
                                 {width_of(block)});
        }
      }
    }
  }
}

template <class Tiles>
void packed_rows(const PackedMatrix& m, const QuantisedRows& x, std::int64_t begin, std::int64_t end, float* out,
                 std::int64_t out_stride) {
  Tiles::configure(m.group < 64 ? m.group : 64);
  switch (m.bits) {
    case 2:
      packed_rows_bits<Tiles, 2>(m, x, begin, end, out, out_stride);
      break;
    case 3:
      packed_rows_bits<Tiles, 3>(m, x, begin, end, out, out_stride);
      break;
    case 4:
      packed_rows_bits<Tiles, 4>(m, x, begin, end, out, out_stride);
      break;
    case 5:
      packed_rows_bits<Tiles, 5>(m, x, begin, end, out, out_stride);
      break;
    case 6:
      packed_rows_bits<Tiles, 6>(m, x, begin, end, out, out_stride);
      break;
    default:
      packed_rows_bits<Tiles, 8>(m, x, begin, end, out, out_stride);
      break;
  }
  Tiles::release();
}

}  // namespace lockstep::kernels::amx
