// The best groups of a stream of scores: what the lane qsa_pooled_rowsel selects with (docs/lanes.md).
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::backend {

/// Keeps the `budget` best of what is added, in the canon's order: score descending, index ascending (docs/numerics.md
/// N5). The order is total, so the outcome depends neither on the order of additions nor on how they are cut.
class TopGroups {
 public:
  /// Starts anew. budget > 0.
  void start(std::int64_t budget);
  /// Scores of the groups first, first + 1, ...
  void add(const float* scores, std::int64_t first, std::int64_t count);
  /// Adds what another has kept.
  void merge(const TopGroups& other);
  /// Ends with the best groups in ascending order: min(budget, groups added) of them.
  [[nodiscard]] const std::vector<std::int32_t>& finish();

  /// Groups that were candidates since start().
  [[nodiscard]] std::uint64_t kept() const { return kept_; }

 private:
  void push(std::uint64_t key);
  void shrink();

  std::size_t budget_ = 1;
  std::uint64_t floor_ = 0;                ///< keys up to this one cannot be among the best
  std::vector<std::uint64_t> candidates_;  ///< at most twice the budget
  std::vector<std::int32_t> groups_;
  std::uint64_t kept_ = 0;
};

}  // namespace lockstep::backend
