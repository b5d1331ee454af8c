// Lane frspec: the draft head proposes from a ranked part of the vocabulary.
//
// Contract. The head's projection is the largest matrix that a draft reads, and most of its rows stand for tokens that
// are almost never drafted. With a list of frequent tokens (artifact/draft_vocabulary.hpp) only their rows are
// projected; all other tokens get the logit kOutsideVocabulary (model/runner.hpp), so the draft distribution q is zero
// there, and q is still the distribution that drafts are drawn from. The target never uses the short head. So in stream
// mode nothing but the drafts can differ, and rejection mode stays exact in distribution: p/q and max(p - q, 0) hold
// for every q.
#include "decode/lanes/lane_files.hpp"

namespace lockstep::decode {
namespace {

std::string missing(const Lanes& lanes, const model::Model& model) {
  if (!lanes.armed(LaneId::Mtp)) return "there are no drafts without mtp";
  return model.has_short_head() ? "" : "the model has no list of draft tokens; `lockstep frspec` makes one";
}

LaneRun ran(const model::Model& /*model*/, const DecodeStats& stats) {
  return {static_cast<std::uint64_t>(stats.short_head_rows),
          fmt::format("{} drafts proposed by the short head", stats.short_head_rows)};
}

}  // namespace

LaneInfo frspec_lane() {
  return {LaneId::Frspec,
          "frspec",
          "LOCKSTEP_FRSPEC",
          "projects drafts onto a ranked part of the vocabulary only; drafts may differ, what is emitted does not",
          "mtp, a list of draft tokens (frspec.json in the model directory, or --frspec)",
          "no draft was made",
          Exactness::Output,
          true,
          missing,
          nullptr,
          ran};
}

}  // namespace lockstep::decode
