// What a model takes of this machine's memory, before it is loaded (docs/engine.md "Memory of a model").
#pragma once

#include <cstdint>
#include <string>

#include "artifact/artifact.hpp"
#include "backend/cpu/cpu_backend.hpp"
#include "engine/options.hpp"

namespace lockstep::engine {

/// How a model is going to be loaded and used.
struct LoadSetup {
  backend::CpuOptions cpu;  ///< instruction set, n-gram table, lanes
  backend::StateType state = backend::StateType::BF16;
  bool draft = true;                       ///< the draft layer is loaded where the artifact has one
  std::int64_t rows = 1;                   ///< of a forward pass at most
  std::int64_t tokens = 64, parallel = 1;  ///< sequences of so many tokens, that many at a time
  Options options;                         ///< drafts and capture of a choice; the rest is not looked at
  bool on_demand = false;                  ///< the artifact's weights are in no file (Artifact::on_demand)
};

/// Bytes of the processor's memory, from shapes alone. States are those of MemoryPlan.
struct LoadPlan {
  std::uint64_t packed = 0;   ///< weights in memory of their own: laid out for the vector kernels, or copied
  std::uint64_t mapped = 0;   ///< weights read where the files are mapped
  std::uint64_t copied = 0;   ///< vectors, transposed experts, weights that never were in a file
  std::uint64_t passing = 0;  ///< the largest matrix that is in memory twice while it is laid out
  std::uint64_t table = 0;    ///< of the n-gram table what is to be in memory: all of it, or the cache
  std::uint64_t table_file = 0;
  bool table_streamed = false;
  std::uint64_t sequence = 0, token = 0;  ///< of state: of a sequence without tokens, and of each token
  std::uint64_t states = 0;               ///< of all sequences at their full length
  std::uint64_t scratch = 0;

  [[nodiscard]] std::uint64_t weights() const { return packed + mapped + copied + passing; }
  [[nodiscard]] std::uint64_t total() const { return weights() + table + states + scratch; }
};

/// Looks at no weight and takes no memory to speak of; `artifact` may come from Artifact::open_shapes(). Errors: Usage
/// for an instruction set that this machine lacks.
Result<LoadPlan> plan_load(const artifact::Artifact& artifact, const LoadSetup& setup);

/// "68.3 GB: weights 67.9 GB, n-gram table 0.5 GB (streamed), ..."
[[nodiscard]] std::string describe(const LoadPlan& plan);

/// A size as plans write it: "4.26 GB".
[[nodiscard]] std::string bytes_text(std::uint64_t bytes);

/// Refuses a plan that needs more than `available` bytes, with its figures. `name` is the model's. Errors: Limit.
Status check_fits(const LoadPlan& plan, std::uint64_t available, const std::string& name);

}  // namespace lockstep::engine
