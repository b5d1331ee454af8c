// The table of CPU kernels: pure functions on pointers and sizes. They allocate nothing, know no model, and every
// instruction set's table gives the same bits (docs/numerics.md).
//
// Layouts are row-major and dense unless a stride is named. Ranges [begin, end) let callers split the work over
// threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/element_type.hpp"

namespace lockstep::kernels {

/// Affine weights as the pack stores them (docs/numerics.md N3): per row a little-endian bit stream of codes, and one
/// scale and bias per `group` inputs.
struct AffineMatrix {
  const std::uint8_t* codes = nullptr;
  const std::byte *scales = nullptr, *biases = nullptr;
  ElementType scale_type = ElementType::BF16;
  std::int64_t rows = 0, cols = 0;
  int bits = 4, group = 64;
};

/// Affine weights re-laid for vector kernels (src/kernels/cpu/packed.hpp): blocks of 16 output rows, 64-byte aligned.
struct PackedMatrix {
  const std::byte* data = nullptr;
  std::int64_t rows = 0, cols = 0;
  int bits = 4, group = 64;
  bool wide_scales = false;  ///< scales and biases are binary32, not bf16
};

struct DenseMatrix {
  const std::byte* data = nullptr;
  ElementType type = ElementType::BF16;
  std::int64_t rows = 0, cols = 0;
};

/// Activations quantised per row and group of inputs: values [rows, cols], steps and sums [rows, cols / group].
struct QuantisedRows {
  const std::int16_t* values = nullptr;
  const float* steps = nullptr;
  const std::int32_t* sums = nullptr;
  std::int64_t rows = 0, cols = 0;
  int group = 64;
  /// Only for packed_rows(): activation row t of the product is row source[t]; null when it is row t.
  const std::int32_t* source = nullptr;
};

/// One layer's keys and values of one sequence in pages of kPageTokens positions. Inside a page the layer's block holds
/// K [tokens, kv_heads, head_dim], V likewise, and pooled index keys [tokens / ratio, index_dim], all of `type`.
struct PagedKeys {
  const std::byte* const* pages = nullptr;
  std::size_t keys_offset = 0, values_offset = 0, index_offset = 0;  ///< bytes from the start of a page
  ElementType type = ElementType::BF16;
  std::int64_t kv_heads = 0, head_dim = 0, index_dim = 0, ratio = 4;
};
inline constexpr std::int64_t kPageTokens = 64;
/// Attended positions are cut into blocks of this many (docs/numerics.md N5).
inline constexpr std::int64_t kAttentionBlock = 64;

/// Rotation angles of one position: cos and sin of `rotary_dim / 2` frequencies.
struct Rotation {
  const float *cos = nullptr, *sin = nullptr;
  std::int64_t half = 0;
};

/// One head's delta-rule step (docs/numerics.md N6). State matrices are [key_dim, value_dim].
struct DeltaStep {
  const float *state_in, *k, *q, *v;
  float decay, beta;
  std::int64_t key_dim, value_dim;
  float* state_out;  ///< may equal state_in
  float* delta;      ///< [value_dim], kept by captures
  float* out;        ///< [value_dim]
};

struct Kernels {
  std::string_view name;
  /// Multiply-adds that take about as long as handing a share of work to another thread (some 10 us): less is not worth
  /// a thread. The scalar kernels, whose fma is a call of the C library, do 1 in a ns, vectors 50 and more.
  std::int64_t share_work;

  // Matrices. out[t * out_stride + r] for rows r in [begin, end) and every activation row t.
  void (*quantise_rows)(const float* x, std::int64_t rows, std::int64_t cols, int group, std::int16_t* values,
                        float* steps, std::int32_t* sums);
  void (*affine_rows)(const AffineMatrix&, const QuantisedRows&, std::int64_t begin, std::int64_t end, float* out,
                      std::int64_t out_stride);
  /// The same product with activations left in binary32 and weights dequantised: an oracle that separates the error of
  /// 16-bit activations from other causes.
  void (*affine_rows_unquantised)(const AffineMatrix&, const float* x, std::int64_t x_rows, std::int64_t begin,
                                  std::int64_t end, float* out, std::int64_t out_stride);
  void (*dense_rows)(const DenseMatrix&, const float* x, std::int64_t x_rows, std::int64_t begin, std::int64_t end,
                     float* out, std::int64_t out_stride);
  /// Vector tables only, else null. Lays out the blocks [begin, end) of 16 output rows; `out` is the first block's
  /// place, packed_block_bytes() each.
  void (*pack_blocks)(const AffineMatrix&, std::int64_t begin, std::int64_t end, std::byte* out);
  /// affine_rows() for the rows of the blocks [begin, end).
  void (*packed_rows)(const PackedMatrix&, const QuantisedRows&, std::int64_t begin, std::int64_t end, float* out,
                      std::int64_t out_stride);
  /// Vector tables only, else null. Runs `rounds` rounds of the integer multiply-adds of packed_rows() on registers and
  /// returns how many multiply-adds of a code and a 16-bit activation they were: the most a product could do.
  double (*integer_peak)(std::int64_t rounds);
  void (*affine_row)(const AffineMatrix&, std::int64_t row, float* out);  ///< one row, dequantised: fma(s, q, b)
  void (*dense_row)(const DenseMatrix&, std::int64_t row, float* out);

  // Norms and hyper-connections.
  /// RMS norm of `groups` consecutive runs of `size` values; the weight runs over all of them.
  void (*rms_norm)(const float* x, const float* weight, std::int64_t groups, std::int64_t size, float eps, float* out);
  /// x / divisor through silu, in place.
  void (*silu_divided)(float* x, std::int64_t n, float divisor);
  /// u[i] = mean over streams of sigmoid(gate[s, i]) * n[s, i].
  void (*gated_mean)(const float* gate, const float* n, std::int64_t streams, std::int64_t hidden, float* u);
  /// inject[s] = 2 sigmoid(inject[s] / streams), in place.
  void (*inject_weights)(float* inject, std::int64_t streams);
  /// x[s, i] += inject[s] * y[i].
  void (*inject)(float* x, const float* weights, const float* y, std::int64_t streams, std::int64_t hidden);

  // Gated DeltaNet.
  /// Depthwise causal convolution and SiLU of channels [begin, end): taps[j] points to the column that weight j of
  /// [channels, kernel] multiplies.
  void (*conv_silu)(const float* const* taps, const float* weight, std::int64_t kernel, std::int64_t begin,
                    std::int64_t end, float* out);
  void (*unit_vector)(const float* x, std::int64_t n, float scale, float* out);
  /// decay = exp(-exp(A_log) softplus(a + dt_bias)), beta = sigmoid(b); `neg_a` holds -exp(A_log).
  void (*gates)(const float* a, const float* b, const float* neg_a, const float* dt_bias, std::int64_t heads,
                float* decay, float* beta);
  void (*delta_step)(const DeltaStep&);
  /// state_out = decay * state_in + k delta^T: what delta_step did to the state, from its captured factors.
  void (*delta_replay)(const float* state_in, const float* k, const float* delta, float decay, std::int64_t key_dim,
                       std::int64_t value_dim, float* state_out);
  void (*gated_norm)(const float* o, const float* z, const float* weight, std::int64_t n, float eps, float* out);

  // Attention.
  /// RMS norm of one head, then rotation of its first 2 * half values (NeoX halves).
  void (*norm_rope)(const float* x, const float* weight, std::int64_t n, float eps, const Rotation&, float* out);
  /// Pools raw index keys [ratio, n]: mean, norm, rotation.
  void (*pool_index_key)(const float* raw, std::int64_t ratio, const float* weight, std::int64_t n, float eps,
                         const Rotation&, float* out);
  void (*narrow)(const float* x, std::int64_t n, ElementType type, std::byte* out);
  void (*widen)(const std::byte* x, std::int64_t n, ElementType type, float* out);
  /// scores[g] for groups [begin, end): sum over index heads of relu(q . K_g), times 1/sqrt(index_dim).
  void (*index_scores)(const PagedKeys&, const float* q, std::int64_t heads, std::int64_t begin, std::int64_t end,
                       float* scores);
  /// Attention of the query heads that share one KV head over `count` positions in ascending order. q and out are
  /// [heads, head_dim]; scratch holds attention_scratch(heads, head_dim) floats.
  void (*attend)(const PagedKeys&, std::int64_t kv_head, const float* q, std::int64_t heads,
                 const std::int32_t* positions, std::int64_t count, float* out, float* scratch);
  void (*sigmoid_gate)(float* x, const float* gate, std::int64_t n);  ///< x *= sigmoid(gate)

  // Selection and mixture of experts.
  /// The k largest of n values as indices, by value descending and index ascending (docs/numerics.md N5). k <= n;
  /// scratch holds n entries.
  void (*top_k)(const float* values, std::int64_t n, std::int64_t k, std::int32_t* indices, std::uint64_t* scratch);
  /// Softmax over n experts in place, then the k best, renormalised in rank order.
  void (*route)(float* logits, std::int64_t n, std::int64_t k, std::int32_t* experts, float* weights,
                std::uint64_t* scratch);
  void (*silu_product)(const float* gate, const float* up, std::int64_t n, float* out);  ///< silu(gate) * up
  /// y = sum over ranks of weights[r] * outputs[r], then + sigmoid(shared_logit) * shared.
  void (*combine)(const float* const* outputs, const float* weights, std::int64_t ranks, const float* shared,
                  float shared_logit, std::int64_t n, float* y);

  // N-gram embedding.
  /// gated[s, i] = sigmoid(sign(d) sqrt(max(|d|, 1e-6))) * value[i], d = key_s . query_s / sqrt(hidden).
  void (*ple_gate)(const float* key, const float* query, const float* value, std::int64_t streams, std::int64_t hidden,
                   float* gated);
  void (*add)(float* x, const float* a, const float* b, std::int64_t n);  ///< x += a + b
};

/// Floats of scratch that attend() needs.
[[nodiscard]] constexpr std::int64_t attention_scratch(std::int64_t heads, std::int64_t head_dim) {
  return 2 * kAttentionBlock * head_dim + heads * (head_dim + 2) + head_dim;
}

/// The tables that this machine can run, fastest first. Never empty.
[[nodiscard]] const std::vector<const Kernels*>& available_kernels();
/// The table called `name`, or null when it does not exist or this machine cannot run it.
[[nodiscard]] const Kernels* find_kernels(std::string_view name);

}  // namespace lockstep::kernels
