// How numbers are stored in weights and states.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::kernels {

enum class ElementType : std::uint8_t { F32, F16, BF16 };

/// Bytes of one element.
[[nodiscard]] constexpr std::size_t element_size(ElementType type) {
  return type == ElementType::F32 ? 4 : 2;
}

}  // namespace lockstep::kernels
