// Synthetic models: a geometry, a recipe and a seed make a valid model with random weights, on disk or in memory, for
// measuring and for tests (docs/artifact.md, "Synthetic models"). The same three give the same bytes everywhere.
#pragma once

#include <functional>
#include <optional>

#include "artifact/artifact.hpp"
#include "artifact/pack.hpp"

namespace lockstep::artifact {

struct SynthModel {
  OrderedJson config;  ///< config.json in the official layout's form (synth_geometry.hpp)
  Recipe recipe;
  std::uint64_t seed = 1;
};

struct SynthOptions {
  bool force = false;               ///< replace an existing pack
  std::size_t threads = 0;          ///< 0: physical cores
  std::filesystem::path tokenizer;  ///< directory of the tokenizer files to copy; empty: none
  std::uint64_t shard_bytes = std::uint64_t{4} << 30;
  const std::atomic<bool>* cancel = nullptr;
  /// Called with the bytes done so far and in all.
  std::function<void(std::uint64_t, std::uint64_t)> progress = [](std::uint64_t, std::uint64_t) {};
};

/// Writes a pack, as write_pack() does: DESTINATION appears when it is complete, an interrupted run is continued by the
/// same call. The tokenizer is padded with entries [PADn] to the vocabulary. Errors: those of parse_config(), Invalid
/// (an existing destination, a tokenizer with more tokens than the vocabulary), Limit (not enough space), Io,
/// Cancelled.
Result<PackResult> write_synthetic(const SynthModel& model, const std::filesystem::path& destination,
                                   const SynthOptions& options);

/// Precision of the module with this pack name (the n-gram table is "ngram"), or nothing for dense bf16. The group
/// divides the module's columns.
using PrecisionRule = std::function<std::optional<Precision>(const MatrixPart& part)>;
[[nodiscard]] PrecisionRule recipe_rule(const Recipe& recipe);

/// The model in memory, with exactly the bytes that write_synthetic() writes for the rule's recipe. Its n-gram table
/// can only be resident. Errors: Limit when the weights take more than the available memory.
Result<Artifact> make_synthetic(const ModelConfig& config, const PrecisionRule& rule, std::uint64_t seed,
                                std::size_t threads = 0);
/// The same for a whole description. Errors: also those of parse_config().
Result<Artifact> make_synthetic(const SynthModel& model, std::size_t threads = 0);
/// The same model, whose matrices are made when they are asked for (Artifact::on_demand). Errors: those of
/// parse_config(), Limit (n-gram table).
/// `cancel`, which must outlive the artifact, ends the making of a matrix: it then stays a shape.
Result<Artifact> make_synthetic_on_demand(const SynthModel& model, std::size_t threads = 0,
                                          const std::atomic<bool>* cancel = nullptr);

}  // namespace lockstep::artifact
