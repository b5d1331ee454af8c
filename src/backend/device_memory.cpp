#include "backend/device_memory.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <set>
#include <span>

#include "artifact/model_walk.hpp"
#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/draw.hpp"
#include "kernels/cuda/linear.hpp"

namespace lockstep::backend {
namespace {

namespace cuda = kernels::cuda;

/// The largest four-byte values of each of the backend's scratch buffers; operations take turns with them.
class Slots {
 public:
  void use(std::int64_t rows, std::initializer_list<std::int64_t> widths) {
    std::size_t slot = 0;
    for (const std::int64_t width : widths) raise(slot++, rows * width);
  }
  void raise(std::size_t slot, std::int64_t values) { most_.at(slot) = std::max(most_.at(slot), values); }
  [[nodiscard]] std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (const std::int64_t values : most_) sum += static_cast<std::uint64_t>(values) * 4;
    return sum;
  }

 private:
  std::array<std::int64_t, 16> most_{};
};

void use_attention(const artifact::ModelConfig& config, std::int64_t rows, std::int64_t positions, Slots& slots) {
  const std::int64_t width = config.attention_heads * config.head_dim;
  const std::int64_t kv = config.kv_heads * config.head_dim;
  slots.use(rows, {2 * width, kv, kv, (config.indexer_heads + 1) * config.indexer_dim, width, width,
                   config.indexer_heads * config.indexer_dim});
  cuda::AttentionShape shape;
  shape.ratio = static_cast<int>(config.indexer_ratio);
  shape.budget = static_cast<int>(config.indexer_budget / config.indexer_ratio);
  std::int64_t groups = std::max(1, shape.budget);
  while (groups < positions / config.indexer_ratio) groups *= 2;
  const std::int64_t piece = std::min(kAttentionPieceRows, rows);
  slots.raise(7, piece * groups);
  slots.raise(8, piece * shape.width());
  slots.raise(9, piece);
  slots.raise(10, piece * config.attention_heads * shape.blocks() * (config.head_dim + 2));
}

std::uint64_t quantised_rows(const artifact::ModelView& view, std::int64_t rows) {
  const artifact::ModelConfig& config = view.config;
  std::set<int> groups;
  std::int64_t cols = config.experts_per_token * config.expert_dim;       // one row for each chosen expert
  if (view.draft.has_value()) cols = std::max(cols, config.wide_size());  // all streams of a row at once
  for (const artifact::MatrixPart& part : artifact::walk_model(view).matrices) {
    if (!part.matrix->quantised) continue;
    groups.insert(part.matrix->group);
    cols = std::max(cols, part.matrix->cols);
  }
  constexpr std::uint64_t kBanks = 2;
  // A started chunk of every chosen expert's row is whole.
  const std::int64_t padded = cols + 64 * std::max<std::int64_t>(1, config.experts_per_token);
  std::uint64_t bytes = 0;
  for (const int group : groups) {
    bytes += kBanks *
             (cuda::ActivationRows::digit_bytes(rows, padded) + cuda::ActivationRows::step_bytes(rows, padded, group));
  }
  return bytes;
}

}  // namespace

std::uint64_t device_matrix_bytes(const artifact::MatrixView& view) {
  const auto count = static_cast<std::uint64_t>(view.count);
  if (!view.quantised) {
    const cuda::DenseWeights dense{nullptr, view.count, view.rows, view.cols, view.dtype != artifact::DType::BF16};
    return count * dense.matrix_bytes();
  }
  const cuda::AffineWeights affine{nullptr,    nullptr,
                                   view.count, view.rows,
                                   view.cols,  view.bits <= 4 ? 4 : 8,
                                   view.group, view.scale_dtype != artifact::DType::BF16};
  return count * (affine.matrix_code_bytes() + affine.matrix_pair_bytes());
}

std::uint64_t device_scratch_bytes(const artifact::ModelView& view, std::int64_t rows, std::int64_t positions) {
  const artifact::ModelConfig& config = view.config;
  const std::int64_t wide = config.wide_size();
  const std::int64_t hidden = config.hidden_size;
  const std::int64_t channels = config.conv_channels();
  const std::int64_t values = config.value_size();
  const std::int64_t heads = config.linear_value_heads;
  const std::int64_t ranks = config.experts_per_token;
  const std::int64_t shared = config.shared_expert_dim;
  Slots slots;
  slots.use(rows, {wide, std::max(hidden, config.hc_lowrank), wide, wide, wide});
  slots.use(rows, {channels, values, heads, heads, channels, heads, heads,
                   2 * config.linear_key_heads * config.linear_key_dim, values});
  use_attention(config, rows, positions, slots);
  slots.use(rows + 1, {config.experts, ranks, 1, shared, shared, hidden, ranks * hidden, ranks, 4 * ranks + 4, 0,
                       ranks * config.expert_dim, ranks * config.expert_dim});
  slots.raise(9, 3 * (config.experts + 1));
  slots.raise(12, (rows + 1) * (4 * ranks + 4));
  const std::int64_t angles = positions * config.rotary_dim * static_cast<std::int64_t>(sizeof(float));
  const std::int64_t row_ids = rows * config.ngram_heads() * static_cast<std::int64_t>(sizeof(std::int64_t));
  return slots.bytes() + quantised_rows(view, rows) + static_cast<std::uint64_t>(angles + row_ids) +
         cuda::draw_scratch_bytes(config.vocab_size);
}

}  // namespace lockstep::backend
