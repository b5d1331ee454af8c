// Attention over selected positions and its indexer on CUDA (docs/numerics.md N5).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/queue.hpp"
#include "kernels/element_type.hpp"

namespace lockstep::kernels::cuda {

struct AttentionShape {
  int heads = 0, kv_heads = 0, dim = 0;           ///< query heads, key heads, head dimension
  int index_heads = 0, index_dim = 0, ratio = 4;  ///< indexer
  int budget = 0;                                 ///< groups that are selected
  int ring = 0;                                   ///< raw index keys kept per sequence
  int half = 0;                                   ///< rotated pairs
  float eps = 0;
  ElementType type = ElementType::BF16;  ///< of what is kept
  std::uint8_t unused[7] = {};           ///< no undefined byte: batches of launches are compared
  std::int64_t keys_offset = 0, values_offset = 0, index_offset = 0;  ///< bytes inside a layer's block of a page
  const float *cos = nullptr, *sin = nullptr;                         ///< [positions, half]

  [[nodiscard]] constexpr int width() const { return (budget + 1) * ratio; }  ///< most attended positions of a row
  [[nodiscard]] constexpr int blocks() const { return (width() + 63) / 64; }
};

/// Rows first_row..first_row+rows of one sequence. `pages` is a list on the device; `position`, too, points to the
/// device, so that a recorded launch works for any position.
struct AttentionRun {
  const std::int64_t* position;
  std::byte* const* pages;
  float* raw_keys;  ///< [ring, index_dim]
  std::int64_t layer_offset;
  std::int32_t first_row, rows;
};

struct AttentionWeightVectors {
  const float *q_norm = nullptr, *k_norm = nullptr, *index_q_norm = nullptr, *index_k_norm = nullptr;
};

/// Projections of the rows: q_gate [rows, heads, 2, dim], k and v [rows, kv_heads, dim], index_qk
/// [rows, index_heads + 1, index_dim].
struct AttentionInput {
  const float *q_gate = nullptr, *k = nullptr, *v = nullptr, *index_qk = nullptr;
};

/// Stores keys, values and index keys of the rows; with `q` and `index_q` also normed and rotated queries
/// [rows, heads, dim] and [rows, index_heads, index_dim].
void store_keys(Queue& queue, std::span<const AttentionRun> runs, const AttentionShape& shape,
                const AttentionWeightVectors& weights, const AttentionInput& input, float* q, float* index_q);

/// Scratch for up to `rows` rows: scores [rows, most_groups], positions [rows, width], counts [rows], partial results
/// of rows * heads * blocks * (dim + 2) values.
struct AttentionScratch {
  float* scores = nullptr;
  std::int64_t most_groups = 0;
  std::int32_t *positions = nullptr, *counts = nullptr;
  float* partial = nullptr;
  std::int64_t rows = 0;
};
/// store_keys(), then out [rows, heads, dim] = attention * sigmoid(gate). Rows are taken in pieces of scratch.rows, or
/// of more where no partial results are needed and their memory holds the scores and lists of more rows. The queries in
/// q and index_q are scratch too: not every path writes index_q.
void attend(Queue& queue, std::span<const AttentionRun> runs, const AttentionShape& shape,
            const AttentionWeightVectors& weights, const AttentionInput& input, float* q, float* index_q,
            const AttentionScratch& scratch, float* out);

}  // namespace lockstep::kernels::cuda
