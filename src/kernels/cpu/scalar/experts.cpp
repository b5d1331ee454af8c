// Selection and the mixture of experts (docs/model.md 3.7, docs/numerics.md N5 and N7).
#include <algorithm>

#include "kernels/cpu/scalar/variant.hpp"

namespace lockstep::kernels::LOCKSTEP_VARIANT {
namespace {

/// A number that orders like (value descending, index ascending) when compared with >. The two zeros are equal; a NaN
/// has a place too, so that no input can break the order.
LOCKSTEP_INLINE std::uint64_t rank_key(float value, std::uint32_t index) {
  const std::uint32_t bits = float_bits(value + 0.0F);
  const std::uint32_t ordered = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return (static_cast<std::uint64_t>(ordered) << 32) | (0xffffffffU - index);
}

/// A type of this namespace: the sorting templates made for one instruction set must not be shared with another.
struct Descending {
  bool operator()(std::uint64_t a, std::uint64_t b) const { return a > b; }
};

void top_k(const float* values, std::int64_t n, std::int64_t k, std::int32_t* indices, std::uint64_t* scratch) {
  for (std::int64_t i = 0; i < n; ++i) scratch[i] = rank_key(values[i], static_cast<std::uint32_t>(i));
  if (k < n) std::nth_element(scratch, scratch + k, scratch + n, Descending());
  std::sort(scratch, scratch + k, Descending());
  for (std::int64_t i = 0; i < k; ++i) {
    indices[i] = static_cast<std::int32_t>(0xffffffffU - static_cast<std::uint32_t>(scratch[i] & 0xffffffffU));
  }
}

void route(float* logits, std::int64_t n, std::int64_t k, std::int32_t* experts, float* weights,
           std::uint64_t* scratch) {
  float maximum = logits[0];
  for (std::int64_t i = 1; i < n; ++i) maximum = logits[i] > maximum ? logits[i] : maximum;
  for (std::int64_t i = 0; i < n; ++i) logits[i] = canon_exp(logits[i] - maximum);
  const float sum = fold32_sum(logits, static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) logits[i] = logits[i] / sum;
  top_k(logits, n, k, experts, scratch);
  float total = 0.0F;
  for (std::int64_t r = 0; r < k; ++r) total += logits[experts[r]];
  for (std::int64_t r = 0; r < k; ++r) weights[r] = logits[experts[r]] / total;
}

void silu_product(const float* gate, const float* up, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = canon_silu(gate[i]) * up[i];
}

void combine(const float* const* outputs, const float* weights, std::int64_t ranks, const float* shared,
             float shared_logit, std::int64_t n, float* y) {
  std::fill_n(y, n, 0.0F);
  for (std::int64_t r = 0; r < ranks; ++r) {
    const float* e = outputs[r];
    for (std::int64_t i = 0; i < n; ++i) y[i] = canon_fma(weights[r], e[i], y[i]);
  }
  const float gate = canon_sigmoid(shared_logit);
  for (std::int64_t i = 0; i < n; ++i) y[i] = canon_fma(gate, shared[i], y[i]);
}

}  // namespace

void install_experts(Kernels& table) {
  table.top_k = top_k;
  table.route = route;
  table.silu_product = silu_product;
  table.combine = combine;
}

const Kernels& table();  // declared where dispatch.cpp needs it

const Kernels& table() {
  static const Kernels kernels = [] {
    Kernels built{};
    built.name = LOCKSTEP_VARIANT_NAME;
    built.share_work = kShareWork;
    install_matrix(built);
    install_residual(built);
    install_delta(built);
    install_attention(built);
    install_experts(built);
    return built;
  }();
  return kernels;
}

}  // namespace lockstep::kernels::LOCKSTEP_VARIANT
