// Lane mtp: speculative decoding with the model's own draft head.
//
// Contract. The draft layer guesses up to `depth` tokens, one forward pass judges all of them, and in stream mode a
// draft stays only where it equals the token that the target draws with the same draw
// (decode/speculative_generation.cpp). So tokens, probabilities and the target's state are those of plain decoding,
// whatever the drafts were. Rejection mode is asked for by the request and is exact in distribution instead.
#include <numeric>

#include "decode/lanes/lane_files.hpp"

namespace lockstep::decode {
namespace {

std::string missing(const Lanes& /*lanes*/, const model::Model& model) {
  return model.has_draft() ? "" : "the model has no draft layer";
}

LaneRun ran(const model::Model& /*model*/, const DecodeStats& stats) {
  const auto sum = [](const auto& counts) { return std::accumulate(counts.begin(), counts.end(), std::int64_t{0}); };
  const std::int64_t drafted = sum(stats.drafted);
  return {static_cast<std::uint64_t>(drafted), fmt::format("{} of {} drafts kept", sum(stats.accepted), drafted)};
}

}  // namespace

LaneInfo mtp_lane() {
  return {LaneId::Mtp,
          "mtp",
          "LOCKSTEP_MTP",
          "drafts with the model's own draft head; a draft stays only where it equals the token that plain decoding "
          "draws",
          "a draft layer in the model",
          "no request had room for a draft",
          Exactness::Output,
          true,
          missing,
          nullptr,
          ran};
}

}  // namespace lockstep::decode
