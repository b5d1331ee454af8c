// Options of the commands that run a model: threads, instruction set, state type; and loading with them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "artifact/artifact.hpp"
#include "backend/profile.hpp"
#include "base/result.hpp"
#include "decode/lanes.hpp"
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
  std::string frspec;          ///< list of draft tokens; empty: frspec.json of the model directory, if it has one
  backend::LaneOptions lanes;  ///< optional paths of the backend (decode/lanes.hpp)
  bool short_head = false;     ///< load the list of draft tokens, where there is one
  backend::Profile* profile = nullptr;
  /// Called while weights are loaded (model::ModelOptions::progress).
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};

/// Adds --model, --device, --threads, --isa, --state, --ple and --ple-cache. `options` must outlive the parse.
void add_engine_options(CLI::App& command, EngineOptions& options);

/// The lanes that are left on: `disabled` are the values of --disable-optimization, `depth` that of --depth. Sets what
/// they mean for loading in `engine`. Errors: Usage for an unknown lane.
Result<decode::Lanes> choose_lanes(const std::vector<std::string>& disabled, std::int64_t depth, EngineOptions& engine);

/// An opened artifact and the model that runs it. The artifact outlives the model.
struct LoadedModel {
  std::unique_ptr<artifact::Artifact> artifact;
  std::unique_ptr<model::Model> model;
};

/// Tokens of the list `file`, or when that is empty of frspec.json in the model directory; none when there is neither.
/// Errors: those of reading it; Invalid when it was made for another vocabulary size.
Result<std::vector<std::int32_t>> draft_tokens(const std::string& file, const artifact::Artifact& artifact);

/// Opens and loads; prints the artifact's warnings to standard error. `draft` loads the draft layer too.
Result<LoadedModel> load_model(const EngineOptions& options, bool draft);

}  // namespace lockstep::cli
