// A layer's experts as the kernels for few and for several rows take them.
#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "backend/cuda/device_backend.hpp"
#include "kernels/cuda/few_experts.hpp"

namespace lockstep::backend {

inline const DeviceMatrix& device_of(const MatrixPtr& matrix) {
  return static_cast<const DeviceMatrix&>(*matrix);
}

/// Nothing where one of the matrices is not quantised.
inline std::optional<kernels::cuda::FewExperts> expert_matrices(const MoeWeights& weights, std::int64_t rows,
                                                                std::int64_t ranks) {
  const std::array<const MatrixPtr*, 6> all{&weights.gate,        &weights.up,        &weights.down,
                                            &weights.shared_gate, &weights.shared_up, &weights.shared_down};
  const bool quantised = std::ranges::all_of(all, [](const MatrixPtr* matrix) { return device_of(*matrix).quantised; });
  if (!quantised) return std::nullopt;
  const auto affine = [&all](std::size_t i) { return &device_of(*all.at(i)).affine; };
  return kernels::cuda::FewExperts{affine(0), affine(1), affine(2), affine(3), affine(4), affine(5), rows, ranks};
}

}  // namespace lockstep::backend
