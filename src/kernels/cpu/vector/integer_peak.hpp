// The rate at which a processor multiplies codes with activations when nothing else is in the way.
#pragma once

#include "kernels/cpu/kernels.hpp"
#include "numerics/portable.hpp"

namespace lockstep::kernels::vector {

template <class Isa>
double integer_peak(std::int64_t rounds) {
  // As many sums as hide the latency and still fit the registers, with one pair of activations for all.
  constexpr int kChains = Isa::kFusedDot ? 16 : 5;
  constexpr int kUnroll = 8;
  using Int = typename Isa::Int;
  Int sum[kChains];
  std::int16_t codes[64 + 32];
  std::int16_t pair[2 * kUnroll];
  for (int i = 0; i < 96; ++i) codes[i] = static_cast<std::int16_t>(i);
  for (int i = 0; i < 2 * kUnroll; ++i) pair[i] = static_cast<std::int16_t>(i - 3);
  // Different starts, or the compiler would find that all sums are one.
  for (int i = 0; i < kChains; ++i) sum[i] = Isa::load(reinterpret_cast<const std::byte*>(codes + i));
  Int code = Isa::load(reinterpret_cast<const std::byte*>(codes));
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (int i = 0; i < kUnroll; ++i) {
      const Int a = Isa::activations(pair + 2 * i);
      for (Int& chain : sum) chain = Isa::dot(chain, code, a);
    }
  }
  for (int i = 1; i < kChains; ++i) sum[0] = Isa::add_int(sum[0], sum[i]);
  float out[16];
  Isa::store(out, Isa::to_float(sum[0]), 16);
  // Always true; the compiler does not know.
  const double used = out[0] == out[0] ? 1.0 : 0.0;
  return used * static_cast<double>(rounds) * kUnroll * kChains * 32.0;
}

}  // namespace lockstep::kernels::vector
