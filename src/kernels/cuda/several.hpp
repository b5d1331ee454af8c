// Products of 9 to 16 activation rows with 4 and 8-bit weights in groups of 64: parallel sequences that decode one row
// each.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/few.hpp"
#include "kernels/cuda/linear.hpp"
#include "kernels/cuda/queue.hpp"

namespace lockstep::kernels::cuda {

/// Activation rows of one call.
inline constexpr std::int64_t kSeveralRows = 16;

/// Whether several_products() takes these weights and rows: one matrix of 4 or 8 bits, groups of 64 with bf16 pairs, at
/// most 10,240 inputs (8,192 of 8 bits), and more rows than few_products() takes.
[[nodiscard]] bool several_takes(const AffineWeights& weights, std::int64_t rows);
/// Up to six products of quantised rows x in one launch, all of as many inputs.
void several_products(Queue& queue, std::span<const FewProduct> products, const ActivationRows& x);
/// One product that ends a block.
void several_product_into(Queue& queue, const AffineWeights& weights, const ActivationRows& x, const Tail& tail);

}  // namespace lockstep::kernels::cuda
