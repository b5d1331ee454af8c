// The n-gram table and its hash constants, wherever the files keep them.
#pragma once

#include "artifact/module_reader.hpp"

namespace lockstep::artifact {

/// Fills `out.hash` and `out.table`. Stored constants are used and compared with the computed ones (a difference is a
/// warning); without stored ones the computed are used. `prefix` ends in "ple_embedding.".
///
/// The table is, in this order of preference: tensors ngram.{weight,scales,biases} (a side file; affine, or dense when
/// there are no scales), one matrix PREFIXngram_embedding, or dense shards PREFIXngram_embedding.shard_I.
Status read_ngram(ModuleReader& reader, const ModelConfig& config, const SideFiles& side, const std::string& prefix,
                  PleView& out, std::vector<std::string>& warnings);

}  // namespace lockstep::artifact
