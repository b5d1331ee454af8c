// The delta rule (docs/numerics.md N6) for key dimensions in whole segments, sixteen value columns a register.
#pragma once

#include "kernels/cpu/kernels.hpp"
#include "numerics/portable.hpp"

namespace lockstep::kernels::vector {

inline constexpr std::int64_t kDeltaSegment = 32;
/// Value columns of one strip: W registers of sixteen.
template <class Isa, int W>
LOCKSTEP_INLINE void delta_strip(const DeltaStep& step, std::int64_t first) {
  using Float = typename Isa::Float;
  const Float decay = Isa::broadcast(step.decay);
  // (0+1)+(2+3): the sums of two segments are added, then those of the pairs.
  const auto over_keys = [&](auto&& body, Float(&total)[W]) {
    Float pair[W];
    Float segment[W];
    const std::int64_t segments = step.key_dim / kDeltaSegment;
    for (std::int64_t s = 0; s < segments; ++s) {
      for (Float& sum : segment) sum = Isa::zero();
      for (std::int64_t k = s * kDeltaSegment; k < (s + 1) * kDeltaSegment; ++k) body(k, segment);
      for (int w = 0; w < W; ++w) {
        if (s % 2 == 0) {
          pair[w] = segment[w];
        } else {
          pair[w] = Isa::add(pair[w], segment[w]);
          total[w] = s == 1 ? pair[w] : Isa::add(total[w], pair[w]);
        }
      }
    }
  };
  Float delta[W];
  over_keys(
      [&](std::int64_t k, Float(&sum)[W]) {
        const Float key = Isa::broadcast(step.k[k]);
        const float* in = step.state_in + k * step.value_dim + first;
        for (int w = 0; w < W; ++w) sum[w] = Isa::fma(Isa::mul(Isa::load_floats(in + 16 * w), decay), key, sum[w]);
      },
      delta);
  for (int w = 0; w < W; ++w) {
    const Float v = Isa::load_floats(step.v + first + 16 * w);
    delta[w] = Isa::mul(Isa::broadcast(step.beta), Isa::sub(v, delta[w]));
    Isa::store(step.delta + first + 16 * w, delta[w], 16);
  }
  Float out[W];
  over_keys(
      [&](std::int64_t k, Float(&sum)[W]) {
        const Float key = Isa::broadcast(step.k[k]);
        const Float query = Isa::broadcast(step.q[k]);
        const float* in = step.state_in + k * step.value_dim + first;
        float* to = step.state_out + k * step.value_dim + first;
        for (int w = 0; w < W; ++w) {
          const Float next = Isa::fma(key, delta[w], Isa::mul(Isa::load_floats(in + 16 * w), decay));
          Isa::store(to + 16 * w, next, 16);
          sum[w] = Isa::fma(next, query, sum[w]);
        }
      },
      out);
  for (int w = 0; w < W; ++w) Isa::store(step.out + first + 16 * w, out[w], 16);
}

/// True for the shapes that delta_step() takes: two or four segments of keys, whole strips of columns.
LOCKSTEP_INLINE bool delta_shape(const DeltaStep& step, std::int64_t columns) {
  return (step.key_dim == 2 * kDeltaSegment || step.key_dim == 4 * kDeltaSegment) && step.value_dim % columns == 0;
}

template <class Isa>
void delta_step(const DeltaStep& step) {
  constexpr int kWide = Isa::kDeltaRegisters;
  for (std::int64_t first = 0; first < step.value_dim; first += 16 * kWide) delta_strip<Isa, kWide>(step, first);
}

}  // namespace lockstep::kernels::vector
