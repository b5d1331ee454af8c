// Lane ple_cached_aux: products of n-gram rows that were seen before are not computed again.
//
// Contract. What the n-gram layer adds to a token starts from two projections of the token's table rows: the normed key
// and the value. They depend on the row ids alone, not on position, sequence or neighbours in the step. So they need
// not wait for the layers in front: when a step begins, a thread of the backend takes the table rows of all its tokens
// (64 rows for a step of four tokens of the full-size model) and starts on both products in one pass over the matrices,
// while the other threads embed and run the layers in front. When the n-gram layer's turn comes, what is left is shared
// by all threads; what that thread has not begun is not waited for.
//
// A hot-row cache of fixed size keeps the latest products, found by all row ids (not by a hash of them). A projected
// row does not depend on which rows are projected with it, nor on which thread does it (docs/numerics.md N3, N4, E7),
// so a kept product has the bits of a fresh one. The rows themselves are taken from the table in any case, with a
// streamed one through its cache of rows: a table whose read failed poisons the lane, and requests fail with the first
// error.
#include "decode/lanes/lane_files.hpp"

namespace lockstep::decode {
namespace {

std::string missing(const Lanes& /*lanes*/, const model::Model& model) {
  if (model.config().ple_layers.empty()) return "the model has no n-gram layer";
  return model.backend().lanes().ple_aux_bytes > 0 ? "" : "this device has no such path";
}

LaneRun ran(const model::Model& /*model*/, const DecodeStats& stats) {
  const backend::LaneCounters& counters = stats.backend;
  return {counters.aux_hits + counters.aux_misses,
          fmt::format(
              "products of {} tokens kept from before, {} computed, {} dropped; {} begun beside the layers in front",
              counters.aux_hits, counters.aux_misses, counters.aux_evictions, counters.aux_ahead)};
}

}  // namespace

Status ngram_health(const model::Model& model) {
  return model.status();
}

LaneInfo ple_cached_aux_lane() {
  return {LaneId::PleCachedAux,
          "ple_cached_aux",
          "LOCKSTEP_PLE_CACHED_AUX",
          "projects the n-gram rows of a step beside the layers in front and keeps the latest products; a product "
          "depends on the row ids alone, so it has the same bits whenever it is computed",
          "an n-gram layer, the CPU backend",
          "no token was decoded",
          Exactness::Bits,
          true,
          missing,
          ngram_health,
          ran};
}

}  // namespace lockstep::decode
