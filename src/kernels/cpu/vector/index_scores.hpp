// Scores of pooled index keys (docs/numerics.md N5), sixteen groups at a time: the folds of sixteen products are added
// together as a tree of whole registers, one group a lane at the end, in the order of fold32.
#pragma once

#include "kernels/cpu/kernels.hpp"
#include "kernels/cpu/vector/key_products.hpp"
#include "numerics/canon_math.hpp"

namespace lockstep::kernels::vector {

inline constexpr std::int64_t kScoredDim = 256;  ///< the longest index key that these kernels take

inline bool scored_shape(const PagedKeys& keys) {
  return keys.index_dim % 32 == 0 && keys.index_dim <= kScoredDim && keys.type != ElementType::F16;
}

/// Kernels::index_scores for shapes that scored_shape() allows.
template <class Isa>
void index_scores(const PagedKeys& keys, const float* q, std::int64_t heads, std::int64_t begin, std::int64_t end,
                  float* scores) {
  using Float = typename Isa::Float;
  const std::int64_t n = keys.index_dim;
  const std::int64_t per_page = kPageTokens / keys.ratio;
  const bool wide = keys.type == ElementType::F32;
  const std::int64_t size = wide ? 4 : 2;
  const Float scale = Isa::broadcast(numerics::canon_rsqrt(static_cast<float>(n)));
  alignas(64) float block[16 * kScoredDim];
  for (std::int64_t first = begin; first < end; first += 16) {
    const std::int64_t count = end - first < 16 ? end - first : 16;
    for (std::int64_t g = first; g < first + count; ++g) {
      const std::byte* key = keys.pages[g / per_page] + keys.index_offset + g % per_page * n * size;
      widen_row<Isa>(key, n, wide, block + (g - first) * n);
    }
    Float sum = Isa::zero();
    for (std::int64_t h = 0; h < heads; ++h) {
      Float sums[16];
      key_sums<Isa, 1>(q + h * n, block, count, n, sums);
      sum = Isa::add(sum, Isa::positive(Isa::fold_each(sums)));
    }
    Isa::store(scores + first, Isa::mul(sum, scale), static_cast<int>(count));
  }
}

}  // namespace lockstep::kernels::vector
