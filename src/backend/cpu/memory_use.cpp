#include "backend/cpu/memory_use.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <numeric>

#include "artifact/model_walk.hpp"
#include "kernels/cpu/packed.hpp"

namespace lockstep::backend {
namespace {

/// Quantised activations by group size, as QuantisedStorage keeps them: bytes of the largest input of each.
class QuantisedInputs {
 public:
  void add(const artifact::MatrixView& matrix, std::int64_t rows) {
    if (!matrix.quantised) return;
    const std::int64_t values = rows * matrix.cols;
    std::int64_t& most = bytes_.at(matrix.group == 32 ? 0 : (matrix.group == 64 ? 1 : 2));
    most = std::max(most, 2 * values + values / matrix.group * 8);
  }
  [[nodiscard]] std::int64_t bytes() const { return std::accumulate(bytes_.begin(), bytes_.end(), std::int64_t{0}); }

 private:
  std::array<std::int64_t, 3> bytes_{};
};

void add_site(const artifact::HyperConnectionView& site, std::int64_t rows, QuantisedInputs& inputs) {
  inputs.add(site.down, rows);
  inputs.add(site.up, rows);
  if (site.inject) inputs.add(*site.inject, rows);
}

void add_layer(const artifact::LayerView& layer, const ScratchUse& use, std::int64_t places, QuantisedInputs& inputs,
               QuantisedInputs& expert_inputs) {
  const std::int64_t rows = use.rows;
  add_site(layer.attention_site, rows, inputs);
  add_site(layer.mlp_site, rows, inputs);
  if (layer.ple) {
    for (const auto* matrix : {&layer.ple->key, &layer.ple->value}) inputs.add(*matrix, rows);
  }
  if (layer.linear) {
    const artifact::GatedDeltaNetView& w = *layer.linear;
    for (const auto* matrix : {&w.qkv, &w.z, &w.b, &w.a, &w.out}) inputs.add(*matrix, rows);
  }
  if (layer.attention) {
    const artifact::AttentionView& w = *layer.attention;
    for (const auto* matrix : {&w.q, &w.k, &w.v, &w.o, &w.index_qk}) inputs.add(*matrix, rows);
  }
  const artifact::MoeView& moe = layer.moe;
  for (const auto* matrix :
       {&moe.router, &moe.shared_gate, &moe.shared_up, &moe.shared_down, &moe.shared_expert_gate}) {
    inputs.add(*matrix, rows);
  }
  // Packed gate and up take the rows of the call, else each place has a row of its own.
  const bool by_row = use.packed && moe.gate.quantised && moe.up.quantised;
  for (const auto* matrix : {&moe.gate, &moe.up})
    by_row ? inputs.add(*matrix, rows) : expert_inputs.add(*matrix, places);
  expert_inputs.add(moe.down, places);
}

std::int64_t quantised_bytes(const artifact::ModelView& view, const ScratchUse& use, std::int64_t places) {
  QuantisedInputs inputs;
  QuantisedInputs expert_inputs;
  for (const artifact::LayerView& layer : view.layers) add_layer(layer, use, places, inputs, expert_inputs);
  add_site(view.mixer, use.rows, inputs);
  inputs.add(view.head, use.rows);
  if (use.draft && view.draft) {
    add_layer(view.draft->layer, use, places, inputs, expert_inputs);
    add_site(view.draft->mixer, use.rows, inputs);
    inputs.add(view.draft->fc_embedding, use.rows);
    inputs.add(view.draft->fc_hidden, use.rows * view.config.streams);
  }
  return inputs.bytes() + expert_inputs.bytes();
}

bool gathers(const artifact::LayerView& layer, const ScratchUse& use) {
  return !(use.integer && use.packed && layer.moe.gate.quantised && layer.moe.up.quantised);
}

/// Floats of the twelve buffers, in the order of the operations that share them (CpuBackend::scratch_).
std::int64_t scratch_floats(const artifact::ModelView& view, const ScratchUse& use) {
  const artifact::ModelConfig& c = view.config;
  std::array<std::int64_t, 12> most{};
  const auto need = [&](std::initializer_list<std::int64_t> widths, std::int64_t rows) {
    std::size_t slot = 0;
    for (const std::int64_t width : widths) {
      most.at(slot) = std::max(most.at(slot), rows * width);
      ++slot;
    }
  };
  const auto site = [&](const artifact::HyperConnectionView& s, std::int64_t rows) {
    need({c.wide_size(), s.down.rows, c.wide_size()}, rows);
  };
  const auto layer = [&](const artifact::LayerView& l) {
    site(l.attention_site, use.rows);
    site(l.mlp_site, use.rows);
    if (l.ple) need({c.wide_size(), c.hidden_size, c.wide_size(), c.wide_size(), c.wide_size()}, use.rows);
    if (l.linear) {
      need({c.conv_channels(), c.value_size(), c.linear_value_heads, c.linear_value_heads, c.conv_channels(),
            c.linear_value_heads, c.linear_value_heads, 2 * c.linear_key_heads * c.linear_key_dim, c.value_size(),
            c.value_size()},
           use.rows);
    }
    if (l.attention) {
      const std::int64_t q = c.attention_heads * c.head_dim;
      const std::int64_t kv = c.kv_heads * c.head_dim;
      need({2 * q, kv, kv, (c.indexer_heads + 1) * c.indexer_dim, q, q, c.indexer_heads * c.indexer_dim}, use.rows);
      most[7] = std::max(most[7], use.positions / c.indexer_ratio + 1);
      most[8] = std::max(most[8], use.threads * kernels::attention_scratch(c.attention_heads / c.kv_heads, c.head_dim));
    }
    const std::int64_t ranks = c.experts_per_token;
    need({c.experts, ranks, 1, c.shared_expert_dim, c.shared_expert_dim, c.hidden_size, ranks * c.expert_dim,
          ranks * c.expert_dim, ranks * c.hidden_size, gathers(l, use) ? ranks * c.hidden_size : 0},
         use.rows);
  };
  for (const artifact::LayerView& l : view.layers) layer(l);
  if (use.draft && view.draft) {
    layer(view.draft->layer);
    need({c.hidden_size, c.hidden_size, c.wide_size()}, use.rows);
  }
  return std::accumulate(most.begin(), most.end(), std::int64_t{0});
}

}  // namespace

std::uint64_t packed_bytes(const artifact::MatrixView& view) {
  const std::int64_t block =
      view.cols / view.group *
      kernels::packed_group_bytes(view.bits, view.group, view.scale_dtype != artifact::DType::BF16);
  return static_cast<std::uint64_t>(view.count * kernels::packed_blocks(view.rows) * block);
}

bool copies_dense(const artifact::MatrixView& view) {
  constexpr std::uint64_t kLeast = std::uint64_t{2} << 20;
  constexpr std::uint64_t kMost = std::uint64_t{64} << 20;
  return !view.quantised && artifact::matrix_bytes(view) >= kLeast && artifact::matrix_bytes(view) <= kMost;
}

std::uint64_t own_bytes(const artifact::MatrixView& view, bool packs) {
  if (!packs) return 0;
  if (view.quantised) return packed_bytes(view);
  return copies_dense(view) ? artifact::matrix_bytes(view) : 0;
}

std::uint64_t scratch_bytes(const artifact::ModelView& view, const ScratchUse& use) {
  const artifact::ModelConfig& c = view.config;
  const std::int64_t places = use.rows * c.experts_per_token;
  std::int64_t bytes = 4 * scratch_floats(view, use);
  if (use.integer) bytes += quantised_bytes(view, use, places);
  // Attended positions of every row, chosen experts and their order, angles of all positions (which grow by doubling).
  bytes += use.rows * (4 * (c.indexer_budget + c.indexer_ratio) + 8) + places * 16;
  const std::int64_t angles =
      std::min(std::max<std::int64_t>(use.positions, 1024), std::max(c.max_positions, use.positions));
  bytes += angles * c.rotary_dim * 4 + use.positions / c.indexer_ratio * 8;
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace lockstep::backend
