#include "engine/load_plan.hpp"

#include <algorithm>

#include "artifact/model_walk.hpp"
#include "backend/cpu/memory_use.hpp"
#include "backend/ngram/residency.hpp"
#include "backend/ngram/row_cache.hpp"
#include "base/memory.hpp"
#include "base/progress.hpp"
#include "engine/memory_plan.hpp"

namespace lockstep::engine {
namespace {

void add_weights(const artifact::Artifact& artifact, const LoadSetup& setup, bool packs, LoadPlan& plan) {
  const artifact::ModelView& view = artifact.view();
  plan.copied += artifact.transposed_bytes();
  for (const artifact::MatrixPart& part : artifact::walk_model(view).matrices) {
    if (part.draft && !setup.draft) continue;
    // Of the embedding single rows are read, where they are.
    const std::uint64_t own = part.matrix == &view.embedding ? 0 : backend::own_bytes(*part.matrix, packs);
    const std::uint64_t stored = artifact::matrix_bytes(*part.matrix);
    plan.packed += own;
    if (own == 0) (setup.on_demand ? plan.copied : plan.mapped) += stored;
    if (setup.on_demand && own > 0) plan.passing = std::max(plan.passing, stored);
  }
  // A transposed copy, of experts that are not quantised, is read instead of its file.
  if (!setup.on_demand) plan.mapped -= std::min(plan.mapped, artifact.transposed_bytes());
  for (const artifact::VectorPart& part : artifact::walk_model(view).vectors) {
    const std::uint64_t size = part.values->size() * sizeof(float);
    plan.copied += size;                                  // the view's
    if (!part.draft || setup.draft) plan.copied += size;  // the backend's
  }
}

void add_table(const artifact::ModelView& view, const LoadSetup& setup, LoadPlan& plan) {
  for (const artifact::LayerView& layer : view.layers) {
    if (!layer.ple) continue;
    plan.table_file = backend::ngram_table_bytes(layer.ple->table);
    backend::NgramMode mode = setup.cpu.ngram.mode;
    if (mode == backend::NgramMode::Auto) {
      mode = backend::choose_residency(plan.table_file, setup.cpu.ngram.other_bytes, available_memory());
    }
    plan.table_streamed = mode == backend::NgramMode::Streamed && !setup.on_demand;
    plan.table = plan.table_file;
    if (!plan.table_streamed) continue;
    const auto rows = static_cast<std::uint64_t>(layer.ple->table.rows);
    const std::uint64_t slot = backend::RowCache::slot_bytes(plan.table_file / std::max<std::uint64_t>(1, rows));
    plan.table = std::min(setup.cpu.ngram.cache_bytes, rows * slot);
  }
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  return format_bytes(static_cast<double>(bytes));
}

Result<LoadPlan> plan_load(const artifact::Artifact& artifact, const LoadSetup& setup) {
  const artifact::ModelView& view = artifact.view();
  const kernels::Kernels* kernels = LOCKSTEP_TRY(backend::choose_kernels(setup.cpu.isa));
  const bool integer = !setup.cpu.unquantised_activations;
  const bool packs = integer && kernels->pack_blocks != nullptr;
  const bool draft = setup.draft && view.draft.has_value();
  LoadPlan plan;
  add_weights(artifact, setup, packs, plan);
  add_table(view, setup, plan);
  Options options = setup.options;
  if (!draft) options.depth = 0;
  const MemoryPlan states(view.config, setup.state, options, 0);
  plan.sequence = states.fixed_bytes();
  plan.token = states.bytes_per_token();
  plan.states = static_cast<std::uint64_t>(setup.parallel) * states.choice(setup.tokens);
  const std::size_t threads = setup.cpu.threads == 0 ? physical_cores() : setup.cpu.threads;
  plan.scratch = backend::scratch_bytes(
      view, {setup.rows, setup.tokens, static_cast<std::int64_t>(threads), draft, packs, integer});
  plan.scratch += model::runner_bytes(view.config, setup.rows, draft);
  if (!view.config.ple_layers.empty()) plan.scratch += setup.cpu.lanes.ple_aux_bytes;
  return plan;
}

std::string describe(const LoadPlan& plan) {
  std::string text = fmt::format("{}: weights {}", bytes_text(plan.total()), bytes_text(plan.weights()));
  if (plan.table_file > 0) {
    text += fmt::format(", n-gram table {}{}", bytes_text(plan.table), plan.table_streamed ? " (streamed)" : "");
  }
  return text + fmt::format(", state {}, scratch {}", bytes_text(plan.states), bytes_text(plan.scratch));
}

Status check_fits(const LoadPlan& plan, std::uint64_t available, const std::string& name) {
  if (plan.total() <= available) return {};
  const Result<std::optional<std::uint64_t>> limit = memory_limit();
  const bool limited = limit && *limit && **limit == available;
  const bool streaming_helps = plan.table_file > plan.table || (!plan.table_streamed && plan.table_file > 0);
  return fail(ErrorKind::Limit,
              "{}: does not fit in memory: it takes {}; {}. Use a smaller recipe{} or {}; 'lockstep plan' shows "
              "the parts, --force-memory loads anyway",
              name, describe(plan),
              limited ? fmt::format("LOCKSTEP_MEMORY_LIMIT allows {}", bytes_text(available))
                      : fmt::format("{} are available (system and control group)", bytes_text(available)),
              streaming_helps && !plan.table_streamed ? ", --ple streamed" : "",
              limited ? "a higher limit" : "a larger machine");
}

}  // namespace lockstep::engine
