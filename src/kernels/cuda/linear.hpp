// Matrix products on CUDA (docs/numerics.md N3 and N4) and the layouts that they want.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cuda/queue.hpp"
#include "kernels/element_type.hpp"

namespace lockstep::kernels::cuda {

/// A stack of affine matrices, laid out for mma.m16n8k32. A tile is 16 output rows, a chunk 64 inputs; codes are
/// [matrix][tile][chunk][piece][lane][16 bytes] with one piece for 4-bit codes and two for 8-bit codes (narrower codes
/// are widened to the next of the two). Lane 4*g + j holds, of rows g and g + 8, the codes of inputs 32*m + 8*j + 0..7
/// for m = 0, 1. Scale and bias are pairs [matrix][tile][group][row g, row g + 8], bf16 or f32.
struct AffineWeights {
  const void* codes = nullptr;
  const void* pairs = nullptr;
  std::int64_t count = 0, rows = 0, cols = 0;
  int bits = 4, group = 64;
  bool wide_pairs = false;  ///< f32 pairs

  [[nodiscard]] std::int64_t tiles() const { return (rows + 15) / 16; }
  [[nodiscard]] std::int64_t chunks() const { return (cols + 63) / 64; }
  [[nodiscard]] std::int64_t groups() const { return cols / group; }
  [[nodiscard]] std::size_t matrix_code_bytes() const {
    return static_cast<std::size_t>(tiles() * chunks() * 128 * bits);
  }
  [[nodiscard]] std::size_t matrix_pair_bytes() const {
    return static_cast<std::size_t>(tiles() * groups() * 16 * (wide_pairs ? 8 : 4));
  }
};

/// A stack of dense matrices, one row a warp: [matrix][row][chunk of 256 inputs][lane][8] in bf16, where the eight are
/// the inputs lane, lane + 32, ... of the chunk; as f32 [..][half][lane][4]. Zeros beyond the last input.
struct DenseWeights {
  const void* data = nullptr;
  std::int64_t count = 0, rows = 0, cols = 0;
  bool wide = false;  ///< f32

  [[nodiscard]] std::int64_t chunks() const { return (cols + 255) / 256; }
  [[nodiscard]] std::size_t matrix_bytes() const {
    return static_cast<std::size_t>(rows * chunks() * 256) * (wide ? 4 : 2);
  }
};

/// Quantised activations: per row and chunk of 64 inputs 128 bytes, [j = 0..3][high digits, low digits][16 bytes], in
/// the order of the weights' codes; a = 256 * high + low with a signed high and an unsigned low digit. Steps are pairs
/// {t, float(A)} per row and group.
struct ActivationRows {
  void* digits = nullptr;
  void* steps = nullptr;
  std::int64_t rows = 0, cols = 0;
  int group = 64;

  [[nodiscard]] std::int64_t chunks() const { return (cols + 63) / 64; }
  [[nodiscard]] static std::size_t digit_bytes(std::int64_t rows, std::int64_t cols) {
    return static_cast<std::size_t>(rows * ((cols + 63) / 64) * 128);
  }
  [[nodiscard]] static std::size_t step_bytes(std::int64_t rows, std::int64_t cols, int group) {
    return static_cast<std::size_t>(rows * (cols / group) * 8);
  }
};

/// Rows first..first+count of a sorted list belong to `expert`.
struct ExpertRun {
  std::int32_t expert, first, count;
};

/// Several matrices of a stack in one product, chosen on the device. Activation row k of the product is row
/// in_rows[k] of the activations (k itself without a list), its result goes to row out_rows[k] of the output.
struct Selection {
  const ExpertRun* runs = nullptr;
  const std::int32_t* run_count = nullptr;
  std::int64_t most_runs = 0;
  const std::int32_t *in_rows = nullptr, *out_rows = nullptr;
  bool single = false;     ///< every run has one row
  std::int64_t pairs = 0;  ///< rows of all runs together
};

/// out[t * rows + r] for every row r of the weights; with a selection, of the selected matrices.
struct AffineProduct {
  const AffineWeights* weights = nullptr;
  const ActivationRows* x = nullptr;
  float* out = nullptr;
  const Selection* selection = nullptr;
};

/// The dot product of a dense one-row matrix with every row [rows, cols], on the side.
struct SideProduct {
  const DenseWeights* weights = nullptr;
  const float* x = nullptr;
  float* out = nullptr;
};

// Layout changes at load. Sources are in the artifact's layout, on the device.
struct AffineSource {
  const std::uint8_t* codes = nullptr;
  const void *scales = nullptr, *biases = nullptr;
  ElementType scale_type = ElementType::BF16;
  int bits = 4;
};
void lay_out_affine(Queue& queue, const AffineSource& source, const AffineWeights& target);
void lay_out_dense(Queue& queue, const void* source, ElementType type, const DenseWeights& target);

/// Quantises x [rows, cols].
void quantise_rows(Queue& queue, const float* x, const ActivationRows& target);
/// silu(gate) * up, both [rows, cols], to be quantised.
struct GatedRows {
  const float *gate = nullptr, *up = nullptr;
  const ActivationRows* target = nullptr;
};
/// One or two such tasks.
void quantise_gated(Queue& queue, std::span<const GatedRows> tasks);
/// Whether quantise_gated_norm() takes heads of `dim` values: 128 or 256.
[[nodiscard]] bool quantise_gated_norm_takes(int dim);
/// Quantises ((o / rms(o)) * weight) * sigmoid(z) of every head of `dim` values: o and z [rows, cols], weight [dim].
/// `dim` is a multiple of the group.
void quantise_gated_norm(Queue& queue, const float* o, const float* z, const float* weight, int dim, float eps,
                         const ActivationRows& target);
/// Up to six products; those of one kind and width share a launch. The group of `x` is that of its weights.
void affine_products(Queue& queue, std::span<const AffineProduct> products);
/// out[t * out_stride + r] for dense weights and activations in f32 [rows, cols].
void dense_product(Queue& queue, const DenseWeights& weights, const float* x, std::int64_t x_rows,
                   const Selection* selection, float* out, std::int64_t out_stride);
/// Rows `ids` [n] of matrix 0, dequantised, each copied `copies` times: out [n, copies * cols].
void affine_lookup(Queue& queue, const AffineWeights& weights, const std::int32_t* ids, std::int64_t n,
                   std::int64_t copies, float* out);
void dense_lookup(Queue& queue, const DenseWeights& weights, const std::int32_t* ids, std::int64_t n,
                  std::int64_t copies, float* out);

}  // namespace lockstep::kernels::cuda
