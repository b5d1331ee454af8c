// Gated DeltaNet: convolution, gates and the delta rule (docs/model.md 3.4, docs/numerics.md N6).
#include <algorithm>

#include "kernels/cpu/scalar/variant.hpp"

namespace lockstep::kernels::LOCKSTEP_VARIANT {
namespace {

/// Sums over the key dimension run in segments of this many consecutive keys.
constexpr std::int64_t kSegmentKeys = 32;
constexpr std::int64_t kMaxSegments = 16;
/// Value columns handled at once; their sums stay in registers or L1.
constexpr std::int64_t kColumns = 32;
/// Channels of a convolution handled at once.
constexpr std::int64_t kChannels = 64;

void conv_silu(const float* const* taps, const float* weight, std::int64_t kernel, std::int64_t begin, std::int64_t end,
               float* out) {
  // Channels side by side, so that the compiler can use vectors: tap by tap, then the SiLU.
  for (std::int64_t first = begin; first < end; first += kChannels) {
    const std::int64_t count = std::min(kChannels, end - first);
    float sum[kChannels] = {};
    float w[kChannels];
    for (std::int64_t j = 0; j < kernel; ++j) {
      const float* tap = taps[j] + first;
      for (std::int64_t c = 0; c < count; ++c) w[c] = weight[(first + c) * kernel + j];
      for (std::int64_t c = 0; c < count; ++c) sum[c] = canon_fma(w[c], tap[c], sum[c]);
    }
    for (std::int64_t c = 0; c < count; ++c) out[first + c] = canon_silu(sum[c]);
  }
}

void unit_vector(const float* x, std::int64_t n, float scale, float* out) {
  const float inverse = canon_rsqrt(fold32_dot(x, x, static_cast<std::size_t>(n)) + 1e-6F);
  for (std::int64_t i = 0; i < n; ++i) out[i] = (x[i] * inverse) * scale;
}

void gates(const float* a, const float* b, const float* neg_a, const float* dt_bias, std::int64_t heads, float* decay,
           float* beta) {
  for (std::int64_t h = 0; h < heads; ++h) {
    decay[h] = canon_exp(neg_a[h] * canon_softplus(a[h] + dt_bias[h]));
    beta[h] = canon_sigmoid(b[h]);
  }
}

/// Adds the segment sums [segments][columns] pairwise: (0+1)+(2+3) for four.
LOCKSTEP_INLINE void add_segments(float (*sums)[kColumns], std::int64_t segments, std::int64_t columns, float* out) {
  for (std::int64_t count = segments; count > 1; count = (count + 1) / 2) {
    for (std::int64_t s = 0; s < count / 2; ++s) {
      for (std::int64_t c = 0; c < columns; ++c) sums[s][c] = sums[2 * s][c] + sums[2 * s + 1][c];
    }
    if (count % 2 != 0) std::copy_n(sums[count - 1], columns, sums[count / 2]);
  }
  std::copy_n(sums[0], columns, out);
}

void delta_columns(const DeltaStep& step, std::int64_t first, std::int64_t columns) {
  float sums[kMaxSegments][kColumns];
  float delta[kColumns];
  const std::int64_t segments = (step.key_dim + kSegmentKeys - 1) / kSegmentKeys;
  const auto each_key = [&](auto&& body) {
    for (std::int64_t s = 0; s < segments; ++s) {
      std::fill_n(sums[s], columns, 0.0F);
      const std::int64_t end = std::min(step.key_dim, (s + 1) * kSegmentKeys);
      for (std::int64_t k = s * kSegmentKeys; k < end; ++k) body(k, sums[s]);
    }
  };
  each_key([&](std::int64_t k, float* sum) {
    const float* in = step.state_in + k * step.value_dim + first;
    float* out = step.state_out + k * step.value_dim + first;
    for (std::int64_t c = 0; c < columns; ++c) {
      out[c] = in[c] * step.decay;
      sum[c] = canon_fma(out[c], step.k[k], sum[c]);
    }
  });
  add_segments(sums, segments, columns, delta);
  for (std::int64_t c = 0; c < columns; ++c) {
    delta[c] = step.beta * (step.v[first + c] - delta[c]);
    step.delta[first + c] = delta[c];
  }
  each_key([&](std::int64_t k, float* sum) {
    float* out = step.state_out + k * step.value_dim + first;
    for (std::int64_t c = 0; c < columns; ++c) {
      out[c] = canon_fma(step.k[k], delta[c], out[c]);
      sum[c] = canon_fma(out[c], step.q[k], sum[c]);
    }
  });
  add_segments(sums, segments, columns, step.out + first);
}

void delta_step(const DeltaStep& step) {
  for (std::int64_t first = 0; first < step.value_dim; first += kColumns) {
    delta_columns(step, first, std::min(kColumns, step.value_dim - first));
  }
}

void delta_replay(const float* state_in, const float* k, const float* delta, float decay, std::int64_t key_dim,
                  std::int64_t value_dim, float* state_out) {
  for (std::int64_t i = 0; i < key_dim; ++i) {
    const float* in = state_in + i * value_dim;
    float* out = state_out + i * value_dim;
    for (std::int64_t c = 0; c < value_dim; ++c) out[c] = canon_fma(k[i], delta[c], in[c] * decay);
  }
}

void gated_norm(const float* o, const float* z, const float* weight, std::int64_t n, float eps, float* out) {
  const float mean = fold32_dot(o, o, static_cast<std::size_t>(n)) / static_cast<float>(n);
  const float inverse = canon_rsqrt(mean + eps);
  for (std::int64_t i = 0; i < n; ++i) out[i] = ((o[i] * inverse) * weight[i]) * canon_sigmoid(z[i]);
}

}  // namespace

void install_delta(Kernels& table) {
  table.conv_silu = conv_silu;
  table.unit_vector = unit_vector;
  table.gates = gates;
  table.delta_step = delta_step;
  table.delta_replay = delta_replay;
  table.gated_norm = gated_norm;
}

}  // namespace lockstep::kernels::LOCKSTEP_VARIANT
