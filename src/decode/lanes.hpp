// Lanes: optional fast paths that change no byte of the output, each with one off switch and one verdict.
//
// A lane is switched off by LOCKSTEP_<LANE>=0, by LOCKSTEP_DISABLE=lane,lane|all, or by --disable-optimization with the
// same words. Installation resolves everything once and leaves a verdict; what really ran is counted by the code that
// runs (DecodeStats) and reported next to it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace lockstep::decode {

enum class LaneId : std::uint8_t { Mtp, GdnCapture };
inline constexpr std::size_t kLanes = 2;

struct LaneInfo {
  LaneId id;
  std::string_view name, environment;
  std::string_view contract;  ///< what it does and why the output stays the same
};

/// All lanes, in the order of their ids.
[[nodiscard]] std::span<const LaneInfo, kLanes> known_lanes();

struct LaneVerdict {
  enum class State : std::uint8_t { Armed, Off, Declined, Poisoned };
  State state = State::Armed;
  std::string reason;  ///< who switched it off, why it declined, or the first error
};

class Lanes {
 public:
  /// Verdicts as the user wants them: everything armed but what the environment or `disabled` (comma-separated words)
  /// switches off. Errors: Usage for an unknown name.
  static Result<Lanes> from_user(std::span<const std::string> disabled);

  [[nodiscard]] bool armed(LaneId id) const { return verdict(id).state == LaneVerdict::State::Armed; }
  [[nodiscard]] const LaneVerdict& verdict(LaneId id) const { return verdicts_[static_cast<std::size_t>(id)]; }
  void switch_off(LaneId id, std::string who) { set(id, LaneVerdict::State::Off, std::move(who)); }
  /// A requirement is missing: the plain path serves.
  void decline(LaneId id, std::string reason) { set(id, LaneVerdict::State::Declined, std::move(reason)); }
  /// Whether everything was switched off by the word `all`: the plain path on scalar kernels.
  [[nodiscard]] bool all_disabled() const { return all_disabled_; }

 private:
  void set(LaneId id, LaneVerdict::State state, std::string reason);
  Status disable_words(std::string_view words, std::string_view who);

  std::array<LaneVerdict, kLanes> verdicts_{};
  bool all_disabled_ = false;
};

/// "armed", "off (LOCKSTEP_MTP=0)", "declined (the model has no draft layer)", "poisoned (...)".
[[nodiscard]] std::string verdict_text(const LaneVerdict& verdict);

}  // namespace lockstep::decode
