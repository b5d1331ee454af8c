// Attention of the query heads that share one KV head (docs/numerics.md N5), several heads for each key loaded.
#pragma once

#include <algorithm>

#include "kernels/cpu/kernels.hpp"
#include "kernels/cpu/vector/key_products.hpp"
#include "numerics/canon_math.hpp"
#include "numerics/fold32.hpp"

namespace lockstep::kernels::vector {

inline bool attended_shape(const PagedKeys& keys) {
  return keys.head_dim % 32 == 0 && keys.type != ElementType::F16;
}

/// Copies the keys or values of `count` positions of one KV head into `block` [count, head_dim].
template <class Isa>
void gather_block(const PagedKeys& keys, std::size_t offset, std::int64_t kv_head, const std::int32_t* positions,
                  std::int64_t count, float* block) {
  const bool wide = keys.type == ElementType::F32;
  const std::int64_t size = wide ? 4 : 2;
  for (std::int64_t j = 0; j < count; ++j) {
    const std::byte* page = keys.pages[positions[j] / kPageTokens] + offset;
    const std::byte* row = page + (positions[j] % kPageTokens * keys.kv_heads + kv_head) * keys.head_dim * size;
    widen_row<Isa>(row, keys.head_dim, wide, block + j * keys.head_dim);
  }
}

/// Scores of H heads for the `count` keys of a block: p[h * kAttentionBlock + j].
template <class Isa, int H>
LOCKSTEP_INLINE void block_scores(const float* q, const float* block, std::int64_t count, std::int64_t n, float scale,
                                  float* p) {
  typename Isa::Float sums[H * 16];
  for (std::int64_t first = 0; first < count; first += 16) {
    key_sums<Isa, H>(q, block + first * n, count - first, n, sums);
    for (int h = 0; h < H; ++h) {
      Isa::store(p + h * kAttentionBlock + first,
                 Isa::mul(Isa::fold_each(sums + std::ptrdiff_t{16} * h), Isa::broadcast(scale)), 16);
    }
  }
}

/// Running softmax states of the heads.
struct RunningHeads {
  float *maxima, *sums, *out;
};

/// How a block joins what was before it.
struct Join {
  bool first;
  float old_factor, new_factor;
};

/// Columns [at, at + 16 W) of the weighted values of H heads, joined with run.out.
template <class Isa, int H, int W>
LOCKSTEP_INLINE void value_columns(const float* p, const float* values, std::int64_t count, std::int64_t n,
                                   std::int64_t at, const Join (&joins)[H], float* out) {
  using Float = typename Isa::Float;
  Float sum[H][W];
  for (int h = 0; h < H; ++h) {
    for (int w = 0; w < W; ++w) sum[h][w] = Isa::zero();
  }
  for (std::int64_t j = 0; j < count; ++j) {
    Float v[W];
    for (int w = 0; w < W; ++w) v[w] = Isa::in_register(Isa::load_floats(values + j * n + at + std::ptrdiff_t{16} * w));
    for (int h = 0; h < H; ++h) {
      const Float weight = Isa::broadcast(p[h * kAttentionBlock + j]);
      for (int w = 0; w < W; ++w) sum[h][w] = Isa::fma(weight, v[w], sum[h][w]);
    }
  }
  for (int h = 0; h < H; ++h) {
    for (int w = 0; w < W; ++w) {
      float* to = out + h * n + at + std::ptrdiff_t{16} * w;
      const Float joined = joins[h].first ? sum[h][w]
                                          : Isa::fma(Isa::load_floats(to), Isa::broadcast(joins[h].old_factor),
                                                     Isa::mul(sum[h][w], Isa::broadcast(joins[h].new_factor)));
      Isa::store(to, joined, 16);
    }
  }
}

/// One block for H heads, merged into their running states.
template <class Isa, int H>
void attend_heads(const float* q, const float* key_block, const float* value_block, std::int64_t count, std::int64_t n,
                  float scale, bool first, const RunningHeads& run) {
  constexpr int kColumns = Isa::kAttendColumns;
  alignas(64) float p[H * kAttentionBlock];
  Join joins[H];
  block_scores<Isa, H>(q, key_block, count, n, scale, p);
  for (int h = 0; h < H; ++h) {
    float* own = p + h * kAttentionBlock;
    float maximum = own[0];
    for (std::int64_t j = 1; j < count; ++j) maximum = own[j] > maximum ? own[j] : maximum;
    for (std::int64_t j = 0; j < count; ++j) own[j] = numerics::canon_exp(own[j] - maximum);
    const float sum = numerics::fold32_sum(own, static_cast<std::size_t>(count));
    joins[h] = {first, 0, 0};
    if (first) {
      run.maxima[h] = maximum;
      run.sums[h] = sum;
      continue;
    }
    const float top = maximum > run.maxima[h] ? maximum : run.maxima[h];
    joins[h].old_factor = numerics::canon_exp(run.maxima[h] - top);
    joins[h].new_factor = numerics::canon_exp(maximum - top);
    run.sums[h] = numerics::canon_fma(run.sums[h], joins[h].old_factor, sum * joins[h].new_factor);
    run.maxima[h] = top;
  }
  std::int64_t at = 0;
  for (; at + 16 * kColumns <= n; at += 16 * kColumns) {
    value_columns<Isa, H, kColumns>(p, value_block, count, n, at, joins, run.out);
  }
  for (; at < n; at += 16) value_columns<Isa, H, 1>(p, value_block, count, n, at, joins, run.out);
}

/// Kernels::attend for shapes that attended_shape() allows.
template <class Isa>
void attend(const PagedKeys& keys, std::int64_t kv_head, const float* q, std::int64_t heads,
            const std::int32_t* positions, std::int64_t count, float* out, float* scratch) {
  constexpr int kHeads = Isa::kAttendHeads;
  const std::int64_t n = keys.head_dim;
  const float scale = numerics::canon_rsqrt(static_cast<float>(n));
  float* key_block = scratch;
  float* value_block = key_block + kAttentionBlock * n;
  float* maxima = value_block + kAttentionBlock * n;
  float* sums = maxima + heads;
  for (std::int64_t start = 0; start < count; start += kAttentionBlock) {
    const std::int64_t size = std::min(kAttentionBlock, count - start);
    gather_block<Isa>(keys, keys.keys_offset, kv_head, positions + start, size, key_block);
    gather_block<Isa>(keys, keys.values_offset, kv_head, positions + start, size, value_block);
    std::int64_t h = 0;
    const auto run = [&] { return RunningHeads{maxima + h, sums + h, out + h * n}; };
    for (; h + kHeads <= heads; h += kHeads) {
      attend_heads<Isa, kHeads>(q + h * n, key_block, value_block, size, n, scale, start == 0, run());
    }
    for (; h < heads; ++h) attend_heads<Isa, 1>(q + h * n, key_block, value_block, size, n, scale, start == 0, run());
  }
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t i = 0; i < n; ++i) out[h * n + i] = out[h * n + i] / sums[h];
  }
}

}  // namespace lockstep::kernels::vector
