// The model as the layers above see it: named pieces with shapes, independent of how the files spell them.
//
// Views point into mapped files (or into memory that the Artifact owns) and live as long as the Artifact.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "artifact/config.hpp"

namespace lockstep::artifact {

enum class DType : std::uint8_t { F32, F16, BF16, I64, I32, U32, U8, F8E4M3 };
[[nodiscard]] std::size_t dtype_size(DType type);
[[nodiscard]] const char* dtype_name(DType type);  ///< spelling of safetensors: "BF16"
[[nodiscard]] std::optional<DType> dtype_from_name(std::string_view name);
[[nodiscard]] bool is_float(DType type);  ///< F32, F16 or BF16: what weights and scales may be

/// What the planes of a synthetic matrix are made from: streams and multipliers (synth_values.hpp).
struct SynthSource {
  std::uint64_t weight_key = 0, scale_key = 0;  ///< of codes or dense elements, and of scales
  float unit = 0;                               ///< of dense elements
  float step = 0, middle = 0;                   ///< of scales and biases
};

/// A stack of `count` matrices [rows, cols], row-major, each a dense or an affine-quantised one. count > 1 for experts.
///
/// Affine (numerics.md N3): w[r][c] = scale[r][c / group] * code[r][c] + bias[r][c / group]. The codes of a row are one
/// little-endian bit stream of `bits` per element, padded to whole 32-bit words; scales and biases are [rows,
/// cols/group].
struct MatrixView {
  std::string name;
  std::int64_t count = 1, rows = 0, cols = 0;
  bool quantised = false;

  // Dense: element type F32, F16 or BF16; matrix i starts at data + i * matrix_stride bytes.
  DType dtype = DType::BF16;
  const std::byte* data = nullptr;
  std::size_t matrix_stride = 0;

  // Affine: the same strides apply to whole matrices of the stack (codes, scales and biases are contiguous).
  int bits = 0, group = 0;
  const std::byte* codes = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;
  DType scale_dtype = DType::BF16;  ///< F32, F16 or BF16

  /// Of a synthetic matrix, with or without data: a device may make the bytes itself instead of being sent them.
  std::optional<SynthSource> synth;

  /// Whether the bytes are somewhere; those of matrices made on demand are not.
  [[nodiscard]] bool has_data() const { return data != nullptr || codes != nullptr; }
  [[nodiscard]] std::size_t code_row_bytes() const { return static_cast<std::size_t>(cols * bits / 8); }
  [[nodiscard]] std::size_t scale_row_bytes() const {
    return static_cast<std::size_t>(cols / group) * dtype_size(scale_dtype);
  }
};

/// Vectors are widened to f32 once. Norm weights are the effective multipliers: 1 + w where the file stores w.
using Vector = std::vector<float>;

struct HyperConnectionView {
  Vector norm;                       ///< [streams * hidden]
  MatrixView down, up;               ///< [lowrank, wide], [wide, lowrank]
  std::optional<MatrixView> inject;  ///< [streams, wide]; absent in a final mixer
};

struct GatedDeltaNetView {
  MatrixView qkv, z, b, a, out;
  Vector conv;            ///< [channels, kernel]
  Vector a_log, dt_bias;  ///< [value heads]
  Vector norm;            ///< [value dim], plain weight
};

struct AttentionView {
  MatrixView q, k, v, o;  ///< q rows: per head head_dim query rows, then head_dim gate rows
  MatrixView index_qk;    ///< [(heads + 1) * dim, hidden]
  Vector q_norm, k_norm, index_q_norm, index_k_norm;
};

struct MoeView {
  MatrixView router;                                                   ///< [experts, hidden]
  MatrixView gate, up, down;                                           ///< stacks of `experts`
  MatrixView shared_gate, shared_up, shared_down, shared_expert_gate;  ///< shared_expert_gate is [1, hidden]
};

/// Constants of the n-gram hash (docs/artifact.md, "N-gram hash").
struct NgramHash {
  std::vector<std::uint64_t> multipliers;     ///< [ngram_size]
  std::vector<std::uint64_t> sizes, offsets;  ///< [heads]
};

/// Where the rows of a matrix lie in a file: byte offsets of its planes. `codes` is the data of a dense matrix, which
/// has no other plane.
struct RowsFile {
  std::string path;
  std::uint64_t codes = 0, scales = 0, biases = 0;
};

/// The n-gram table: rows of `dim` values. Exactly one of the two forms.
struct NgramTableView {
  std::int64_t rows = 0, dim = 0;
  /// Affine planes or one dense matrix of a side file.
  std::optional<MatrixView> table;
  /// Dense shards of the official layout, in order, each with `rows_per_shard` rows.
  std::vector<MatrixView> shards;
  std::int64_t rows_per_shard = 0;
  std::vector<RowsFile> files;  ///< for reads without the map: one of `table`, or one a shard
};

struct PleView {
  MatrixView key, value;                   ///< [wide, ple_dim], [hidden, ple_dim]
  Vector norm_key, norm_query, norm_conv;  ///< [wide]
  Vector conv;                             ///< [wide, kernel]
  NgramHash hash;
  NgramTableView table;
};

struct LayerView {
  LayerKind kind = LayerKind::Linear;
  std::optional<PleView> ple;
  HyperConnectionView attention_site, mlp_site;
  std::optional<GatedDeltaNetView> linear;
  std::optional<AttentionView> attention;
  MoeView moe;
};

struct DraftView {
  Vector norm_embedding;                ///< [hidden]
  Vector norm_hidden;                   ///< [wide]
  std::int64_t norm_hidden_groups = 1;  ///< 1: one variance over the wide vector; streams: one per stream
  MatrixView fc_embedding, fc_hidden;
  LayerView layer;
  HyperConnectionView mixer;
};

struct ModelView {
  ModelConfig config;
  MatrixView embedding, head;
  std::vector<LayerView> layers;
  HyperConnectionView mixer;
  std::optional<DraftView> draft;
};

}  // namespace lockstep::artifact
