// Quantised products from packed weights (src/kernels/cpu/packed.hpp), written once over the instruction set.
//
// `Isa` gives sixteen 32-bit lanes, one output row each: Int and Float and the operations used below. The integer sum
// of a group is exact in any order (docs/numerics.md N3); everything in binary32 follows the canon lane by lane.
#pragma once

#include <array>
#include <cstring>
#include <utility>

#include "kernels/cpu/packed.hpp"
#include "numerics/affine.hpp"

namespace lockstep::kernels::vector {

/// Bytes of packed weights that a thread keeps in its cache while all activation rows pass by.
inline constexpr std::int64_t kPanelBytes = 128 << 10;

/// Pair P (0..15) of the 32 inputs of a portion: in every lane two 16-bit codes of that lane's output row.
template <class Isa, int Bits, int P>
LOCKSTEP_INLINE typename Isa::Int code_pair(const std::byte* portion) {
  constexpr int kLow = low_plane_bits(Bits);
  constexpr int kHigh = Bits - kLow;
  constexpr int kPairs = 16 / kLow;
  constexpr unsigned kMask = (1U << kLow) - 1U;
  const auto low = Isa::template field<kLow*(P % kPairs), kMask>(Isa::load(portion + 64 * (P / kPairs)));
  if constexpr (kHigh == 0) {
    return low;
  } else {
    constexpr int kHighPairs = 16 / kHigh;
    constexpr unsigned kHighMask = ((1U << kHigh) - 1U) << kLow;
    const std::byte* word = portion + 64 * (kLow + P / kHighPairs);
    return Isa::either(low, Isa::template field<kHigh*(P % kHighPairs) - kLow, kHighMask>(Isa::load(word)));
  }
}

/// Activation rows of one tile.
template <int R>
struct TileRows {
  std::array<const std::int16_t*, R> values;
  std::array<const float*, R> steps;
  std::array<const std::int32_t*, R> sums;
  std::array<float*, R> out;
};

/// B neighbouring blocks of sixteen output rows for R activation rows; the last block has `count` rows.
template <class Isa, int Bits, int R, int B>
void tile(const PackedMatrix& m, const std::byte* block, const TileRows<R>& rows, int count) {
  using Int = typename Isa::Int;
  using Float = typename Isa::Float;
  // Enough independent sums to hide the latency of the multiply-add.
  constexpr int kChains = !Isa::kFusedDot || B * R > 6 ? 1 : (B * R > 2 ? 2 : 4);
  const std::int64_t groups = m.cols / m.group;
  const std::int64_t per_segment = numerics::kSegmentInputs / m.group;
  const int portions = m.group / kPortionInputs;
  const std::int64_t group_bytes = packed_group_bytes(Bits, m.group, m.wide_scales);
  const std::int64_t block_bytes = groups * group_bytes;
  const std::int64_t scale_bytes = kBlockRows * (m.wide_scales ? 4 : 2);
  Float total[B][R];
  Float segment[B][R];
  for (int b = 0; b < B; ++b) {
    for (int r = 0; r < R; ++r) total[b][r] = segment[b][r] = Isa::zero();
  }
  std::int64_t left = per_segment;
  for (std::int64_t g = 0; g < groups; ++g) {
    Int sum[B][R][kChains];
    for (auto& of_block : sum) {
      for (auto& chains : of_block) {
        for (Int& chain : chains) chain = Isa::zero_int();
      }
    }
    for (int portion = 0; portion < portions; ++portion) {
      const std::byte* codes = block + portion * 64 * Bits;
      const std::int64_t first = g * m.group + portion * kPortionInputs;
      if constexpr (R <= 4) Isa::template prefetch<64 * Bits>(codes);
      const auto step = [&]<int P>(std::integral_constant<int, P> /*pair*/) {
        Int pair[B];
        for (int b = 0; b < B; ++b) pair[b] = code_pair<Isa, Bits, P>(codes + b * block_bytes);
        for (int r = 0; r < R; ++r) {
          const Int a = Isa::activations(rows.values[static_cast<std::size_t>(r)] + first + 2 * P);
          for (int b = 0; b < B; ++b) sum[b][r][P % kChains] = Isa::dot(sum[b][r][P % kChains], pair[b], a);
        }
      };
      [&]<int... P>(std::integer_sequence<int, P...>) {
        (step(std::integral_constant<int, P>()), ...);
      }
      (std::make_integer_sequence<int, 16>());
    }
    const bool ends = --left == 0 || g + 1 == groups;
    if (ends) left = per_segment;
    for (int b = 0; b < B; ++b) {
      const std::byte* scales = block + b * block_bytes + 2 * m.group * Bits;
      const Float s = Isa::load_scales(scales, m.wide_scales);
      const Float bias = Isa::load_scales(scales + scale_bytes, m.wide_scales);
      for (int r = 0; r < R; ++r) {
        Int dot = sum[b][r][0];
        for (int chain = 1; chain < kChains; ++chain) dot = Isa::add_int(dot, sum[b][r][chain]);
        const auto row = static_cast<std::size_t>(r);
        const Float t = Isa::broadcast(rows.steps[row][g]);
        const Float a = Isa::broadcast(static_cast<float>(rows.sums[row][g]));
        const Float value = Isa::fma(Isa::mul(s, t), Isa::to_float(dot), Isa::mul(Isa::mul(bias, t), a));
        segment[b][r] = Isa::add(segment[b][r], value);
        if (!ends) continue;
        total[b][r] = Isa::add(total[b][r], segment[b][r]);
        segment[b][r] = Isa::zero();
      }
    }
    block += group_bytes;
  }
  for (int b = 0; b < B; ++b) {
    for (int r = 0; r < R; ++r) {
      Isa::store(rows.out[static_cast<std::size_t>(r)] + b * kBlockRows, total[b][r], b + 1 == B ? count : 16);
    }
  }
}

/// Blocks [begin, end) for R activation rows from row `first` of the product.
template <class Isa, int Bits, int R>
void tile_blocks(const PackedMatrix& m, const QuantisedRows& x, std::int64_t first, std::int64_t begin,
                 std::int64_t end, float* out, std::int64_t out_stride) {
  // Two blocks share the loads of activations where there are many.
  constexpr int kBlocks = Isa::kFusedDot && R >= 5 ? 2 : 1;
  const std::int64_t groups = m.cols / m.group;
  const std::int64_t block_bytes = groups * packed_group_bytes(Bits, m.group, m.wide_scales);
  TileRows<R> rows;
  for (std::int64_t r = 0; r < R; ++r) {
    const std::int64_t row = x.source == nullptr ? first + r : x.source[first + r];
    const auto i = static_cast<std::size_t>(r);
    rows.values[i] = x.values + row * m.cols;
    rows.steps[i] = x.steps + row * groups;
    rows.sums[i] = x.sums + row * groups;
  }
  std::int64_t block = begin;
  const auto run = [&]<int B>(std::integral_constant<int, B> /*blocks*/) {
    for (std::int64_t r = 0; r < R; ++r) {
      rows.out[static_cast<std::size_t>(r)] = out + (first + r) * out_stride + block * kBlockRows;
    }
    const std::int64_t rest = m.rows - (block + B - 1) * kBlockRows;
    tile<Isa, Bits, R, B>(m, m.data + block * block_bytes, rows,
                          static_cast<int>(rest < kBlockRows ? rest : kBlockRows));
    block += B;
  };
  // `run` moves `block` on, which the check does not see.
  while (block + kBlocks <= end) run(std::integral_constant<int, kBlocks>());  // NOLINT(bugprone-infinite-loop)
  while (block < end) run(std::integral_constant<int, 1>());                   // NOLINT(bugprone-infinite-loop)
}

template <class Isa, int Bits>
void packed_rows_bits(const PackedMatrix& m, const QuantisedRows& x, std::int64_t begin, std::int64_t end, float* out,
                      std::int64_t out_stride) {
  using Tile = void (*)(const PackedMatrix&, const QuantisedRows&, std::int64_t, std::int64_t, std::int64_t, float*,
                        std::int64_t);
  constexpr auto kTiles = []<int... R>(std::integer_sequence<int, R...>) {
    return std::array<Tile, sizeof...(R)>{tile_blocks<Isa, Bits, R + 1>...};
  }
  (std::make_integer_sequence<int, Isa::kTileRows>());
  const std::int64_t block_bytes = m.cols / m.group * packed_group_bytes(Bits, m.group, m.wide_scales);
  const std::int64_t panel = block_bytes >= kPanelBytes ? 1 : kPanelBytes / block_bytes;
  // Tiles of about the same size: nine rows are five and four, not eight and one.
  const std::int64_t tiles = (x.rows + Isa::kTileRows - 1) / Isa::kTileRows;
  for (std::int64_t block = begin; block < end; block += panel) {
    const std::int64_t stop = end - block < panel ? end : block + panel;
    for (std::int64_t i = 0; i < tiles; ++i) {
      const std::int64_t first = x.rows * i / tiles;
      const std::int64_t count = x.rows * (i + 1) / tiles - first;
      kTiles[static_cast<std::size_t>(count - 1)](m, x, first, block, stop, out, out_stride);
    }
  }
}

template <class Isa>
void packed_rows(const PackedMatrix& m, const QuantisedRows& x, std::int64_t begin, std::int64_t end, float* out,
                 std::int64_t out_stride) {
  switch (m.bits) {
    case 2:
      return packed_rows_bits<Isa, 2>(m, x, begin, end, out, out_stride);
    case 3:
      return packed_rows_bits<Isa, 3>(m, x, begin, end, out, out_stride);
    case 4:
      return packed_rows_bits<Isa, 4>(m, x, begin, end, out, out_stride);
    case 5:
      return packed_rows_bits<Isa, 5>(m, x, begin, end, out, out_stride);
    case 6:
      return packed_rows_bits<Isa, 6>(m, x, begin, end, out, out_stride);
    default:
      return packed_rows_bits<Isa, 8>(m, x, begin, end, out, out_stride);
  }
}

}  // namespace lockstep::kernels::vector
