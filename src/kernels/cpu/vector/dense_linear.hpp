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
      const Float x_low = Isa::in_register(Isa::load_floats(x + t * cols + i));
      const Float x_high = Isa::in_register(Isa::load_floats(x + t * cols + i + 16));
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

/// Output rows [begin, end) in steps of O for T activation rows, then what is left one by one.
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

/// Columns that a slice of many rows takes at a time: its activations stay in the nearest caches.
inline constexpr std::int64_t kSliceCols = 512;
/// Output rows of one panel, whose sums rest in memory between slices.
inline constexpr std::int64_t kPanelRows = 32;
inline constexpr int kPanelTiles = 4;

/// One slice of O output rows for T activation rows.
struct DenseSlice {
  const std::byte* weights;  ///< row o at o * weights_stride bytes
  std::int64_t weights_stride;
  const float* x;     ///< [T][kSliceCols]
  std::int64_t cols;  ///< a multiple of 32
  float* sums;        ///< [O][T][32], rows sums_stride apart: where the lanes rest between slices
  std::int64_t sums_stride;
  bool first, last;  ///< slice of its rows
  float* out;        ///< of the last slice: out[t * out_stride + o]
  std::int64_t out_stride;
};

template <class Isa, int O, int T>
LOCKSTEP_INLINE void dense_slice(const DenseSlice& s) {
  using Float = typename Isa::Float;
  Float low[O][T];
  Float high[O][T];
  for (int o = 0; o < O; ++o) {
    for (int t = 0; t < T; ++t) {
      const float* sum = s.sums + o * s.sums_stride + t * 32;
      low[o][t] = s.first ? Isa::zero() : Isa::load_floats(sum);
      high[o][t] = s.first ? Isa::zero() : Isa::load_floats(sum + 16);
    }
  }
  for (std::int64_t i = 0; i < s.cols; i += 32) {
    Float w_low[O];
    Float w_high[O];
    for (int o = 0; o < O; ++o) {
      const std::byte* w = s.weights + o * s.weights_stride + 2 * i;
      w_low[o] = Isa::load_bf16(w);
      w_high[o] = Isa::load_bf16(w + 32);
    }
    for (int t = 0; t < T; ++t) {
      const Float x_low = Isa::in_register(Isa::load_floats(s.x + t * kSliceCols + i));
      const Float x_high = Isa::in_register(Isa::load_floats(s.x + t * kSliceCols + i + 16));
      for (int o = 0; o < O; ++o) {
        low[o][t] = Isa::fma(w_low[o], x_low, low[o][t]);
        high[o][t] = Isa::fma(w_high[o], x_high, high[o][t]);
      }
    }
  }
  for (int o = 0; o < O; ++o) {
    for (int t = 0; t < T; ++t) {
      if (s.last) {
        s.out[t * s.out_stride + o] = Isa::fold16(Isa::add(low[o][t], high[o][t]));
        continue;
      }
      float* sum = s.sums + o * s.sums_stride + t * 32;
      Isa::store(sum, low[o][t], 16);
      Isa::store(sum + 16, high[o][t], 16);
    }
  }
}

/// Many activation rows: kPanelTiles tiles of T rows times panels of output rows, slice by slice. m.cols is a multiple
/// of 32, end - begin one of O.
template <class Isa, int O, int T>
void dense_panel(const DenseMatrix& m, const float* x, std::int64_t first, std::int64_t begin, std::int64_t end,
                 float* out, std::int64_t out_stride) {
  constexpr std::int64_t kStride = kPanelTiles * T * 32;
  alignas(64) float sums[kPanelRows * kStride];
  // Side by side: rows of a whole matrix may lie a multiple of 4,096 bytes apart, all in the same lines of the cache.
  alignas(64) float slice[kPanelTiles * T * kSliceCols];
  for (std::int64_t panel = begin; panel < end; panel += kPanelRows) {
    const std::int64_t stop = end - panel < kPanelRows ? end : panel + kPanelRows;
    for (std::int64_t from = 0; from < m.cols; from += kSliceCols) {
      const std::int64_t cols = m.cols - from < kSliceCols ? m.cols - from : kSliceCols;
      if (panel == begin || m.cols > kSliceCols) {
        for (std::int64_t t = 0; t < kPanelTiles * T; ++t) {
          std::memcpy(slice + t * kSliceCols, x + (first + t) * m.cols + from,
                      sizeof(float) * static_cast<std::size_t>(cols));
        }
      }
      for (std::int64_t row = panel; row < stop; row += O) {
        for (std::int64_t tile = 0; tile < kPanelTiles; ++tile) {
          dense_slice<Isa, O, T>({m.data + 2 * (row * m.cols + from), 2 * m.cols, slice + tile * T * kSliceCols, cols,
                                  sums + (row - panel) * kStride + tile * T * 32, kStride, from == 0,
                                  from + cols == m.cols, out + (first + tile * T) * out_stride + row, out_stride});
        }
      }
    }
  }
}

template <class Isa>
void dense_rows_bf16(const DenseMatrix& m, const float* x, std::int64_t x_rows, std::int64_t begin, std::int64_t end,
                     float* out, std::int64_t out_stride) {
  using Tiles =
      void (*)(const DenseMatrix&, const float*, std::int64_t, std::int64_t, std::int64_t, float*, std::int64_t);
  constexpr int kRows = Isa::kDenseRows;
  constexpr int kOutputs = Isa::kDenseOutputs;
  constexpr auto kTiles = []<int... T>(std::integer_sequence<int, T...>) {
    return std::array<Tiles, sizeof...(T)>{dense_tiles < Isa, T == 0 ? Isa::kDenseOutputsOne : kOutputs, T + 1 > ...};
  }
  (std::make_integer_sequence<int, kRows>());
  std::int64_t done = 0;
  if (m.cols % 32 == 0) {
    const std::int64_t even = begin + (end - begin) / kOutputs * kOutputs;
    constexpr int kPanelT = Isa::kPanelRows;
    for (; done + kPanelTiles * kPanelT <= x_rows; done += kPanelTiles * kPanelT) {
      dense_panel<Isa, kOutputs, kPanelT>(m, x, done, begin, even, out, out_stride);
      for (std::int64_t t = 0; t < kPanelTiles && even < end; ++t) {
        dense_tiles<Isa, 1, kPanelT>(m, x, done + t * kPanelT, even, end, out, out_stride);
      }
    }
  }
  const std::int64_t left = x_rows - done;
  const std::int64_t tiles = (left + kRows - 1) / kRows;
  for (std::int64_t i = 0; i < tiles; ++i) {
    const std::int64_t first = left * i / tiles;
    const std::int64_t count = left * (i + 1) / tiles - first;
    kTiles[static_cast<std::size_t>(count - 1)](m, x, done + first, begin, end, out, out_stride);
  }
}

}  // namespace lockstep::kernels::vector
