// The n-gram layer for a few rows in two launches (docs/numerics.md "Hyper-connections and n-gram gate").
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/delta.hpp"
#include "kernels/cuda/linear.hpp"
#include "kernels/cuda/queue.hpp"

namespace lockstep::kernels::cuda {

/// Rows of one call.
inline constexpr std::int64_t kNgramRows = 4;

struct NgramLayer {
  const DenseWeights *key = nullptr, *value = nullptr;  ///< [streams * hidden, cols], [hidden, cols]
  const float *norm_key = nullptr, *norm_query = nullptr, *norm_conv = nullptr;  ///< [streams * hidden]
  const float* conv = nullptr;                                                   ///< [streams * hidden, 4]
  int streams = 0, hidden = 0;
  float eps = 0;
};

/// Whether ngram_few() serves this layer: bf16 projections, few rows, a convolution of four taps three rows apart.
[[nodiscard]] bool ngram_few_takes(const NgramLayer& layer, const ConvShape& conv, std::int64_t rows);
/// x [rows, streams * hidden] += gated + conv for the embedded n-grams e [rows, cols], and the columns of all runs move
/// on. Scratch: key [rows, streams * hidden], value [rows, hidden].
void ngram_few(Queue& queue, const NgramLayer& layer, const float* e, std::span<const ConvRun> runs, std::int64_t rows,
               float* key, float* value, float* x);

}  // namespace lockstep::kernels::cuda
