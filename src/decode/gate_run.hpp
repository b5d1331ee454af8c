// One run of a gate of `lockstep verify`: a request decoded in one of many ways, and where two such runs part.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/device.hpp"
#include "decode/gates.hpp"
#include "kernels/cpu/kernels.hpp"
#include "model/model.hpp"

namespace lockstep::decode {

/// How one run is made. The default is the plain path, but for the kernels, which are the fastest.
struct GateSetup {
  std::string isa{kernels::available_kernels().front()->name};
  std::size_t threads = 1;
  backend::StateType state = backend::StateType::BF16;
  std::int64_t chunk = 1;
  std::int64_t depth = 0;  ///< 0: plain
  bool capture = true;
  bool restore = false;     ///< save, restore and fork the sequence after the prompt
  bool pipelined = false;   ///< ar_pipeline
  bool warm = false;        ///< decode the request twice on this model and compare the second answer
  bool short_head = false;  ///< frspec
  /// Where the n-gram table is; streamed through a cache of few rows.
  backend::NgramMode table = backend::NgramMode::Auto;
  backend::LaneOptions lanes;  ///< ple_cached_aux and qsa_pooled_rowsel
  backend::DeviceChoice device;

  [[nodiscard]] std::string text() const;
};

using StateParts = std::vector<std::pair<std::string_view, std::vector<std::byte>>>;

/// Digests of the state's parts, by the length of the sequence, wherever the run was at rest.
using StateTrace = std::map<std::int64_t, std::vector<std::pair<std::string_view, std::string>>>;

struct GateOutcome {
  std::vector<TokenId> ids;
  Finish finish = Finish::None;
  StateParts state;  ///< at the end
  DecodeStats stats;
};

/// Where two runs of a request part, or nothing: the first token that differs, else the reason of the end, else the
/// part of the final state.
[[nodiscard]] std::string first_difference(const GateOutcome& expected, const GateOutcome& outcome);

/// The first step before which a part of the state differs, with the name of the part; nothing when no state that both
/// runs passed differs. Step n draws emitted token n, from the state after a prompt of `prompt` tokens and n tokens.
struct StateDifference {
  std::int64_t step = 0;
  std::string_view part;
};
[[nodiscard]] std::optional<StateDifference> first_state_difference(const StateTrace& expected,
                                                                    const StateTrace& outcome, std::int64_t prompt);

/// Loads models as setups ask for them, the last one kept, and decodes requests on them.
class GateRunner {
 public:
  GateRunner(const artifact::Artifact& artifact, const GateOptions& options) : artifact_(artifact), options_(options) {}

  Result<model::Model*> model(const GateSetup& setup);
  /// Decodes the request. With `trace` the state is looked at before every step, which takes time.
  Result<GateOutcome> run(const DecodeRequest& request, const GateSetup& setup, StateTrace* trace);

  /// Instruction sets and numbers of threads that have run, on the processor.
  [[nodiscard]] const std::set<std::string>& instruction_sets() const { return instruction_sets_; }
  [[nodiscard]] const std::set<std::size_t>& thread_counts() const { return thread_counts_; }

 private:
  Result<GateOutcome> run_once(const DecodeRequest& request, const GateSetup& setup, StateTrace* trace);

  const artifact::Artifact& artifact_;
  const GateOptions& options_;
  std::unique_ptr<model::Model> loaded_;
  std::string loaded_key_;
  std::set<std::string> instruction_sets_;
  std::set<std::size_t> thread_counts_;
};

}  // namespace lockstep::decode
