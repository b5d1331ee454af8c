// Byte-pair merging: from the bytes of a pre-token to token ids.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "base/result.hpp"

namespace lockstep::text {

/// The pair of ids that a rule replaces, and by what. A rule's rank is its position in the list; lower merges first.
struct MergeRule {
  std::int32_t left = -1, right = -1, merged = -1;
};

/// Asked now and then by long work; true ends it. An empty function never does.
using StopCheck = std::function<bool()>;

/// The merge rules as a hash table, with the merge loop over it.
class BytePairMerger {
 public:
  /// `byte_ids` gives the token of every single byte. Errors: Invalid (a pair twice, more than 2^24 rules).
  static Result<BytePairMerger> create(const std::array<std::int32_t, 256>& byte_ids,
                                       const std::vector<MergeRule>& rules);

  /// Buffers of the merge loop, reused between calls to save allocations.
  struct Scratch {
    struct Symbol {
      std::int32_t id;
      std::uint32_t previous, next;
    };
    std::vector<Symbol> symbols;
    std::vector<std::uint64_t> queue;
  };

  /// Appends the tokens of a piece of at most 2^31 bytes to `out`: as long as a rule applies to neighbours, the rule of
  /// lowest rank is applied at its leftmost place. O(n log n) in the length of the piece, without recursion. False when
  /// `stop`, asked every few thousand merges, ended it; `out` is then unchanged.
  [[nodiscard]] bool encode(std::string_view piece, Scratch& scratch, std::vector<std::int32_t>& out,
                            const StopCheck& stop = {}) const;

 private:
  struct Entry {
    std::uint64_t pair = 0;  ///< left << 32 | right
    std::uint32_t rank = kNone;
    std::int32_t merged = -1;
  };
  static constexpr std::uint32_t kNone = UINT32_MAX;

  [[nodiscard]] const Entry* find(std::int32_t left, std::int32_t right) const;
  [[nodiscard]] std::size_t slot_of(std::uint64_t pair) const;
  void enqueue(Scratch& scratch, std::uint32_t position) const;

  std::array<std::int32_t, 256> byte_ids_{};
  std::vector<Entry> table_;  ///< open addressing with linear probing, at most half full
  int shift_ = 0;             ///< 64 - log2 of the table's size
};

}  // namespace lockstep::text
