// What a model takes of a CUDA device's memory, before it is loaded (docs/engine.md "Memory of a model").
#pragma once

#include <algorithm>

#include "engine/load_plan.hpp"

namespace lockstep::engine {

/// Bytes of the device's memory, from shapes alone, and of the processor's where the n-gram table is there.
struct DevicePlan {
  std::uint64_t weights = 0;  ///< matrices in the kernels' layout, vectors
  std::uint64_t staging = 0;  ///< the largest matrix as it is stored, while weights are laid out
  backend::NgramMode place = backend::NgramMode::Auto;  ///< of the n-gram table; Auto without one
  std::uint64_t table = 0;                              ///< its packed rows, when they are on the device
  std::uint64_t host_table = 0;  ///< of the processor's memory: the n-gram table, or the cache of a streamed one
  std::uint64_t sequence = 0, token = 0;  ///< of state: of a sequence without tokens, and of each token
  std::uint64_t states = 0;               ///< of all sequences at their full length
  std::uint64_t scratch = 0;              ///< operations, runner, and an allowance for graphs and rounded allocations

  /// Most that exists at one time: staging goes before states and scratch come.
  [[nodiscard]] std::uint64_t total() const { return weights + table + std::max(staging, states + scratch); }
};

/// The plan for a device with `free` bytes, beside `available` bytes of the processor's memory: an automatic place of
/// the n-gram table is chosen by them (backend::choose_place()). Takes no memory to speak of and needs no device.
/// Errors: as plan_load().
Result<DevicePlan> plan_device(const artifact::Artifact& artifact, const LoadSetup& setup, std::uint64_t free,
                               std::uint64_t available);

[[nodiscard]] std::string describe(const DevicePlan& plan);

/// Refuses a plan that needs more than the `free` bytes of `device`, or page-locks more than the `available` bytes of
/// the processor's memory, with its figures. Errors: Limit.
Status check_fits(const DevicePlan& plan, std::uint64_t free, std::uint64_t available, const std::string& device,
                  const std::string& name);

/// What states of a server may take when nobody says: half of what is free once the model is on the device.
[[nodiscard]] constexpr std::uint64_t default_state_bytes(std::uint64_t free) {
  return std::max<std::uint64_t>(1, free / 2);
}

}  // namespace lockstep::engine
