// The affine quantiser: groups of weights to codes, a scale and a bias (docs/artifact.md, "Quantiser").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "artifact/model_view.hpp"
#include "artifact/quantization.hpp"

namespace lockstep::artifact {

/// Where one quantised row goes.
struct AffineRow {
  std::byte* codes;       ///< cols * bits / 8 bytes
  std::uint16_t* scales;  ///< cols / group, bf16
  std::uint16_t* biases;  ///< cols / group, bf16
};

/// Quantises one row; `values.size()` is a multiple of the group and of 32, and all values are finite. For each group,
/// with the values rounded to bf16 and n = 2^bits - 1:
///   edge = the extreme of larger magnitude, far = the other one
///   step = (max - min) / n, at least 1e-7, negative when edge is the maximum
///   q0 = round(edge / step); if q0 != 0: step = edge / q0 and bias = edge, so that zero has a code; else bias = 0
///   scale = bf16(step), moved away from zero until far lies within n + 1/2 steps of the bias
///   code = round((value - bias) / scale), clamped to [0, n]
/// So edge is exact and every value is within half a step of what the codes give back.
void quantise_row(std::span<const float> values, Precision precision, const AffineRow& out);

/// Writes codes below 2^bits as a little-endian bit stream; `codes.size()` is a multiple of 32.
void pack_codes(std::span<const std::uint8_t> codes, int bits, std::byte* out);

/// One row of matrix `index` of a stack as f32: dense rows widened, affine rows as scale * code + bias.
void read_row(const MatrixView& matrix, std::int64_t index, std::int64_t row, float* out);

}  // namespace lockstep::artifact
