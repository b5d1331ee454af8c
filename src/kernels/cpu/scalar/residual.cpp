// Norms, hyper-connections and the n-gram gate (docs/model.md sections 3.1, 3.2 and 3.8; sums by docs/numerics.md N2).
#include "kernels/cpu/scalar/variant.hpp"

namespace lockstep::kernels::LOCKSTEP_VARIANT {
namespace {

/// 1 / sqrt(mean(x^2) + eps).
LOCKSTEP_INLINE float inverse_rms(const float* x, std::int64_t n, float eps) {
  const float mean = fold32_dot(x, x, static_cast<std::size_t>(n)) / static_cast<float>(n);
  return canon_rsqrt(mean + eps);
}

void rms_norm(const float* x, const float* weight, std::int64_t groups, std::int64_t size, float eps, float* out) {
  for (std::int64_t g = 0; g < groups; ++g) {
    const float* xs = x + g * size;
    const float* ws = weight + g * size;
    float* ys = out + g * size;
    const float inverse = inverse_rms(xs, size, eps);
    for (std::int64_t i = 0; i < size; ++i) ys[i] = (xs[i] * inverse) * ws[i];
  }
}

void silu_divided(float* x, std::int64_t n, float divisor) {
  for (std::int64_t i = 0; i < n; ++i) x[i] = canon_silu(x[i] / divisor);
}

void gated_mean(const float* gate, const float* n, std::int64_t streams, std::int64_t hidden, float* u) {
  for (std::int64_t i = 0; i < hidden; ++i) u[i] = canon_sigmoid(gate[i]) * n[i];
  for (std::int64_t s = 1; s < streams; ++s) {
    const float* gs = gate + s * hidden;
    const float* ns = n + s * hidden;
    for (std::int64_t i = 0; i < hidden; ++i) u[i] = canon_fma(canon_sigmoid(gs[i]), ns[i], u[i]);
  }
  const float count = static_cast<float>(streams);
  for (std::int64_t i = 0; i < hidden; ++i) u[i] = u[i] / count;
}

void inject_weights(float* inject, std::int64_t streams) {
  const float count = static_cast<float>(streams);
  for (std::int64_t s = 0; s < streams; ++s) inject[s] = 2.0F * canon_sigmoid(inject[s] / count);
}

void inject(float* x, const float* weights, const float* y, std::int64_t streams, std::int64_t hidden) {
  for (std::int64_t s = 0; s < streams; ++s) {
    float* xs = x + s * hidden;
    const float w = weights[s];
    for (std::int64_t i = 0; i < hidden; ++i) xs[i] = canon_fma(w, y[i], xs[i]);
  }
}

void ple_gate(const float* key, const float* query, const float* value, std::int64_t streams, std::int64_t hidden,
              float* gated) {
  const float root = canon_sqrt(static_cast<float>(hidden));
  for (std::int64_t s = 0; s < streams; ++s) {
    const float d = fold32_dot(key + s * hidden, query + s * hidden, static_cast<std::size_t>(hidden)) / root;
    const float magnitude = canon_abs(d) > 1e-6F ? canon_abs(d) : 1e-6F;
    const float rooted = canon_sqrt(magnitude);
    const float signed_root = d > 0.0F ? rooted : (d < 0.0F ? -rooted : d * 0.0F);
    const float weight = canon_sigmoid(signed_root);
    float* out = gated + s * hidden;
    for (std::int64_t i = 0; i < hidden; ++i) out[i] = weight * value[i];
  }
}

void add(float* x, const float* a, const float* b, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] += a[i] + b[i];
}

}  // namespace

void install_residual(Kernels& table) {
  table.rms_norm = rms_norm;
  table.silu_divided = silu_divided;
  table.gated_mean = gated_mean;
  table.inject_weights = inject_weights;
  table.inject = inject;
  table.ple_gate = ple_gate;
  table.add = add;
}

}  // namespace lockstep::kernels::LOCKSTEP_VARIANT
