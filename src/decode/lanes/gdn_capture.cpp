// Lane gdn_capture: the state of every verified row is captured, so that a rejection costs no forward pass.
//
// Contract. A verify step writes the recurrent state into a second buffer and keeps the factors of each row; commit()
// repeats the same operations on the same numbers for the rows that stay (docs/numerics.md N6), and truncates or copies
// the other parts. Off, the sequence is forked before the step, and a rejection goes back to the fork and runs the
// accepted tokens again: the same state by E3, at the price of a forward pass.
#include "decode/lanes/lane_files.hpp"

namespace lockstep::decode {
namespace {

std::string missing(const Lanes& lanes, const model::Model& /*model*/) {
  return lanes.armed(LaneId::Mtp) ? "" : "nothing is taken back without mtp";
}

LaneRun ran(const model::Model& /*model*/, const DecodeStats& stats) {
  return {static_cast<std::uint64_t>(stats.captured_steps),
          fmt::format("{} captured steps, {} tokens run again", stats.captured_steps, stats.recomputed_tokens)};
}

}  // namespace

LaneInfo gdn_capture_lane() {
  return {LaneId::GdnCapture,
          "gdn_capture",
          "LOCKSTEP_GDN_CAPTURE",
          "captures recurrent state per verified row, so that a rejection costs no forward pass; off, it restores a "
          "fork and runs the accepted tokens again",
          "mtp",
          "no draft was verified",
          Exactness::Bits,
          true,
          missing,
          nullptr,
          ran};
}

}  // namespace lockstep::decode
