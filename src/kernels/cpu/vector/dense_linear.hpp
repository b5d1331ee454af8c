// Products with bf16 matrices, by fold32 (docs/numerics.md N2 and N4), written once over the instruction set.
//
// A 32-lane accumulator is two of the sixteen-lane values of `Isa`.
#pragma once

#include <array>
#include <cstring>
#include <utility>

#include "kernels/cpu/kernels.hpp"
#include "numerics/fold32.hpp"

namespace lockstep::kernels::vector {

/// O output rows times T activation rows; out[t * stride + o].
template <class Isa, int O, int T>
void dense_tile(const std::byte* weights, std::int64_t cols, const float* x, float* out, std::int64_t out_stride) {
  using Float = typename Isa::Float;
  Float low[O][T];
  Float high[O][T];
  for (int o = 0; o < O; ++o) {
    for (int t = 0; t < T; ++t) low[o][t] = high[o][t] = Isa::zero();
  }
  const std::int64_t whole = cols / 32 * 32;
  for (std::int64_t i = 0; i < whole; i += 32) {
    Float w_low[O];
    Float w_high[O];
    for (int o = 0; o < O; ++o) {
      const std::byte* w = weights + 2 * (o * cols + i);
      if constexpr (T == 1) Isa::template prefetch<64>(w);
      w_low[o] = Isa::load_bf16(w);
      w_high[o] = Isa::load_bf16(w + 32);
    }
    for (int t = 0; t < T; ++t) {
      const Float x_low = Isa::load_floats(x + t * cols + i);
      const Float x_high = Isa::load_floats(x + t * cols + i + 16);
      for (int o = 0; o < O; ++o) {
        low[o][t] = Isa::fma(w_low[o], x_low, low[o][t]);
        high[o][t] = Isa::fma(w_high[o], x_high, high[o][t]);
      }
    }
  }
  for (int o = 0; o < O; ++o) {
    for (int t = 0; t < T; ++t) {
      if (whole == cols) {
        out[t * out_stride + o] = Isa::fold16(Isa::add(low[o][t], high[o][t]));
        continue;
      }
      float lanes[32];
      Isa::store(lanes, low[o][t], 16);
      Isa::store(lanes + 16, high[o][t], 16);
      for (std::int64_t j = 0; j < 32; ++j) {
        if (whole + j >= cols) {
          lanes[j] += 0.0F;
          continue;
        }
        std::uint16_t bits;
        std::memcpy(&bits, weights + 2 * (o * cols + whole + j), 2);
        lanes[j] = numerics::canon_fma(numerics::bf16_to_float(bits), x[t * cols + whole + j], lanes[j]);
      }
      out[t * out_stride + o] = numerics::fold32_lanes(lanes);
    }
  }
}

/// Output rows [begin, end) in steps of O for all activation rows in steps of T, then what is left one by one.
template <class Isa, int O, int T>
void dense_tiles(const DenseMatrix& m, const float* x, std::int64_t first, std::int64_t begin, std::int64_t end,
                 float* out, std::int64_t out_stride) {
  const auto at = [&](std::int64_t row) { return m.data + 2 * row * m.cols; };
  float* to = out + first * out_stride;
  const float* from = x + first * m.cols;
  std::int64_t row = begin;
  for (; row + O <= end; row += O) dense_tile<Isa, O, T>(at(row), m.cols, from, to + row, out_stride);
  for (; row < end; ++row) dense_tile<Isa, 1, T>(at(row), m.cols, from, to + row, out_stride);
}

template <class Isa>
void dense_rows_bf16(const DenseMatrix& m, const float* x, std::int64_t x_rows, std::int64_t begin, std::int64_t end,
                     float* out, std::int64_t out_stride) {
  using Tiles =
      void (*)(const DenseMatrix&, const float*, std::int64_t, std::int64_t, std::int64_t, float*, std::int64_t);
  constexpr auto kTiles = []<int... T>(std::integer_sequence<int, T...>) {
    return std::array<Tiles, sizeof...(T)>{dense_tiles < Isa, T == 0 ? Isa::kDenseOutputsOne : Isa::kDenseOutputs,
                                           T + 1 > ...};
  }
  (std::make_integer_sequence<int, Isa::kDenseRows>());
  const std::int64_t tiles = (x_rows + Isa::kDenseRows - 1) / Isa::kDenseRows;
  for (std::int64_t i = 0; i < tiles; ++i) {
    const std::int64_t first = x_rows * i / tiles;
    const std::int64_t count = x_rows * (i + 1) / tiles - first;
    kTiles[static_cast<std::size_t>(count - 1)](m, x, first, begin, end, out, out_stride);
  }
}

}  // namespace lockstep::kernels::vector
