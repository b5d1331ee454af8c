#include "artifact/finite.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "artifact/module_reader.hpp"
#include "numerics/bits.hpp"

namespace lockstep::artifact {
namespace {

/// The bits of 2^`exponent` without its sign; of infinity from 128 on, which F16 reaches sooner.
std::uint32_t bits_of_power(DType type, int exponent) {
  switch (type) {
    case DType::F32:
      return static_cast<std::uint32_t>(std::min(exponent, 128) + 127) << 23U;
    case DType::F16:
      return static_cast<std::uint32_t>(std::min(exponent, 16) + 15) << 10U;
    default:
      return static_cast<std::uint32_t>(std::min(exponent, 128) + 127) << 7U;
  }
}

/// Whether any of `count` numbers is as large as the limit, infinite or NaN: without their sign, they compare as
/// integers. Without a branch inside, so that the compiler makes vector code of it. `data` may be unaligned.
template <class Bits>
bool any_from(const std::byte* data, std::size_t count, std::uint32_t limit) {
  constexpr Bits kMagnitude = std::numeric_limits<Bits>::max();
  const auto least = static_cast<Bits>(limit);
  unsigned found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * sizeof(Bits), sizeof(Bits));
    found |= static_cast<unsigned>(static_cast<Bits>(bits & kMagnitude) >= least);
  }
  return found != 0;
}

bool any_from(DType type, const std::byte* data, std::size_t count, std::uint32_t limit) {
  return type == DType::F32 ? any_from<std::int32_t>(data, count, limit) : any_from<std::int16_t>(data, count, limit);
}

/// Where a plane of scales or biases, [count, rows, groups], has a number that is not less than 2^`exponent`.
Status check_plane(const MatrixView& matrix, std::string_view plane, const std::byte* data, int exponent) {
  constexpr std::size_t kBlock = 4096;
  const auto groups = static_cast<std::size_t>(matrix.cols / matrix.group);
  const auto rows = static_cast<std::size_t>(matrix.rows);
  const std::size_t total = static_cast<std::size_t>(matrix.count) * rows * groups;
  const std::size_t size = dtype_size(matrix.scale_dtype);
  const std::uint32_t limit = bits_of_power(matrix.scale_dtype, exponent);
  for (std::size_t first = 0; first < total; first += kBlock) {
    const std::size_t count = std::min(kBlock, total - first);
    if (!any_from(matrix.scale_dtype, data + first * size, count, limit)) continue;
    std::size_t at = first;
    while (!any_from(matrix.scale_dtype, data + at * size, 1, limit)) ++at;
    float value = 0;
    widen(matrix.scale_dtype, data + at * size, 1, &value);
    const std::string stack = matrix.count > 1 ? fmt::format("matrix {}, ", at / groups / rows) : "";
    return fail(ErrorKind::Invalid, "tensor '{}.{}': {}row {}, group {} is {}, {}", matrix.name, plane, stack,
                at / groups % rows, at % groups, value,
                numerics::is_finite(value) ? "too large for finite weights" : "not a finite number");
  }
  return {};
}

constexpr int kAllFinite = 128;

}  // namespace

float scale_limit(int bits) {
  return std::ldexp(1.0F, kAllFinite - bits);
}

Status check_scales(const MatrixView& matrix) {
  return matrix.quantised ? check_plane(matrix, "scales", matrix.scales, kAllFinite - matrix.bits) : Status();
}

Status check_biases(const MatrixView& matrix) {
  return matrix.quantised ? check_plane(matrix, "biases", matrix.biases, kAllFinite) : Status();
}

}  // namespace lockstep::artifact
