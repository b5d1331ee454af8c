#include "artifact/affine_quantiser.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "artifact/module_reader.hpp"
#include "numerics/affine.hpp"
#include "numerics/bits.hpp"

namespace lockstep::artifact {
namespace {

constexpr std::size_t kMaxGroup = 128;

float round_to_bf16(float x) {
  return numerics::bf16_to_float(numerics::float_to_bf16(x));
}

struct Group {
  float scale, bias;  // representable in bf16
};

Group fit(std::span<const float> values, float top_code) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const bool from_below = std::fabs(*low) > std::fabs(*high);
  const float edge = from_below ? *low : *high, far = from_below ? *high : *low;
  const float width = std::max((*high - *low) / top_code, 1e-7F);
  float step = from_below ? width : -width;
  const float q0 = std::nearbyint(edge / step);
  float bias = 0.0F;
  if (q0 != 0.0F) {
    step = edge / q0;
    bias = edge;
  }
  std::uint16_t scale = numerics::float_to_bf16(step);
  while (std::fabs((far - bias) / numerics::bf16_to_float(scale)) > top_code + 0.5F) ++scale;
  return {numerics::bf16_to_float(scale), bias};
}

void quantise_group(std::span<const float> values, float top_code, const Group& group, std::uint8_t* codes) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float code = std::nearbyint((values[i] - group.bias) / group.scale);
    codes[i] = static_cast<std::uint8_t>(std::min(std::max(code, 0.0F), top_code));
  }
}

float load_float(DType type, const std::byte* plane, std::size_t index) {
  float value = 0;
  widen(type, plane + index * dtype_size(type), 1, &value);
  return value;
}

}  // namespace

void pack_codes(std::span<const std::uint8_t> codes, int bits, std::byte* out) {
  std::uint64_t pending = 0;
  int filled = 0;
  for (const std::uint8_t code : codes) {
    pending |= static_cast<std::uint64_t>(code) << filled;
    filled += bits;
    if (filled < 32) continue;
    const auto word = static_cast<std::uint32_t>(pending);
    std::memcpy(out, &word, sizeof(word));
    out += sizeof(word);
    pending >>= 32;
    filled -= 32;
  }
}

void quantise_row(std::span<const float> values, Precision precision, const AffineRow& out) {
  const auto size = static_cast<std::size_t>(precision.group);
  const auto top_code = static_cast<float>((1 << precision.bits) - 1);
  std::array<float, kMaxGroup> rounded{};
  std::array<std::uint8_t, kMaxGroup> codes{};
  for (std::size_t g = 0; g < values.size() / size; ++g) {
    for (std::size_t i = 0; i < size; ++i) rounded[i] = round_to_bf16(values[g * size + i]);
    const Group group = fit(std::span(rounded).first(size), top_code);
    // A scale of zero, of weights that are too large, is for the caller to refuse.
    if (group.scale != 0) quantise_group(std::span(rounded).first(size), top_code, group, codes.data());
    out.scales[g] = numerics::float_to_bf16(group.scale);
    out.biases[g] = numerics::float_to_bf16(group.bias);
    pack_codes(std::span(codes).first(size), precision.bits,
               out.codes + g * size * static_cast<std::size_t>(precision.bits) / 8);
  }
}

void read_row(const MatrixView& matrix, std::int64_t index, std::int64_t row, float* out) {
  const auto cols = static_cast<std::size_t>(matrix.cols);
  if (!matrix.quantised) {
    const std::size_t row_bytes = cols * dtype_size(matrix.dtype);
    const std::byte* data = matrix.data + static_cast<std::size_t>(index) * matrix.matrix_stride;
    widen(matrix.dtype, data + static_cast<std::size_t>(row) * row_bytes, cols, out);
    return;
  }
  const auto flat = static_cast<std::size_t>(index * matrix.rows + row), group = static_cast<std::size_t>(matrix.group);
  std::vector<std::uint8_t> codes(cols);
  const std::byte* stream = matrix.codes + flat * matrix.code_row_bytes();
  numerics::unpack_codes(reinterpret_cast<const std::uint8_t*>(stream), matrix.bits, static_cast<int>(cols),
                         codes.data());
  for (std::size_t g = 0; g < cols / group; ++g) {
    const float scale = load_float(matrix.scale_dtype, matrix.scales, flat * (cols / group) + g);
    const float bias = load_float(matrix.scale_dtype, matrix.biases, flat * (cols / group) + g);
    for (std::size_t i = g * group; i < (g + 1) * group; ++i) out[i] = scale * static_cast<float>(codes[i]) + bias;
  }
}

}  // namespace lockstep::artifact
