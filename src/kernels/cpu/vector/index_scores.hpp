// Scores of pooled index keys (docs/numerics.md N5), sixteen groups at a time: the folds of sixteen products are added
// together as a tree of whole registers, one group a lane at the end, in the order of fold32.
#pragma once

#include "kernels/cpu/kernels.hpp"
#include "numerics/canon_math.hpp"

namespace lockstep::kernels::vector {

inline constexpr std::int64_t kScoredDim = 256;  ///< the longest index key that these kernels take

inline bool scored_shape(const PagedKeys& keys) {
  return keys.index_dim % 32 == 0 && keys.index_dim <= kScoredDim && keys.type != ElementType::F16;
}

/// fold32 products of one query head with sixteen keys [16, n], without the last four additions of each fold.
template <class Isa>
LOCKSTEP_INLINE typename Isa::Float scored_head(const float* q, const float* block, std::int64_t n) {
  using Float = typename Isa::Float;
  Float sums[16];
  for (std::int64_t k = 0; k < 16; ++k) {
    const float* key = block + k * n;
    Float low = Isa::zero();
    Float high = Isa::zero();
    for (std::int64_t i = 0; i < n; i += 32) {
      low = Isa::fma(Isa::load_floats(q + i), Isa::load_floats(key + i), low);
      high = Isa::fma(Isa::load_floats(q + i + 16), Isa::load_floats(key + i + 16), high);
    }
    sums[k] = Isa::add(low, high);
  }
  return Isa::fold_each(sums);
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
    for (std::int64_t k = 0; k < 16; ++k) {
      const std::int64_t g = first + (k < count ? k : count - 1);
      const std::byte* key = keys.pages[g / per_page] + keys.index_offset + g % per_page * n * size;
      for (std::int64_t i = 0; i < n; i += 16)
        Isa::store(block + k * n + i, Isa::load_scales(key + i * size, wide), 16);
    }
    Float sum = Isa::zero();
    for (std::int64_t h = 0; h < heads; ++h) sum = Isa::add(sum, Isa::positive(scored_head<Isa>(q + h * n, block, n)));
    Isa::store(scores + first, Isa::mul(sum, scale), static_cast<int>(count));
  }
}

}  // namespace lockstep::kernels::vector
