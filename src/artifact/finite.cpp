#include "artifact/finite.hpp"

#include <cstring>
#include <string_view>

#include "artifact/module_reader.hpp"

namespace lockstep::artifact {
namespace {

/// Whether any of `count` numbers has all bits of `exponent` set: it is infinite or NaN. Without a branch inside, so
/// that the compiler makes vector code of it. `data` may be unaligned.
template <class Bits>
bool any_set(const std::byte* data, std::size_t count, Bits exponent) {
  unsigned found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, data + i * sizeof(Bits), sizeof(Bits));
    found |= static_cast<unsigned>((bits & exponent) == exponent);
  }
  return found != 0;
}

bool any_not_finite(DType type, const std::byte* data, std::size_t count) {
  switch (type) {
    case DType::F32:
      return any_set<std::uint32_t>(data, count, 0x7f800000U);
    case DType::F16:
      return any_set<std::uint16_t>(data, count, 0x7c00U);
    default:
      return any_set<std::uint16_t>(data, count, 0x7f80U);
  }
}

/// Where a plane of scales or biases, [count, rows, groups], has a number that is not finite.
Status check_plane(const MatrixView& matrix, std::string_view plane, const std::byte* data) {
  constexpr std::size_t kBlock = 4096;
  const auto groups = static_cast<std::size_t>(matrix.cols / matrix.group);
  const auto rows = static_cast<std::size_t>(matrix.rows);
  const std::size_t total = static_cast<std::size_t>(matrix.count) * rows * groups;
  const std::size_t size = dtype_size(matrix.scale_dtype);
  for (std::size_t first = 0; first < total; first += kBlock) {
    const std::size_t count = std::min(kBlock, total - first);
    if (!any_not_finite(matrix.scale_dtype, data + first * size, count)) continue;
    std::size_t at = first;
    while (!any_not_finite(matrix.scale_dtype, data + at * size, 1)) ++at;
    float value = 0;
    widen(matrix.scale_dtype, data + at * size, 1, &value);
    const std::string stack = matrix.count > 1 ? fmt::format("matrix {}, ", at / groups / rows) : "";
    return fail(ErrorKind::Invalid, "tensor '{}.{}': {}row {}, group {} is {}, not a finite number", matrix.name, plane,
                stack, at / groups % rows, at % groups, value);
  }
  return {};
}

}  // namespace

Status check_finite(const MatrixView& matrix) {
  if (!matrix.quantised) return {};
  LOCKSTEP_TRY(check_plane(matrix, "scales", matrix.scales));
  return check_plane(matrix, "biases", matrix.biases);
}

}  // namespace lockstep::artifact
