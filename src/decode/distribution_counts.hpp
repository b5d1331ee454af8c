// How often each token occurs in the completion so far, for presence and frequency penalties.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "decode/params.hpp"

namespace lockstep::decode {

/// Counts over COMPLETION tokens only; a prompt does not penalise. Speculative rows add their drafted predecessors and
/// take them back with remove().
class TokenCounts {
 public:
  void add(TokenId id) { ++counts_[id]; }

  /// Takes back one add() of the same id.
  void remove(TokenId id) {
    const auto found = counts_.find(id);
    if (found != counts_.end() && --found->second == 0) counts_.erase(found);
  }

  [[nodiscard]] std::uint32_t of(TokenId id) const {
    const auto found = counts_.find(id);
    return found == counts_.end() ? 0 : found->second;
  }

  /// All ids with a count above 0, in no particular order.
  [[nodiscard]] const std::unordered_map<TokenId, std::uint32_t>& entries() const { return counts_; }

  friend bool operator==(const TokenCounts&, const TokenCounts&) = default;

 private:
  std::unordered_map<TokenId, std::uint32_t> counts_;
};

}  // namespace lockstep::decode
