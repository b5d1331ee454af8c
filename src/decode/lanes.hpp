// Lanes: optional fast paths that change no byte of the output, each with one off switch and one verdict
// (docs/lanes.md).
//
// A lane is one file, decode/lanes/NAME.cpp, with its contract. It is switched off by LOCKSTEP_<LANE>=0, by
// LOCKSTEP_DISABLE=lane,lane|all, or by --disable-optimization with the same words. Installation resolves everything
// once and leaves a verdict; what really ran is counted by the code that runs and reported next to it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "decode/decoder.hpp"

namespace lockstep::decode {

enum class LaneId : std::uint8_t { Mtp, GdnCapture, ArPipeline, PleCachedAux, QsaPooledRowsel, Frspec };
inline constexpr std::size_t kLanes = 6;

/// What stays equal with a lane on or off.
enum class Exactness : std::uint8_t {
  Bits,    ///< every logit, token, probability and part of the state
  Output,  ///< tokens, probabilities and the target's state; drafts may differ, and with them the time
};

struct LaneVerdict {
  enum class State : std::uint8_t { Armed, Off, Declined, Poisoned };
  State state = State::Armed;
  std::string reason;  ///< who switched it off, why it declined, or the first error; armed: under which condition
};

/// What a lane did, counted by its own code.
struct LaneRun {
  std::uint64_t engaged = 0;  ///< how often it took effect; 0: it did not run
  std::string detail;         ///< the counters in words
};

class Lanes;

struct LaneInfo {
  LaneId id;
  std::string_view name, environment;
  std::string_view contract;  ///< what it does and why the output stays the same
  std::string_view needs;     ///< the requirements whose absence makes it decline
  std::string_view idle;      ///< why it may never take effect although it is armed
  Exactness exactness;
  bool on_by_default;
  /// Why the lane declines on this model, or an empty text. Earlier lanes of the table have their verdicts.
  std::string (*missing)(const Lanes& lanes, const model::Model& model);
  /// The error that has poisoned the lane since the model was loaded; null for lanes that cannot fail at run time.
  Status (*health)(const model::Model& model);
  LaneRun (*ran)(const model::Model& model, const DecodeStats& stats);
};

/// All lanes, in the order of their ids.
[[nodiscard]] std::span<const LaneInfo, kLanes> known_lanes();

class Lanes {
 public:
  /// Verdicts as the user wants them: everything at its default but what the environment or `disabled` (comma-separated
  /// words) switches off. Errors: Usage for an unknown name.
  static Result<Lanes> from_user(std::span<const std::string> disabled);

  /// Ends installation on a loaded model: armed lanes that miss something decline, and those whose route has failed
  /// since the model was loaded are poisoned.
  void install(const model::Model& model);
  /// Poisons the armed lanes whose route has failed meanwhile. A poisoned lane keeps its first error, and stays out
  /// until the model is loaded again.
  void refresh(const model::Model& model);

  [[nodiscard]] bool armed(LaneId id) const { return verdict(id).state == LaneVerdict::State::Armed; }
  [[nodiscard]] const LaneVerdict& verdict(LaneId id) const { return verdicts_[static_cast<std::size_t>(id)]; }
  void switch_off(LaneId id, std::string who) { set(id, LaneVerdict::State::Off, std::move(who)); }
  /// Armed under a condition.
  void arm(LaneId id, std::string where) { set(id, LaneVerdict::State::Armed, std::move(where)); }
  /// A requirement is missing: the plain path serves.
  void decline(LaneId id, std::string reason) { set(id, LaneVerdict::State::Declined, std::move(reason)); }
  /// Whether everything was switched off by the word `all`: the plain path on scalar kernels.
  [[nodiscard]] bool all_disabled() const { return all_disabled_; }
  /// What a backend should install, from the verdicts before the model is loaded.
  [[nodiscard]] backend::LaneOptions for_backend() const;

 private:
  void set(LaneId id, LaneVerdict::State state, std::string reason);
  Status disable_words(std::string_view words, std::string_view who);

  std::array<LaneVerdict, kLanes> verdicts_{};
  bool all_disabled_ = false;
};

/// One lane of a finished or running request.
struct LaneReport {
  const LaneInfo* lane = nullptr;
  LaneVerdict verdict;
  LaneRun run;
};

/// All lanes: the verdict as it is now and what ran.
[[nodiscard]] std::vector<LaneReport> lane_report(const Lanes& lanes, const model::Model& model,
                                                  const DecodeStats& stats);

/// "armed", "armed (tried with mtp off)", "off (LOCKSTEP_MTP=0)", "declined (the model has no draft layer)", "poisoned
/// (...)".
[[nodiscard]] std::string verdict_text(const LaneVerdict& verdict);

/// "bits" or "output".
[[nodiscard]] std::string_view exactness_name(Exactness exactness);

}  // namespace lockstep::decode
