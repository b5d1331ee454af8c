// The three passes over a whole row of logits, compiled for several instruction sets with the same bits.
#pragma once

#include <cstddef>
#include <span>

namespace lockstep::decode {

/// Values per block of block maxima.
inline constexpr std::size_t kMaximaBlock = 256;

struct RowPasses {
  const char* name;

  /// values[i] = logits[i] * scale in binary32. Returns whether every logit is finite (products may overflow).
  bool (*scale)(const float* logits, float scale, float* values, std::size_t n);

  /// maxima[b] = the largest of values[b * kMaximaBlock ..], for ceil(n / kMaximaBlock) blocks. No value is NaN.
  void (*block_maxima)(const float* values, float* maxima, std::size_t n);

  /// exps[i] = canon_exp(values[i] - max), and their sum in binary64 by fold32 (docs/numerics.md N2, N9).
  double (*exp_fold)(const float* values, float max, float* exps, std::size_t n);
};

/// The fastest set that this processor runs.
[[nodiscard]] const RowPasses& row_passes();

/// Every set that this processor runs, the portable one first; all give the same bits.
[[nodiscard]] std::span<const RowPasses> supported_row_passes();

}  // namespace lockstep::decode
