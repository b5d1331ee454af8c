// The gates of `lockstep verify` that look at the model's files: what they are, and that they stay what they are.
#pragma once

#include <functional>
#include <string>

#include "artifact/artifact.hpp"
#include "artifact/identity.hpp"
#include "base/result.hpp"

namespace lockstep::decode {

/// Opens the directory again, which reads config.json, mtplx_runtime.json and every header anew, and recomputes the
/// inventory's hash. Returns what differs from `artifact`, or nothing.
[[nodiscard]] std::string identity_difference(const artifact::Artifact& artifact);

/// Whether every tensor of the inventory is where the files of today say, with the bytes that its shape needs, no two
/// overlap, every tensor has a place in the model or is known to be ignored, and every matrix of the model has data
/// (opening refuses missing and unknown tensors). Returns the first thing that is wrong, or nothing.
[[nodiscard]] std::string inventory_difference(const artifact::Artifact& artifact);

/// The first file whose hash differs between two readings, or nothing.
[[nodiscard]] std::string hash_difference(const std::vector<artifact::FileHash>& first,
                                          const std::vector<artifact::FileHash>& second);

}  // namespace lockstep::decode
