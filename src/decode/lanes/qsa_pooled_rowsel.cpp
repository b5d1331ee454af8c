// Lane qsa_pooled_rowsel: index scores are streamed over the pooled keys, and rows keep only the best groups.
//
// Contract. Pooled index keys are kept from step to step; a write adds the groups that it completes, whose number
// follows from where the write begins and how wide it is. What selection and attention need to know of a sequence
// (pages, offsets, new groups, the first row that must choose) is found once per layer. The plain path shares all that,
// but scores all groups of a row into one array and selects from it. The lane walks the pooled keys once in tiles for
// all rows of a run, scores a tile with the same kernel, and keeps at most twice the budget of candidates per row,
// dropping what cannot be among the best. The order of groups (score descending, index ascending) is total, so the best
// `budget` are one set, whatever the tiles and however threads share them. Memory does not grow with the context.
#include "decode/lanes/lane_files.hpp"

namespace lockstep::decode {
namespace {

std::string missing(const Lanes& /*lanes*/, const model::Model& model) {
  // The draft layer is one.
  if (model.attention_layers() == 0 && !model.has_draft()) return "the model has no sparse attention layer";
  return model.backend().lanes().pooled_rowsel ? "" : "this device has no such path";
}

LaneRun ran(const model::Model& /*model*/, const DecodeStats& stats) {
  const backend::LaneCounters& counters = stats.backend;
  return {counters.rowsel_rows, fmt::format("{} selections over {} groups, {} times a group was kept for a while",
                                            counters.rowsel_rows, counters.rowsel_groups, counters.rowsel_kept)};
}

}  // namespace

LaneInfo qsa_pooled_rowsel_lane() {
  return {LaneId::QsaPooledRowsel,
          "qsa_pooled_rowsel",
          "LOCKSTEP_QSA_POOLED_ROWSEL",
          "streams index scores over the pooled keys and keeps the best groups of each row; the order of groups is "
          "total, so the selection is that of the plain path",
          "sparse attention layers, the CPU backend",
          "no context was longer than the attention's index budget",
          Exactness::Bits,
          true,
          missing,
          nullptr,
          ran};
}

}  // namespace lockstep::decode
