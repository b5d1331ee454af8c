#include "cli/engine_options.hpp"

#include <fmt/format.h>

#include <CLI/App.hpp>
#include <algorithm>

#include "artifact/draft_vocabulary.hpp"
#include "backend/cuda_devices.hpp"
#include "backend/device.hpp"
#include "backend/ngram/residency.hpp"
#include "base/file.hpp"
#include "base/memory.hpp"
#include "cli/arguments.hpp"
#include "cli/in_memory.hpp"
#include "cli/interrupt.hpp"
#include "cli/options.hpp"
#include "cli/terminal.hpp"
#include "engine/device_plan.hpp"

namespace lockstep::cli {
namespace {

backend::NgramOptions ngram_options(const EngineOptions& options, const artifact::Artifact& artifact, bool cuda) {
  backend::NgramOptions ngram;
  ngram.mode = backend::find_ngram_mode(options.ple).value_or(backend::NgramMode::Auto);
  ngram.cache_bytes = options.ple_cache;
  if (!options.in_memory.empty()) {  // the table is where the other weights are
    if (ngram.mode == backend::NgramMode::Auto && !cuda) ngram.mode = backend::NgramMode::Resident;
    return ngram;
  }
  for (const artifact::TensorRecord& tensor : artifact.inventory()) ngram.other_bytes += tensor.bytes;
  for (const artifact::LayerView& layer : artifact.view().layers) {
    if (layer.ple) ngram.other_bytes -= backend::ngram_table_bytes(layer.ple->table);
  }
  return ngram;
}

/// check_memory() of a CUDA device, which is opened and says how much is free. Returns the place of the n-gram table.
Result<backend::NgramMode> check_device_memory(const artifact::Artifact& artifact, const engine::LoadSetup& setup,
                                               const backend::DeviceChoice& device, bool force) {
  const kernels::cuda::DeviceInfo info = LOCKSTEP_TRY(backend::open_cuda_device(device.index));
  LOCKSTEP_TRY(memory_limit());
  const std::uint64_t available = available_memory();
  const engine::DevicePlan plan = LOCKSTEP_TRY(engine::plan_device(artifact, setup, info.free_memory, available));
  if (!force) {
    LOCKSTEP_TRY(engine::check_fits(plan, info.free_memory, available, device.text(), artifact.directory().string()));
  }
  return plan.place;
}

}  // namespace

void add_engine_options(CLI::App& command, EngineOptions& options) {
  add_model_option(command, options.model);
  command.add_option("--device", options.device, "Where the model runs: cpu, cuda or cuda:N")->capture_default_str();
  add_threads_option(command, options.threads, "every physical core");
  command.add_option("--isa", options.isa, "Kernels to use (default: LOCKSTEP_ISA, else the fastest of this machine)")
      ->check(not_empty());
  command.add_option("--state", options.state, "How keys and values are kept")
      ->check(CLI::IsMember({"bf16", "f32"}))
      ->capture_default_str();
  command
      .add_option("--ple", options.ple,
                  "The n-gram table: in memory (resident), read row by row (streamed), with CUDA also in the device's "
                  "memory or page-locked for it (pinned); auto: by available memory")
      ->check(CLI::IsMember({"resident", "streamed", "device", "pinned", "auto"}))
      ->capture_default_str();
  command.add_option("--ple-cache", options.ple_cache, "Cache of the streamed n-gram table (default: 512M)")
      ->transform(byte_count(0));
  add_force_memory_option(command, options.force_memory);
}

void add_force_memory_option(CLI::App& command, bool& force) {
  command.add_flag("--force-memory", force, "Load even what does not fit in memory ('lockstep plan' tells)");
}

void add_in_memory_option(CLI::App& command, EngineOptions& options) {
  command
      .add_option("--in-memory", options.in_memory,
                  "Run a synthetic model that no file holds: toy, mid, flash-next or a config.json")
      ->type_name("GEOMETRY[:RECIPE[:SEED]]")
      ->excludes(command.get_option("--model"))
      ->check(not_empty());
  add_ngram_rows_option(command, options.ngram_rows)->needs(command.get_option("--in-memory"));
}

engine::LoadSetup load_setup(const EngineOptions& options, const artifact::Artifact& artifact, bool draft) {
  engine::LoadSetup setup;
  setup.cpu.threads = granted_threads(options.threads);
  setup.cpu.isa = options.isa;
  setup.cpu.unquantised_activations = options.unquantised;
  setup.cpu.lanes = options.lanes;
  setup.cpu.profile = options.profile;
  const Result<backend::DeviceChoice> device = backend::parse_device(options.device);
  setup.cpu.ngram = ngram_options(options, artifact, device && device->cuda);
  setup.state = options.state == "f32" ? backend::StateType::F32 : backend::StateType::BF16;
  setup.draft = draft;
  setup.rows = backend::prompt_chunk(device ? *device : backend::DeviceChoice{});  // unless a command asks for others
  setup.on_demand = !options.in_memory.empty();
  if (options.rows > 0) setup.rows = options.rows;
  if (options.tokens > 0) setup.tokens = std::min(options.tokens, artifact.config().max_positions);
  return setup;
}

Result<backend::DeviceChoice> chosen_device(const EngineOptions& options) {
  const backend::DeviceChoice device = LOCKSTEP_TRY(backend::parse_device(options.device));
  const auto mode = backend::find_ngram_mode(options.ple).value_or(backend::NgramMode::Auto);
  LOCKSTEP_TRY(backend::check_table_place(device, mode));
  return device;
}

Status check_memory(const artifact::Artifact& artifact, const engine::LoadSetup& setup, bool force) {
  LOCKSTEP_TRY(memory_limit());
  if (force) return {};
  const engine::LoadPlan plan = LOCKSTEP_TRY(engine::plan_load(artifact, setup));
  return engine::check_fits(plan, available_memory(), artifact.directory().string());
}

Result<decode::Lanes> choose_lanes(const std::vector<std::string>& disabled, std::int64_t depth,
                                   EngineOptions& engine) {
  decode::Lanes lanes = LOCKSTEP_TRY(decode::Lanes::from_user(disabled));
  if (depth == 0) lanes.switch_off(decode::LaneId::Mtp, "--depth 0");
  if (lanes.all_disabled() && engine.isa.empty()) engine.isa = "scalar";
  engine.lanes = lanes.for_backend();
  engine.short_head = lanes.armed(decode::LaneId::Frspec);
  return lanes;
}

Result<std::vector<std::int32_t>> draft_tokens(const std::string& file, const artifact::Artifact& artifact) {
  std::filesystem::path path = file;
  if (path.empty()) {
    path = artifact.directory() / artifact::kDraftVocabularyFile;
    if (!LOCKSTEP_TRY(file_present(path))) return std::vector<std::int32_t>{};
  }
  artifact::DraftVocabulary list = LOCKSTEP_TRY(artifact::read_draft_vocabulary(path));
  if (list.vocab_size != artifact.config().vocab_size) {
    return fail(ErrorKind::Invalid, "{}: made for a vocabulary of {}, but the model has {} tokens: make a new list",
                path.string(), list.vocab_size, artifact.config().vocab_size);
  }
  return std::move(list.ids);
}

const std::atomic<bool>* cancel_flag(const EngineOptions& options) {
  return options.cancel != nullptr ? options.cancel : &InterruptScope::flag();
}

Result<LoadedModel> open_model(const EngineOptions& options) {
  if (!options.in_memory.empty()) return make_in_memory(options);
  LoadedModel opened;
  opened.texts = LOCKSTEP_TRY(find_model(options.model));
  opened.artifact = std::make_unique<artifact::Artifact>(LOCKSTEP_TRY(artifact::Artifact::open_shapes(opened.texts)));
  return opened;
}

Result<LoadedModel> load_model(const EngineOptions& options, bool draft) {
  const backend::DeviceChoice device = LOCKSTEP_TRY(chosen_device(options));
  LoadedModel loaded = LOCKSTEP_TRY(open_model(options));
  engine::LoadSetup setup = load_setup(options, *loaded.artifact, draft);
  if (device.cuda) {
    setup.cpu.ngram.mode = LOCKSTEP_TRY(check_device_memory(*loaded.artifact, setup, device, options.force_memory));
  } else {
    LOCKSTEP_TRY(check_memory(*loaded.artifact, setup, options.force_memory));
  }
  loaded.artifact->make_ready();
  if (cancel_flag(options)->load()) return fail(ErrorKind::Cancelled, "interrupted");
  std::unique_ptr<backend::Backend> backend = LOCKSTEP_TRY(backend::create_backend(device, setup.cpu));
  for (const std::string& warning : loaded.artifact->warnings()) complain(warning);
  model::ModelOptions model_options;
  model_options.state = setup.state;
  model_options.draft = draft;
  model_options.progress = options.progress;
  model_options.cancel = cancel_flag(options);
  const bool short_head = draft && options.short_head;
  if (short_head || !options.frspec.empty()) {  // a file that was named is read, wanted or not
    std::vector<std::int32_t> tokens = LOCKSTEP_TRY(draft_tokens(options.frspec, *loaded.artifact));
    if (short_head) model_options.draft_tokens = std::move(tokens);
  }
  loaded.model = LOCKSTEP_TRY(model::Model::load(*loaded.artifact, std::move(backend), model_options));
  return loaded;
}

}  // namespace lockstep::cli
