// What the steps of attention share on the device: the rows of several sequences in one launch.
#pragma once

#include <span>

#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/device.cuh"

namespace lockstep::kernels::cuda {

constexpr int kPage = 64;
constexpr int kBlock = 64;  ///< attended positions of a block

/// The run of `row` and the row's position.
struct RowPlace {
  const AttentionRun* run;
  std::int64_t position;
  int in_run;
};
template <class Params>
__device__ __forceinline__ RowPlace place_row(const Params& p, int row) {
  int r = 0;
  while (row >= p.runs[r].first_row + p.runs[r].rows) ++r;
  const int in_run = row - p.runs[r].first_row;
  return {&p.runs[r], *p.runs[r].position + in_run, in_run};
}

/// How many positions the row at `position` attends to. Without a choice they are all up to it.
__device__ __forceinline__ int attended(const AttentionShape& s, std::int64_t position, bool& chosen) {
  const auto end = static_cast<int>(position) + 1;
  const int groups = static_cast<int>(static_cast<unsigned>(end) / static_cast<unsigned>(s.ratio));
  chosen = groups > s.budget;
  return end - (chosen ? (groups - s.budget) * s.ratio : 0);
}

struct AttendParams {
  AttentionRun runs[kMaxRuns];
  int count, first_row, rows;  ///< rows of this piece
  AttentionShape shape;
  const float *q, *index_q, *q_gate;
  AttentionScratch scratch;
  float* out;
};

/// The next runs that fit one launch; the remaining ones stay in `runs`.
template <class Params>
void take_runs(std::span<const AttentionRun>& runs, Params& p) {
  p.count = 0;
  for (const AttentionRun& run : runs.first(runs.size() < kMaxRuns ? runs.size() : kMaxRuns)) p.runs[p.count++] = run;
  runs = runs.subspan(static_cast<std::size_t>(p.count));
  p.first_row = p.runs[0].first_row;
  p.rows = p.runs[p.count - 1].first_row + p.runs[p.count - 1].rows - p.first_row;
}

struct StoreParams;
/// The next runs that fit one launch, as store_keys() takes them; the remaining ones stay in `runs`.
[[nodiscard]] StoreParams take_store(std::span<const AttentionRun>& runs, const AttentionShape& shape,
                                     const AttentionWeightVectors& weights, const AttentionInput& input, float* q,
                                     float* index_q);
/// store_keys() and choose_positions() of few rows in one launch, where their contexts are short; false where it is
/// not for that.
[[nodiscard]] bool choose_fused(Queue& queue, const StoreParams& store, const AttentionScratch& scratch);
/// Parts of choose_positions(): the scores of few rows, and the choice of many rows and by clusters. False where it is
/// not for them.
[[nodiscard]] bool score_few(Queue& queue, const AttendParams& p);
[[nodiscard]] bool select_rows(Queue& queue, const AttendParams& p);
[[nodiscard]] bool select_cluster(Queue& queue, const AttendParams& p);

/// Writes the attended positions of every row of the piece into its scratch: scores of the pooled index keys where the
/// row has more groups than the budget, and the choice (docs/numerics.md N8).
void choose_positions(Queue& queue, const AttendParams& p);

/// Whether attend_rows() serves this piece: many rows, and the published dimension.
[[nodiscard]] bool attend_rows_takes(const AttendParams& p);
/// The chosen positions of every row of the piece, to the end; leaves scratch.partial alone.
void attend_rows(Queue& queue, const AttendParams& p);

}  // namespace lockstep::kernels::cuda
