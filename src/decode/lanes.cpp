#include "decode/lanes.hpp"

#include <algorithm>
#include <cstdlib>

namespace lockstep::decode {
namespace {

constexpr std::array<LaneInfo, kLanes> kTable{{
    {LaneId::Mtp, "mtp", "LOCKSTEP_MTP",
     "drafts with the model's own draft head; a draft stays only where it equals the token that plain decoding draws"},
    {LaneId::GdnCapture, "gdn_capture", "LOCKSTEP_GDN_CAPTURE",
     "captures recurrent state per verified row, so that a rejection costs no forward pass; off, it restores a fork "
     "and runs the accepted tokens again"},
}};

std::string known_names() {
  std::string names;
  for (const LaneInfo& lane : kTable) names += std::string(lane.name) + ", ";
  return names + "all";
}

}  // namespace

std::span<const LaneInfo, kLanes> known_lanes() {
  return kTable;
}

void Lanes::set(LaneId id, LaneVerdict::State state, std::string reason) {
  verdicts_[static_cast<std::size_t>(id)] = {state, std::move(reason)};
}

Status Lanes::disable_words(std::string_view words, std::string_view who) {
  while (!words.empty()) {
    const std::size_t comma = std::min(words.find(','), words.size());
    const std::string_view word = words.substr(0, comma);
    words.remove_prefix(std::min(comma + 1, words.size()));
    if (word.empty()) continue;
    if (word == "all") {
      all_disabled_ = true;
      for (const LaneInfo& lane : kTable) switch_off(lane.id, std::string(who));
      continue;
    }
    const auto lane =
        std::find_if(kTable.begin(), kTable.end(), [&](const LaneInfo& info) { return info.name == word; });
    if (lane == kTable.end()) {
      return fail(ErrorKind::Usage, "{}: there is no optimization '{}'; known are: {}", who, word, known_names());
    }
    switch_off(lane->id, std::string(who));
  }
  return {};
}

Result<Lanes> Lanes::from_user(std::span<const std::string> disabled) {
  Lanes lanes;
  for (const LaneInfo& lane : kTable) {
    const char* value = std::getenv(std::string(lane.environment).c_str());
    if (value != nullptr && std::string_view(value) == "0") {
      lanes.switch_off(lane.id, std::string(lane.environment) + "=0");
    }
  }
  if (const char* words = std::getenv("LOCKSTEP_DISABLE"); words != nullptr) {
    LOCKSTEP_TRY(lanes.disable_words(words, "LOCKSTEP_DISABLE"));
  }
  for (const std::string& words : disabled) LOCKSTEP_TRY(lanes.disable_words(words, "--disable-optimization"));
  return lanes;
}

std::string verdict_text(const LaneVerdict& verdict) {
  switch (verdict.state) {
    case LaneVerdict::State::Armed:
      return "armed";
    case LaneVerdict::State::Off:
      return fmt::format("off ({})", verdict.reason);
    case LaneVerdict::State::Declined:
      return fmt::format("declined ({})", verdict.reason);
    case LaneVerdict::State::Poisoned:
      return fmt::format("poisoned ({})", verdict.reason);
  }
  return {};
}

}  // namespace lockstep::decode
