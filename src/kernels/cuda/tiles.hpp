// Products of many activation rows (prompts, large batches): blocks that keep a tile of weights and activations in
// shared memory (docs/numerics.md N3 and N4).
#pragma once

#include <span>

#include "kernels/cuda/linear.hpp"

namespace lockstep::kernels::cuda {

/// Whether affine_tiles() serves these products, which are of one kind and width: groups of 64, bf16 scales, and so
/// many rows that the device is full of tiles.
[[nodiscard]] bool affine_tiles_take(std::span<const AffineProduct* const> products);
/// The products, at most six, in one launch.
void affine_tiles(Queue& queue, std::span<const AffineProduct* const> products);

/// Whether dense_tiles() serves this product: bf16 weights, whole chunks of 256 inputs or 320 of them, a device full of
/// tiles.
[[nodiscard]] bool dense_tiles_take(const DenseWeights& weights, std::int64_t x_rows);
/// out[t * weights.rows + r] of matrix 0.
struct DenseTileProduct {
  const DenseWeights* weights = nullptr;
  float* out = nullptr;
};
/// One or two products of the same activations f32 [x_rows, cols] in one launch; the second one may have few rows.
void dense_tiles(Queue& queue, std::span<const DenseTileProduct> products, const float* x, std::int64_t x_rows);

/// Whether dense_gated() serves these gates of a residual site, bf16 weights [streams * hidden, 320]: four streams, a
/// hidden dimension of whole sixteens, a device full of tiles.
[[nodiscard]] bool dense_gated_takes(const DenseWeights& weights, std::int64_t streams, std::int64_t x_rows);
/// The product of activations f32 [x_rows, 320] and what gated_mean() makes of it and n [x_rows, streams, hidden]: u
/// [x_rows, hidden]. The gates themselves go nowhere.
void dense_gated(Queue& queue, const DenseWeights& weights, const float* x, std::int64_t x_rows, const float* n,
                 float* u);

/// Whether dense_long() serves this product: bf16 weights, whole chunks of inputs and many of them, few outputs.
[[nodiscard]] bool dense_long_takes(const DenseWeights& weights, std::int64_t x_rows);
/// dense_tiles() for so few rows on both sides that tiles would leave the device empty.
void dense_long(Queue& queue, std::span<const DenseTileProduct> products, const float* x, std::int64_t x_rows);

}  // namespace lockstep::kernels::cuda
