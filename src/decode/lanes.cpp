#include "decode/lanes.hpp"

#include <algorithm>
#include <cstdlib>

#include "decode/lanes/lane_files.hpp"

namespace lockstep::decode {
namespace {

using Table = std::array<LaneInfo, kLanes>;

const Table& table() {
  static const Table lanes{
      mtp_lane(),   gdn_capture_lane(), ar_pipeline_lane(), ple_cached_aux_lane(), qsa_pooled_rowsel_lane(),
      frspec_lane()};
  return lanes;
}

std::string known_names() {
  std::string names;
  for (const LaneInfo& lane : table()) names += std::string(lane.name) + ", ";
  return names + "all";
}

}  // namespace

std::span<const LaneInfo, kLanes> known_lanes() {
  return table();
}

void Lanes::set(LaneId id, LaneVerdict::State state, std::string reason) {
  verdicts_[static_cast<std::size_t>(id)] = {state, std::move(reason)};
}

Status Lanes::disable_words(std::string_view words, std::string_view who) {
  for (bool more = true; more;) {
    const std::size_t comma = std::min(words.find(','), words.size());
    const std::string_view word = words.substr(0, comma);
    more = comma < words.size();
    words.remove_prefix(std::min(comma + 1, words.size()));
    if (word == "all") {
      all_disabled_ = true;
      for (const LaneInfo& lane : table()) switch_off(lane.id, std::string(who));
      continue;
    }
    const auto lane =
        std::find_if(table().begin(), table().end(), [&](const LaneInfo& info) { return info.name == word; });
    if (lane == table().end()) {
      return fail(ErrorKind::Usage, "{}: there is no optimization '{}'; known are: {}", who, word, known_names());
    }
    switch_off(lane->id, std::string(who));
  }
  return {};
}

Result<Lanes> Lanes::from_user(std::span<const std::string> disabled) {
  Lanes lanes;
  for (const LaneInfo& lane : table()) {
    if (!lane.on_by_default) lanes.switch_off(lane.id, "by default");
    const char* value = std::getenv(std::string(lane.environment).c_str());
    if (value == nullptr || std::string_view(value) == "1") continue;
    if (std::string_view(value) != "0") {
      return fail(ErrorKind::Usage, "{}: '{}' is neither 0, which switches the lane off, nor 1", lane.environment,
                  value);
    }
    lanes.switch_off(lane.id, std::string(lane.environment) + "=0");
  }
  if (const char* words = std::getenv("LOCKSTEP_DISABLE"); words != nullptr && *words != '\0') {
    LOCKSTEP_TRY(lanes.disable_words(words, "LOCKSTEP_DISABLE"));
  }
  for (const std::string& words : disabled) LOCKSTEP_TRY(lanes.disable_words(words, "--disable-optimization"));
  return lanes;
}

void Lanes::install(const model::Model& model) {
  refresh(model);
  for (const LaneInfo& lane : table()) {
    if (!armed(lane.id)) continue;
    std::string reason = lane.missing(*this, model);
    if (!reason.empty()) decline(lane.id, std::move(reason));
  }
}

void Lanes::refresh(const model::Model& model) {
  for (const LaneInfo& lane : table()) {
    if (!armed(lane.id) || lane.health == nullptr) continue;
    const Status health = lane.health(model);
    if (!health) set(lane.id, LaneVerdict::State::Poisoned, health.error().message);
  }
}

backend::LaneOptions Lanes::for_backend() const {
  backend::LaneOptions options;
  options.pooled_rowsel = armed(LaneId::QsaPooledRowsel);
  options.ple_aux_bytes = armed(LaneId::PleCachedAux) ? backend::kPleAuxBytes : 0;
  return options;
}

std::vector<LaneReport> lane_report(const Lanes& lanes, const model::Model& model, const DecodeStats& stats) {
  Lanes now = lanes;
  now.refresh(model);
  std::vector<LaneReport> report;
  for (const LaneInfo& lane : table()) report.push_back({&lane, now.verdict(lane.id), lane.ran(model, stats)});
  return report;
}

std::string verdict_text(const LaneVerdict& verdict) {
  switch (verdict.state) {
    case LaneVerdict::State::Armed:
      return verdict.reason.empty() ? "armed" : fmt::format("armed ({})", verdict.reason);
    case LaneVerdict::State::Off:
      return fmt::format("off ({})", verdict.reason);
    case LaneVerdict::State::Declined:
      return fmt::format("declined ({})", verdict.reason);
    case LaneVerdict::State::Poisoned:
      return fmt::format("poisoned ({})", verdict.reason);
  }
  return {};
}

std::string_view exactness_name(Exactness exactness) {
  return exactness == Exactness::Bits ? "bits" : "output";
}

}  // namespace lockstep::decode
