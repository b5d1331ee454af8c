#include "engine/device_plan.hpp"

#include "artifact/model_walk.hpp"
#include "backend/device_memory.hpp"

namespace lockstep::engine {
namespace {

/// For what no shape tells: recorded graphs and what the driver rounds up. An allowance, not a measurement.
constexpr std::uint64_t kAllowance = std::uint64_t{256} << 20;
/// Allocations begin at multiples of this.
constexpr std::uint64_t kUnit = 512;

std::uint64_t rounded(std::uint64_t bytes) {
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

}  // namespace

Result<DevicePlan> plan_device(const artifact::Artifact& artifact, const LoadSetup& setup) {
  const LoadPlan host = LOCKSTEP_TRY(plan_load(artifact, setup));
  const artifact::ModelView& view = artifact.view();
  const artifact::ModelParts parts = artifact::walk_model(view);
  DevicePlan plan;
  for (const artifact::MatrixPart& part : parts.matrices) {
    if (part.draft && !setup.draft) continue;
    plan.weights += rounded(backend::device_matrix_bytes(*part.matrix));
    plan.staging = std::max(plan.staging, rounded(artifact::matrix_bytes(*part.matrix)));
  }
  for (const artifact::VectorPart& part : parts.vectors) {
    if (!part.draft || setup.draft) plan.weights += rounded(part.values->size() * sizeof(float));
  }
  plan.table = host.table;
  plan.table_streamed = host.table_streamed;
  plan.sequence = host.sequence;
  plan.token = host.token;
  plan.states = host.states;
  plan.scratch = backend::device_scratch_bytes(view, setup.rows, setup.tokens) +
                 model::runner_bytes(view.config, setup.rows, setup.draft && view.draft.has_value()) + kAllowance;
  return plan;
}

std::string describe(const DevicePlan& plan) {
  return fmt::format("{}: weights {} (while they are laid out {} more), state {}, scratch {}", bytes_text(plan.total()),
                     bytes_text(plan.weights), bytes_text(plan.staging), bytes_text(plan.states),
                     bytes_text(plan.scratch));
}

Status check_fits(const DevicePlan& plan, std::uint64_t free, const std::string& device, const std::string& name) {
  if (plan.total() <= free) return {};
  return fail(ErrorKind::Limit,
              "{}: does not fit in the memory of {}: it takes {}; {} are free. Use a smaller recipe, fewer or shorter "
              "sequences, or another device; 'lockstep plan --device' shows the parts, --force-memory loads anyway",
              name, device, describe(plan), bytes_text(free));
}

}  // namespace lockstep::engine
