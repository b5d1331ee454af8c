// Checked integer arithmetic for sizes that come from files and requests.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

namespace lockstep {

template <std::integral T>
[[nodiscard]] std::optional<T> checked_add(T a, T b) {
  T out;
  if (__builtin_add_overflow(a, b, &out)) return std::nullopt;
  return out;
}

template <std::integral T>
[[nodiscard]] std::optional<T> checked_mul(T a, T b) {
  T out;
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

/// Product of all factors, or nothing on overflow. The empty product is 1.
[[nodiscard]] inline std::optional<std::uint64_t> checked_product(std::span<const std::uint64_t> factors) {
  std::uint64_t product = 1;
  for (const std::uint64_t factor : factors) {
    if (__builtin_mul_overflow(product, factor, &product)) return std::nullopt;
  }
  return product;
}

/// Rounds up to a multiple of `step`, or nothing on overflow or when `step` is 0.
[[nodiscard]] inline std::optional<std::uint64_t> checked_round_up(std::uint64_t value, std::uint64_t step) {
  if (step == 0) return std::nullopt;
  const std::uint64_t rest = value % step;
  return rest == 0 ? std::optional(value) : checked_add(value, step - rest);
}

}  // namespace lockstep
