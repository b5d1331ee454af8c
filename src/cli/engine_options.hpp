// Options of the commands that run a model: threads, instruction set, state type; and loading with them.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "artifact/artifact.hpp"
#include "backend/device.hpp"
#include "backend/profile.hpp"
#include "base/result.hpp"
#include "decode/lanes.hpp"
#include "engine/load_plan.hpp"
#include "model/model.hpp"

namespace CLI {
class App;
}

namespace lockstep::cli {

struct EngineOptions {
  std::string model;  ///< directory; empty: see find_model()
  std::string device = "cpu";
  std::size_t threads = 0;
  std::string isa;
  std::string state = "bf16";
  std::string ple = "auto";
  std::uint64_t ple_cache = std::uint64_t{512} << 20;  ///< bytes
  bool unquantised = false;
  bool force_memory = false;    ///< load what does not fit in memory
  std::string in_memory;        ///< a synthetic model instead of a directory: GEOMETRY[:RECIPE[:SEED]]
  std::int64_t ngram_rows = 0;  ///< rows a head of the synthetic model's n-gram table; 0: the geometry's
  /// What the command is going to run, as far as loading can refuse it: rows of a pass and tokens of its longest
  /// sequence; 0: what one short answer needs.
  std::int64_t rows = 0, tokens = 0;
  std::string frspec;          ///< list of draft tokens; empty: frspec.json of the model directory, if it has one
  backend::LaneOptions lanes;  ///< optional paths of the backend (decode/lanes.hpp)
  bool short_head = false;     ///< load the list of draft tokens, where there is one
  backend::Profile* profile = nullptr;
  /// Called while weights are loaded (model::ModelOptions::progress).
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
  /// Ends loading, and making a model in memory, with Cancelled. Without one it is the signals'
  /// (InterruptScope::flag()).
  const std::atomic<bool>* cancel = nullptr;
};

/// Adds --model, --device, --threads, --isa, --state, --ple, --ple-cache and --force-memory. `options` must outlive the
/// parse.
void add_engine_options(CLI::App& command, EngineOptions& options);
/// Adds --force-memory alone.
void add_force_memory_option(CLI::App& command, bool& force);
/// Adds --in-memory and --ngram-rows, after add_engine_options() or add_model_option().
void add_in_memory_option(CLI::App& command, EngineOptions& options);

/// The lanes that are left on: `disabled` are the values of --disable-optimization, `depth` that of --depth. Sets what
/// they mean for loading in `engine`. Errors: Usage for an unknown lane.
Result<decode::Lanes> choose_lanes(const std::vector<std::string>& disabled, std::int64_t depth, EngineOptions& engine);

/// An opened artifact and the model that runs it. The artifact outlives the model.
struct LoadedModel {
  std::unique_ptr<artifact::Artifact> artifact;
  std::unique_ptr<model::Model> model;
  std::filesystem::path texts;  ///< where tokenizer, chat template and sampler defaults are
  std::string label;            ///< of a model that is in no directory; to be shown with every figure
};

/// What loading the artifact with these options takes, for one short sequence; callers may ask for more.
[[nodiscard]] engine::LoadSetup load_setup(const EngineOptions& options, const artifact::Artifact& artifact,
                                           bool draft);
/// The device of --device. Errors: Usage, also for a place of the n-gram table (--ple) that it does not have.
Result<backend::DeviceChoice> chosen_device(const EngineOptions& options);
/// Refuses what does not fit in the memory that is available, unless `force`. Errors: Limit; Usage when
/// LOCKSTEP_MEMORY_LIMIT is no size.
Status check_memory(const artifact::Artifact& artifact, const engine::LoadSetup& setup, bool force);

/// Tokens of the list `file`, or when that is empty of frspec.json in the model directory; none when there is neither.
/// Errors: those of reading it; Invalid when it was made for another vocabulary size.
Result<std::vector<std::int32_t>> draft_tokens(const std::string& file, const artifact::Artifact& artifact);

/// options.cancel, or the flag of the signals.
[[nodiscard]] const std::atomic<bool>* cancel_flag(const EngineOptions& options);

/// The artifact that the options name, a directory's or a synthetic one, without its model: shapes alone.
Result<LoadedModel> open_model(const EngineOptions& options);

/// Opens and loads, after check_memory() where the processor's memory holds the weights; prints the artifact's warnings
/// to standard error. `draft` loads the draft layer too.
Result<LoadedModel> load_model(const EngineOptions& options, bool draft);

}  // namespace lockstep::cli
