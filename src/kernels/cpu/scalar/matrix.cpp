// Matrix products of the canon (docs/numerics.md N3 and N4).
#include <algorithm>

#include "kernels/cpu/scalar/variant.hpp"

namespace lockstep::kernels::LOCKSTEP_VARIANT {
namespace {

constexpr int kMaxGroup = 128;
/// Activation rows that share one unpacking of a group of codes.
constexpr std::int64_t kRowBlock = 16;

void quantise_rows(const float* x, std::int64_t rows, std::int64_t cols, int group, std::int16_t* values, float* steps,
                   std::int32_t* sums) {
  const std::int64_t groups = cols / group;
  for (std::int64_t i = 0; i < rows * groups; ++i) {
    steps[i] = quantise_group(x + i * group, group, values + i * group, sums + i);
  }
}

LOCKSTEP_INLINE std::int32_t integer_dot(const std::int16_t* q, const std::int16_t* a, int n) {
  std::int32_t sum = 0;
  for (int i = 0; i < n; ++i) sum += static_cast<std::int32_t>(q[i]) * a[i];
  return sum;
}

struct RowSource {
  const std::uint8_t* codes;
  const std::byte *scales, *biases;
};

RowSource row_source(const AffineMatrix& m, std::int64_t row) {
  const std::int64_t scale_bytes = m.cols / m.group * static_cast<std::int64_t>(element_size(m.scale_type));
  return {m.codes + row * (m.cols * m.bits / 8), m.scales + row * scale_bytes, m.biases + row * scale_bytes};
}

/// One output row for up to kRowBlock activation rows, starting at activation row `first`.
void affine_row_block(const AffineMatrix& m, const QuantisedRows& x, std::int64_t row, std::int64_t first,
                      std::int64_t count, float* out, std::int64_t out_stride) {
  const RowSource source = row_source(m, row);
  const std::int64_t groups = m.cols / m.group;
  const std::int64_t groups_per_segment = kSegmentInputs / m.group;
  float segment[kRowBlock] = {};
  float total[kRowBlock] = {};
  std::uint8_t bytes[kMaxGroup];
  std::int16_t codes[kMaxGroup];
  for (std::int64_t g = 0; g < groups; ++g) {
    unpack_codes(source.codes + g * (m.group * m.bits / 8), m.bits, m.group, bytes);
    for (int i = 0; i < m.group; ++i) codes[i] = bytes[i];
    const float s = load_element(source.scales, m.scale_type, g);
    const float b = load_element(source.biases, m.scale_type, g);
    const bool ends = (g + 1) % groups_per_segment == 0 || g + 1 == groups;
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int64_t index = (first + j) * groups + g;
      const std::int32_t dot = integer_dot(codes, x.values + index * m.group, m.group);
      const float t = x.steps[index];
      segment[j] += canon_fma(s * t, static_cast<float>(dot), (b * t) * static_cast<float>(x.sums[index]));
      if (ends) {
        total[j] += segment[j];
        segment[j] = 0.0F;
      }
    }
  }
  for (std::int64_t j = 0; j < count; ++j) out[(first + j) * out_stride + row] = total[j];
}

void affine_rows(const AffineMatrix& m, const QuantisedRows& x, std::int64_t begin, std::int64_t end, float* out,
                 std::int64_t out_stride) {
  for (std::int64_t first = 0; first < x.rows; first += kRowBlock) {
    const std::int64_t count = std::min(kRowBlock, x.rows - first);
    for (std::int64_t row = begin; row < end; ++row) affine_row_block(m, x, row, first, count, out, out_stride);
  }
}

LOCKSTEP_INLINE void dequantise_group(const AffineMatrix& m, const RowSource& source, std::int64_t g, float* out) {
  std::uint8_t bytes[kMaxGroup];
  unpack_codes(source.codes + g * (m.group * m.bits / 8), m.bits, m.group, bytes);
  const float s = load_element(source.scales, m.scale_type, g);
  const float b = load_element(source.biases, m.scale_type, g);
  for (int i = 0; i < m.group; ++i) out[i] = canon_fma(s, static_cast<float>(bytes[i]), b);
}

void affine_row(const AffineMatrix& m, std::int64_t row, float* out) {
  const RowSource source = row_source(m, row);
  for (std::int64_t g = 0; g < m.cols / m.group; ++g) dequantise_group(m, source, g, out + g * m.group);
}

void affine_rows_unquantised(const AffineMatrix& m, const float* x, std::int64_t x_rows, std::int64_t begin,
                             std::int64_t end, float* out, std::int64_t out_stride) {
  for (std::int64_t row = begin; row < end; ++row) {
    const RowSource source = row_source(m, row);
    for (std::int64_t t = 0; t < x_rows; ++t) {
      float lanes[32] = {};
      float w[kMaxGroup];
      for (std::int64_t g = 0; g < m.cols / m.group; ++g) {
        dequantise_group(m, source, g, w);
        const float* xs = x + t * m.cols + g * m.group;
        for (int i = 0; i < m.group; i += 32) {
          for (int j = 0; j < 32; ++j) lanes[j] = canon_fma(w[i + j], xs[i + j], lanes[j]);
        }
      }
      out[t * out_stride + row] = fold32_lanes(lanes);
    }
  }
}

void dense_rows(const DenseMatrix& m, const float* x, std::int64_t x_rows, std::int64_t begin, std::int64_t end,
                float* out, std::int64_t out_stride) {
  const std::size_t n = static_cast<std::size_t>(m.cols);
  const std::size_t size = element_size(m.type);
  for (std::int64_t row = begin; row < end; ++row) {
    const std::byte* w = m.data + static_cast<std::size_t>(row) * n * size;
    for (std::int64_t t = 0; t < x_rows; ++t) {
      const float* xs = x + t * m.cols;
      const auto input = [xs](std::size_t i) { return xs[i]; };
      float y;
      if (m.type == ElementType::BF16) {
        y = fold32_products(
            n,
            [w](std::size_t i) {
              std::uint16_t bits;
              std::memcpy(&bits, w + 2 * i, 2);
              return bf16_to_float(bits);
            },
            input);
      } else {
        const ElementType type = m.type;
        y = fold32_products(
            n, [w, type](std::size_t i) { return load_element(w, type, static_cast<std::int64_t>(i)); }, input);
      }
      out[t * out_stride + row] = y;
    }
  }
}

void dense_row(const DenseMatrix& m, std::int64_t row, float* out) {
  load_elements(m.data + row * m.cols * static_cast<std::int64_t>(element_size(m.type)), m.type, m.cols, out);
}

}  // namespace

void install_matrix(Kernels& table) {
  table.quantise_rows = quantise_rows;
  table.affine_rows = affine_rows;
  table.affine_rows_unquantised = affine_rows_unquantised;
  table.dense_rows = dense_rows;
  table.affine_row = affine_row;
  table.dense_row = dense_row;
}

}  // namespace lockstep::kernels::LOCKSTEP_VARIANT
