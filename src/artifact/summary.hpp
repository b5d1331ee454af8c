// A model in figures: parameters, precision and bytes of each family, bytes read for one token.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "artifact/artifact.hpp"

namespace lockstep::artifact {

struct FamilySummary {
  std::string name;                    ///< "experts", "draft: experts", "n-gram table", "vectors"
  std::vector<std::string> precision;  ///< "4-bit g64", "BF16"; several when modules differ
  std::uint64_t parameters = 0, bytes = 0;
  std::uint64_t touched = 0;  ///< bytes of this family read to decode (or, for the draft layer, to draft) one token
  bool draft = false;
};

struct Summary {
  std::vector<FamilySummary> families;
  std::uint64_t parameters = 0, bytes = 0;  ///< of everything the model uses; ignored tensors are not counted
  std::uint64_t decoded_token_bytes = 0;    ///< trunk weights touched by one decoded token
  std::uint64_t drafted_token_bytes = 0;    ///< draft layer and head touched by one drafted token; 0 without one
};

/// Counts bytes as stored. One token touches one embedding row, `experts_per_token` of the experts, one n-gram row a
/// head, and everything else whole.
[[nodiscard]] Summary summarise(const Artifact& artifact);

}  // namespace lockstep::artifact
