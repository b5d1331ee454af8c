#include "engine/device_plan.hpp"

#include "artifact/model_walk.hpp"
#include "backend/device_memory.hpp"
#include "backend/ngram/residency.hpp"
#include "backend/ngram/table_rows.hpp"

namespace lockstep::engine {
namespace {

/// For what no shape tells: recorded graphs and what the driver rounds up. An allowance, not a measurement.
constexpr std::uint64_t kAllowance = std::uint64_t{256} << 20;
/// Allocations begin at multiples of this.
constexpr std::uint64_t kUnit = 512;

std::uint64_t rounded(std::uint64_t bytes) {
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

/// Where the table is going to be; its bytes are added there.
void place_table(const artifact::ModelView& view, const LoadSetup& setup, const LoadPlan& host, std::uint64_t free,
                 std::uint64_t available, DevicePlan& plan) {
  const auto layer = std::ranges::find_if(view.layers, [](const artifact::LayerView& l) { return l.ple.has_value(); });
  if (layer == view.layers.end()) return;
  const std::uint64_t packed = rounded(backend::packed_table_bytes(layer->ple->table));
  plan.place = setup.cpu.ngram.mode;
  if (plan.place == backend::NgramMode::Auto) {
    plan.place = backend::choose_place(packed, plan.total(), free, available, !setup.on_demand);
  }
  if (plan.place == backend::NgramMode::Device) {
    plan.table = packed;
  } else if (plan.place == backend::NgramMode::Pinned) {
    plan.host_table = packed;
  } else if (plan.place == backend::NgramMode::Streamed) {
    plan.host_table = host.table;
  } else {
    plan.host_table = host.table_file;
  }
}

}  // namespace

Result<DevicePlan> plan_device(const artifact::Artifact& artifact, const LoadSetup& setup, std::uint64_t free,
                               std::uint64_t available) {
  LoadSetup on_host = setup;
  // What a cache would take, in case the table is going to be streamed.
  if (on_host.cpu.ngram.mode == backend::NgramMode::Auto) on_host.cpu.ngram.mode = backend::NgramMode::Streamed;
  const LoadPlan host = LOCKSTEP_TRY(plan_load(artifact, on_host));
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
  plan.sequence = host.sequence;
  plan.token = host.token;
  plan.states = host.states;
  plan.scratch = backend::device_scratch_bytes(view, setup.rows, setup.tokens) +
                 model::runner_bytes(view.config, setup.rows, setup.draft && view.draft.has_value()) + kAllowance;
  place_table(view, setup, host, free, available, plan);
  return plan;
}

std::string describe(const DevicePlan& plan) {
  return fmt::format("{}: weights {} (while they are laid out {} more){}, state {}, scratch {}",
                     bytes_text(plan.total()), bytes_text(plan.weights), bytes_text(plan.staging),
                     plan.table > 0 ? ", n-gram table " + bytes_text(plan.table) : "", bytes_text(plan.states),
                     bytes_text(plan.scratch));
}

Status check_fits(const DevicePlan& plan, std::uint64_t free, std::uint64_t available, const std::string& device,
                  const std::string& name) {
  if (plan.place == backend::NgramMode::Pinned && plan.host_table > available) {
    return fail(ErrorKind::Limit,
                "{}: {} of page-locked memory for the n-gram table do not fit in the {} that are available; use --ple "
                "streamed",
                name, bytes_text(plan.host_table), bytes_text(available));
  }
  if (plan.total() <= free) return {};
  return fail(
      ErrorKind::Limit,
      "{}: does not fit in the memory of {}: it takes {}; {} are free. Use {}a smaller recipe, fewer or shorter "
      "sequences, shorter chunks of prompts (--prefill-chunk, in bench --chunk), or another device; 'lockstep plan "
      "--device' shows the parts, --force-memory loads anyway",
      name, device, describe(plan), bytes_text(free), plan.table > 0 ? "--ple pinned, " : "");
}

}  // namespace lockstep::engine
