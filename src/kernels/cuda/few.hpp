// Products of up to eight activation rows with 4 and 8-bit weights in groups of 64: the usual case of decoding.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/linear.hpp"
#include "kernels/cuda/queue.hpp"

namespace lockstep::kernels::cuda {

/// Activation rows of one call.
inline constexpr std::int64_t kFewRows = 8;

/// Where a product goes that ends a block: y, or straight into the wide residual x of `streams` streams,
/// x[t, s] = fma(inject[t, s], y[t], x[t, s]); at most kTailStreams.
inline constexpr int kTailStreams = 4;
struct Tail {
  float* y = nullptr;
  float* x = nullptr;
  const float* inject = nullptr;
  int streams = 0;
};

struct FewProduct {
  const AffineWeights* weights = nullptr;
  float* out = nullptr;  ///< [rows, weights->rows]
};

/// The activations: f32 rows x, or rows that are quantised already.
struct FewInput {
  const float* x = nullptr;
  const ActivationRows* quantised = nullptr;
  const ActivationRows* keep = nullptr;  ///< receives the rows of x, quantised; or null
  std::int64_t rows = 0;
};

/// Whether few_products() takes these weights: 4 or 8 bits, one matrix, groups of 64 with bf16 pairs, at most 6,144
/// inputs.
[[nodiscard]] bool few_takes(const AffineWeights& weights, std::int64_t rows);
/// What may share the launch: a one-row dense product with x, and a product of 4 bits with x beside ones of 8 bits.
struct FewBeside {
  const SideProduct* dense = nullptr;
  const FewProduct* product = nullptr;
};
/// Up to six products of one kind (bits and inputs).
void few_products(Queue& queue, std::span<const FewProduct> products, const FewInput& input, const FewBeside& beside);
/// One product that ends a block.
void few_product_into(Queue& queue, const AffineWeights& weights, const FewInput& input, const Tail& tail);

}  // namespace lockstep::kernels::cuda
