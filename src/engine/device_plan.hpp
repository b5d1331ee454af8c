// What a model takes of a CUDA device's memory, before it is loaded (docs/engine.md "Memory of a model").
#pragma once

#include <algorithm>

#include "engine/load_plan.hpp"

namespace lockstep::engine {

/// Bytes of the device's memory, from shapes alone. The n-gram table stays in the processor's memory.
struct DevicePlan {
  std::uint64_t weights = 0;  ///< matrices in the kernels' layout, vectors
  std::uint64_t staging = 0;  ///< the largest matrix as it is stored, while weights are laid out
  std::uint64_t table = 0;    ///< of the processor's memory: the n-gram table, or the cache of a streamed one
  bool table_streamed = false;
  std::uint64_t sequence = 0, token = 0;  ///< of state: of a sequence without tokens, and of each token
  std::uint64_t states = 0;               ///< of all sequences at their full length
  std::uint64_t scratch = 0;              ///< operations, runner, and an allowance for graphs and rounded allocations

  /// Most that exists at one time: staging goes before states and scratch come.
  [[nodiscard]] std::uint64_t total() const { return weights + std::max(staging, states + scratch); }
};

/// Takes no memory to speak of and needs no device. Errors: as plan_load().
Result<DevicePlan> plan_device(const artifact::Artifact& artifact, const LoadSetup& setup);

[[nodiscard]] std::string describe(const DevicePlan& plan);

/// Refuses a plan that needs more than the `free` bytes of `device`, with its figures. Errors: Limit.
Status check_fits(const DevicePlan& plan, std::uint64_t free, const std::string& device, const std::string& name);

/// What states of a server may take when nobody says: half of what is free once the model is on the device.
[[nodiscard]] constexpr std::uint64_t default_state_bytes(std::uint64_t free) {
  return std::max<std::uint64_t>(1, free / 2);
}

}  // namespace lockstep::engine
