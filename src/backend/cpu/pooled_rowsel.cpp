// Group selection from a stream of scores; the contract is in src/decode/lanes/qsa_pooled_rowsel.cpp.
#include "backend/cpu/pooled_rowsel.hpp"

#include <algorithm>
#include <functional>

#include "backend/cpu/cpu_backend.hpp"
#include "numerics/bits.hpp"

namespace lockstep::backend {
namespace {

/// Groups scored at a time: their keys stay in the nearest cache while the rows of a run take turns. Whole pages,
/// whatever the ratio.
constexpr std::int64_t kTile = 64;

/// A number that is larger for a better group; never 0. The two zeros are equal, and a NaN has a place too.
std::uint64_t group_key(float score, std::int64_t group) {
  const std::uint32_t bits = numerics::float_bits(score + 0.0F);
  const std::uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return (static_cast<std::uint64_t>(ordered) << 32) | (0xffffffffU - static_cast<std::uint32_t>(group));
}

}  // namespace

void TopGroups::start(std::int64_t budget) {
  budget_ = static_cast<std::size_t>(budget);
  floor_ = 0;
  kept_ = 0;
  candidates_.clear();
  candidates_.reserve(2 * budget_);
}

void TopGroups::push(std::uint64_t key) {
  if (candidates_.size() == 2 * budget_) shrink();
  if (key <= floor_) return;  // shrinking may have raised the floor
  candidates_.push_back(key);
  ++kept_;
}

void TopGroups::shrink() {
  const auto last = candidates_.begin() + static_cast<std::ptrdiff_t>(budget_) - 1;
  std::nth_element(candidates_.begin(), last, candidates_.end(), std::greater<>());
  floor_ = *last;
  candidates_.resize(budget_);
}

void TopGroups::add(const float* scores, std::int64_t first, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t key = group_key(scores[i], first + i);
    if (key > floor_) push(key);
  }
}

void TopGroups::merge(const TopGroups& other) {
  for (const std::uint64_t key : other.candidates_) {
    if (key > floor_) push(key);
  }
}

const std::vector<std::int32_t>& TopGroups::finish() {
  if (candidates_.size() > budget_) shrink();
  groups_.clear();
  for (const std::uint64_t key : candidates_) {
    groups_.push_back(static_cast<std::int32_t>(0xffffffffU - static_cast<std::uint32_t>(key & 0xffffffffU)));
  }
  std::sort(groups_.begin(), groups_.end());
  return groups_;
}

void CpuBackend::stream_positions(const AttentionWeights& weights, const BoundSlot& bound, const float* index_qk,
                                  std::int32_t* positions, std::int64_t* counts) {
  const AttentionSlot& slot = bound.slot;
  const std::int64_t first_row = bound.first_choice;
  const std::int64_t rows = slot.run.rows - first_row;
  const auto threads = static_cast<std::int64_t>(pool_.threads());
  const std::int64_t parts = rows == 0 ? 1 : std::max<std::int64_t>(1, threads / rows);
  if (rows > 0) {
    const std::int64_t query = config_.indexer_heads * config_.indexer_dim;
    float* q = scratch_[6].floats(static_cast<std::size_t>(rows * query));
    for (std::int64_t t = 0; t < rows; ++t) index_query(weights, slot, index_qk, first_row + t, q + t * query);
    if (top_groups_.size() < static_cast<std::size_t>(rows * parts)) {
      top_groups_.resize(static_cast<std::size_t>(rows * parts));
    }
    stream_scores(bound.keys, slot, q, first_row, parts);
  }
  for (std::int64_t t = 0; t < slot.run.rows; ++t) {
    RowPositions list(*this, slot, t, positions);
    const std::int64_t groups = list.groups();
    if (t < first_row) {
      list.take_groups(0, groups);
    } else {
      TopGroups& best = top_groups_[static_cast<std::size_t>((t - first_row) * parts)];
      std::uint64_t kept = best.kept();
      for (std::int64_t part = 1; part < parts; ++part) {
        const TopGroups& other = top_groups_[static_cast<std::size_t>((t - first_row) * parts + part)];
        kept += other.kept();
        best.merge(other);
      }
      for (const std::int32_t group : best.finish()) list.take_groups(group, 1);
      ++lane_counters_.rowsel_rows;
      lane_counters_.rowsel_groups += static_cast<std::uint64_t>(groups);
      lane_counters_.rowsel_kept += kept;
    }
    counts[slot.run.first_row + t] = list.finish();
  }
}

/// Fills top_groups_[row * group_parts + part]. With fewer rows than threads, the groups are cut into parts.
void CpuBackend::stream_scores(const kernels::PagedKeys& keys, const AttentionSlot& slot, const float* q,
                               std::int64_t first_row, std::int64_t group_parts) {
  const std::int64_t ratio = config_.indexer_ratio;
  const std::int64_t budget = config_.indexer_budget / ratio;
  const std::int64_t rows = slot.run.rows - first_row;
  const std::int64_t query = config_.indexer_heads * config_.indexer_dim;
  const std::int64_t most_groups = (slot.position + slot.run.rows) / ratio;
  const std::int64_t part_groups = ((most_groups + group_parts - 1) / group_parts + kTile - 1) / kTile * kTile;
  const std::int64_t row_parts = group_parts > 1 ? rows : std::min(rows, static_cast<std::int64_t>(pool_.threads()));
  const std::int64_t part_rows = (rows + row_parts - 1) / row_parts;
  const auto stream = [&](std::int64_t row_begin, std::int64_t row_end, std::int64_t part) {
    float scores[kTile];
    const auto top = [&](std::int64_t row) -> TopGroups& {
      return top_groups_[static_cast<std::size_t>(row * group_parts + part)];
    };
    for (std::int64_t row = row_begin; row < row_end; ++row) top(row).start(budget);
    const std::int64_t end = std::min(most_groups, (part + 1) * part_groups);
    for (std::int64_t tile = part * part_groups; tile < end; tile += kTile) {
      kernels::PagedKeys tile_keys = keys;
      tile_keys.pages += tile * ratio / kernels::kPageTokens;
      for (std::int64_t row = row_begin; row < row_end; ++row) {
        const std::int64_t groups = (slot.position + first_row + row + 1) / ratio;
        const std::int64_t tile_end = std::min({tile + kTile, end, groups});
        if (tile >= tile_end) continue;
        kernels_.index_scores(tile_keys, q + row * query, config_.indexer_heads, 0, tile_end - tile, scores);
        top(row).add(scores, tile, tile_end - tile);
      }
    }
  };
  parallel(row_parts * group_parts, grain(part_rows * part_groups * query), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = i / group_parts * part_rows;
      stream(std::min(row, rows), std::min(row + part_rows, rows), i % group_parts);
    }
  });
}

}  // namespace lockstep::backend
