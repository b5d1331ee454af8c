// Attention over selected positions and its indexer (docs/model.md 3.5 and 3.6, docs/numerics.md N5).
#include <algorithm>

#include "kernels/cpu/scalar/variant.hpp"

namespace lockstep::kernels::LOCKSTEP_VARIANT {
namespace {

void rotate(float* x, const Rotation& rotation) {
  for (std::int64_t i = 0; i < rotation.half; ++i) {
    const float a = x[i];
    const float b = x[i + rotation.half];
    const float c = rotation.cos[i];
    const float s = rotation.sin[i];
    x[i] = canon_fma(a, c, -(b * s));
    x[i + rotation.half] = canon_fma(b, c, a * s);
  }
}

void norm_rope(const float* x, const float* weight, std::int64_t n, float eps, const Rotation& rotation, float* out) {
  const float mean = fold32_dot(x, x, static_cast<std::size_t>(n)) / static_cast<float>(n);
  const float inverse = canon_rsqrt(mean + eps);
  for (std::int64_t i = 0; i < n; ++i) out[i] = (x[i] * inverse) * weight[i];
  rotate(out, rotation);
}

void pool_index_key(const float* raw, std::int64_t ratio, const float* weight, std::int64_t n, float eps,
                    const Rotation& rotation, float* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    float sum = raw[i];
    for (std::int64_t r = 1; r < ratio; ++r) sum += raw[r * n + i];
    out[i] = sum / static_cast<float>(ratio);
  }
  norm_rope(out, weight, n, eps, rotation, out);
}

/// Rounds to nearest even; what is too large becomes infinite, NaN stays NaN.
std::uint16_t to_half(float x) {
  const std::uint32_t bits = numerics::float_bits(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t size = bits & 0x7fffffffU;
  if (size > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U);
  if (size >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // 65520 and more
  if (size < 0x38800000U) {  // below 2^-14: adding 2^-1 in f32 leaves multiples of 2^-24 in the low bits, rounded
    const float shifted = numerics::bits_float(size) + 0.5F;
    return static_cast<std::uint16_t>(sign | (numerics::float_bits(shifted) - numerics::float_bits(0.5F)));
  }
  const std::uint32_t rounded = size + 0xfffU + ((size >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

void narrow(const float* x, std::int64_t n, ElementType type, std::byte* out) {
  if (type == ElementType::F32) {
    std::memcpy(out, x, static_cast<std::size_t>(n) * 4);
    return;
  }
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint16_t bits = type == ElementType::F16 ? to_half(x[i]) : float_to_bf16(x[i]);
    std::memcpy(out + 2 * i, &bits, 2);
  }
}

void widen(const std::byte* x, std::int64_t n, ElementType type, float* out) {
  load_elements(x, type, n, out);
}

constexpr std::int64_t kMaxIndexDim = 1024;

void index_scores(const PagedKeys& keys, const float* q, std::int64_t heads, std::int64_t begin, std::int64_t end,
                  float* scores) {
  const std::int64_t n = keys.index_dim;
  const std::int64_t per_page = kPageTokens / keys.ratio;
  const std::int64_t size = static_cast<std::int64_t>(element_size(keys.type));
  const float scale = canon_rsqrt(static_cast<float>(n));
  float key[kMaxIndexDim];
  for (std::int64_t g = begin; g < end; ++g) {
    const std::byte* source = keys.pages[g / per_page] + keys.index_offset;
    load_elements(source + (g % per_page) * n * size, keys.type, n, key);
    float sum = 0.0F;
    for (std::int64_t h = 0; h < heads; ++h) {
      const float dot = fold32_dot(q + h * n, key, static_cast<std::size_t>(n));
      sum += dot > 0.0F ? dot : dot * 0.0F;  // keeps NaN
    }
    scores[g] = sum * scale;
  }
}

/// Running softmax state of one query head.
struct Running {
  float *maximum, *sum, *out;
};

/// Copies the keys or values of `count` positions of one KV head into `block` [count, head_dim].
void gather(const PagedKeys& keys, std::size_t offset, std::int64_t kv_head, const std::int32_t* positions,
            std::int64_t count, float* block) {
  const std::int64_t size = static_cast<std::int64_t>(element_size(keys.type));
  for (std::int64_t j = 0; j < count; ++j) {
    const std::int64_t position = positions[j];
    const std::byte* page = keys.pages[position / kPageTokens] + offset;
    const std::int64_t row = (position % kPageTokens) * keys.kv_heads + kv_head;
    load_elements(page + row * keys.head_dim * size, keys.type, keys.head_dim, block + j * keys.head_dim);
  }
}

/// Scores, softmax numerators and weighted values of one block for one head, merged into the running state.
void attend_block(const float* q, const float* key_block, const float* value_block, std::int64_t count, std::int64_t n,
                  float scale, bool first, const Running& run, float* block_out) {
  float p[kAttentionBlock];
  float maximum = 0.0F;
  for (std::int64_t j = 0; j < count; ++j) {
    p[j] = fold32_dot(q, key_block + j * n, static_cast<std::size_t>(n)) * scale;
    maximum = j == 0 || p[j] > maximum ? p[j] : maximum;
  }
  for (std::int64_t j = 0; j < count; ++j) p[j] = canon_exp(p[j] - maximum);
  const float sum = fold32_sum(p, static_cast<std::size_t>(count));
  float* out = first ? run.out : block_out;
  std::fill_n(out, n, 0.0F);
  for (std::int64_t j = 0; j < count; ++j) {
    const float* v = value_block + j * n;
    for (std::int64_t i = 0; i < n; ++i) out[i] = canon_fma(p[j], v[i], out[i]);
  }
  if (first) {
    *run.maximum = maximum;
    *run.sum = sum;
    return;
  }
  const float top = maximum > *run.maximum ? maximum : *run.maximum;
  const float old_factor = canon_exp(*run.maximum - top);
  const float new_factor = canon_exp(maximum - top);
  *run.sum = canon_fma(*run.sum, old_factor, sum * new_factor);
  for (std::int64_t i = 0; i < n; ++i) run.out[i] = canon_fma(run.out[i], old_factor, out[i] * new_factor);
  *run.maximum = top;
}

void attend(const PagedKeys& keys, std::int64_t kv_head, const float* q, std::int64_t heads,
            const std::int32_t* positions, std::int64_t count, float* out, float* scratch) {
  const std::int64_t n = keys.head_dim;
  const float scale = canon_rsqrt(static_cast<float>(n));
  float* key_block = scratch;
  float* value_block = key_block + kAttentionBlock * n;
  float* block_out = value_block + kAttentionBlock * n;
  float* maxima = block_out + n;
  float* sums = maxima + heads;
  for (std::int64_t start = 0; start < count; start += kAttentionBlock) {
    const std::int64_t size = std::min(kAttentionBlock, count - start);
    gather(keys, keys.keys_offset, kv_head, positions + start, size, key_block);
    gather(keys, keys.values_offset, kv_head, positions + start, size, value_block);
    for (std::int64_t h = 0; h < heads; ++h) {
      const Running run{maxima + h, sums + h, out + h * n};
      attend_block(q + h * n, key_block, value_block, size, n, scale, start == 0, run, block_out);
    }
  }
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t i = 0; i < n; ++i) out[h * n + i] = out[h * n + i] / sums[h];
  }
}

void sigmoid_gate(float* x, const float* gate, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] *= canon_sigmoid(gate[i]);
}

}  // namespace

void install_attention(Kernels& table) {
  table.norm_rope = norm_rope;
  table.pool_index_key = pool_index_key;
  table.narrow = narrow;
  table.widen = widen;
  table.index_scores = index_scores;
  table.attend = attend;
  table.sigmoid_gate = sigmoid_gate;
}

}  // namespace lockstep::kernels::LOCKSTEP_VARIANT
