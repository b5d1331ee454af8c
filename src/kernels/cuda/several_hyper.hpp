// Hyper-connection sites of up to 16 rows in three launches (docs/model.md 3.1).
#pragma once

#include <cstdint>

#include "kernels/cuda/hyper.hpp"
#include "kernels/cuda/linear.hpp"
#include "kernels/cuda/queue.hpp"

namespace lockstep::kernels::cuda {

/// Whether several_site() takes this shape and these weights: as hyper_site(), with a lowrank of 320.
[[nodiscard]] bool several_site_takes(const HyperShape& shape, const DenseWeights& down, const DenseWeights& up,
                                      const DenseWeights* inject);

/// hyper_site() for up to kSeveralRows rows. Scratch: n [rows, streams * hidden], low [rows, lowrank].
void several_site(Queue& queue, const HyperShape& shape, const float* norm, const DenseWeights& down,
                  const DenseWeights& up, const DenseWeights* inject_weights, const float* x, std::int64_t rows,
                  float* n, float* low, float* u, float* inject);

}  // namespace lockstep::kernels::cuda
