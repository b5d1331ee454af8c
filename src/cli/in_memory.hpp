// Synthetic models that are made when a command starts and never written.
#pragma once

#include <cstdint>
#include <string>

#include "artifact/synth.hpp"
#include "cli/engine_options.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lockstep::cli {

/// What --in-memory asks for.
struct InMemoryModel {
  std::string geometry, recipe = "bare";
  std::uint64_t seed = 1;
  std::int64_t ngram_rows = 0;  ///< a head of the n-gram table; 0: the geometry's

  /// "synthetic model mid, recipe bare, seed 1 (random weights)".
  [[nodiscard]] std::string label() const;
};

/// Adds --ngram-rows.
CLI::Option* add_ngram_rows_option(CLI::App& command, std::int64_t& rows);

/// Takes "GEOMETRY[:RECIPE[:SEED]]" apart. A geometry may be a path, with colons too as long as what follows the last
/// ones is neither a recipe nor a number after one. Errors: Usage.
Result<InMemoryModel> parse_in_memory(const std::string& text);

/// What artifact::make_synthetic_on_demand() takes. Errors: Usage, those of reading a geometry's file.
Result<artifact::SynthModel> describe_in_memory(const InMemoryModel& model);

/// The shapes of the model that options.in_memory names; its matrices are made when they are loaded. Says on standard
/// error that it is synthetic. The texts are the demo model's. Errors: Usage, those of describe_in_memory() and of
/// artifact::make_synthetic_on_demand().
Result<LoadedModel> make_in_memory(const EngineOptions& options);

}  // namespace lockstep::cli
