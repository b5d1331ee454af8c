// A stack of experts' matrices as the kernels for a few and for several rows take it.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/linear.hpp"

namespace lockstep::kernels::cuda {

/// Codes and pairs of a stack.
struct Stack {
  const std::byte *codes, *pairs;
  std::int64_t code_stride, pair_stride;  ///< bytes of a matrix
};

inline Stack stack_of(const AffineWeights& weights) {
  return {static_cast<const std::byte*>(weights.codes), static_cast<const std::byte*>(weights.pairs),
          static_cast<std::int64_t>(weights.matrix_code_bytes()),
          static_cast<std::int64_t>(weights.matrix_pair_bytes())};
}

}  // namespace lockstep::kernels::cuda
