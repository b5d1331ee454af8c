// Hyper-connection sites of a few rows in two launches (docs/model.md 3.1): the usual case of decoding.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear.hpp"
#include "kernels/cuda/queue.hpp"

namespace lockstep::kernels::cuda {

struct HyperShape {
  int streams = 0, hidden = 0, lowrank = 0;
  float eps = 0;
};

/// Rows of one call.
inline constexpr std::int64_t kHyperRows = 4;

/// Whether hyper_site() takes this shape and these weights: four streams, bf16 matrices, lowrank of at most 512.
[[nodiscard]] bool hyper_site_takes(const HyperShape& shape, const DenseWeights& down, const DenseWeights& up,
                                    const DenseWeights* inject);

/// Block input u [rows, hidden] and, unless null, injection weights [rows, streams] of x [rows, streams * hidden], for
/// up to kHyperRows rows. Scratch: low [rows, lowrank], inverse [rows, streams].
void hyper_site(Queue& queue, const HyperShape& shape, const float* norm, const DenseWeights& down,
                const DenseWeights& up, const DenseWeights* inject_weights, const float* x, std::int64_t rows,
                float* low, float* inverse, float* u, float* inject);

}  // namespace lockstep::kernels::cuda
