// Lane ple_cached_aux: products of n-gram rows that were seen before are not computed again.
//
// Contract. What the n-gram layer adds to a token starts from two projections of the token's table rows: the normed key
// and the value. They depend on the sixteen row ids alone, not on position, sequence or neighbours in the step. The
// backend keeps the latest of them in a cache of fixed size, found by all row ids (not by a hash of them), and projects
// the other rows of a step together. A projected row does not depend on which rows are projected with it
// (docs/numerics.md N3, N4), so a cached product has the bits of a fresh one. The rows themselves are still taken from
// the table: a table whose read failed poisons the lane, and requests fail with the first error.
#include "backend/ngram/ngram_store.hpp"
#include "decode/lanes/lane_files.hpp"

namespace lockstep::decode {
namespace {

std::string missing(const Lanes& /*lanes*/, const model::Model& model) {
  if (model.config().ple_layers.empty()) return "the model has no n-gram layer";
  return model.backend().lanes().ple_aux_bytes > 0 ? "" : "this device has no such path";
}

LaneRun ran(const model::Model& /*model*/, const DecodeStats& stats) {
  const backend::LaneCounters& counters = stats.backend;
  return {counters.aux_hits, fmt::format("products of {} rows kept from before, {} computed, {} dropped",
                                         counters.aux_hits, counters.aux_misses, counters.aux_evictions)};
}

}  // namespace

Status ngram_health(const model::Model& model) {
  const backend::NgramStore* store = model.backend().ngram_store();
  return store == nullptr ? Status{} : store->status();
}

LaneInfo ple_cached_aux_lane() {
  return {LaneId::PleCachedAux,
          "ple_cached_aux",
          "LOCKSTEP_PLE_CACHED_AUX",
          "keeps the projections of n-gram rows that came up lately; a product depends on the row ids alone, so a kept "
          "one has the bits of a fresh one",
          "an n-gram layer, the CPU backend",
          "no token was decoded",
          Exactness::Bits,
          true,
          missing,
          ngram_health,
          ran};
}

}  // namespace lockstep::decode
