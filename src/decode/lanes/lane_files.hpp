// The entries of the table of lanes; each is defined in the file of its name.
#pragma once

#include "decode/lanes.hpp"

namespace lockstep::decode {

LaneInfo mtp_lane();
LaneInfo gdn_capture_lane();
LaneInfo ar_pipeline_lane();
LaneInfo ple_cached_aux_lane();
LaneInfo qsa_pooled_rowsel_lane();
LaneInfo frspec_lane();

/// The first failed read of the n-gram table, for lanes whose route it is.
[[nodiscard]] Status ngram_health(const model::Model& model);

}  // namespace lockstep::decode
