#include "model/work.hpp"

#include <algorithm>

namespace lockstep::model {
namespace {

/// Adds `share` of a stack of matrices.
void add(const artifact::MatrixView& matrix, Work& work, double share = 1.0) {
  work.bytes += matrix_bytes(matrix) * share;
  const double macs = static_cast<double>(matrix.count * matrix.rows) * static_cast<double>(matrix.cols) * share;
  (matrix.quantised ? work.integer_macs : work.float_macs) += macs;
}

void add(const artifact::HyperConnectionView& site, Work& work) {
  add(site.down, work);
  add(site.up, work);
  if (site.inject) add(*site.inject, work);
}

Work layer_work(const artifact::LayerView& layer, double chosen_experts) {
  Work work;
  add(layer.attention_site, work);
  add(layer.mlp_site, work);
  if (layer.ple) {
    add(layer.ple->key, work);
    add(layer.ple->value, work);
  }
  if (layer.linear) {
    for (const auto* matrix :
         {&layer.linear->qkv, &layer.linear->z, &layer.linear->b, &layer.linear->a, &layer.linear->out}) {
      add(*matrix, work);
    }
  }
  if (layer.attention) {
    for (const auto* matrix : {&layer.attention->q, &layer.attention->k, &layer.attention->v, &layer.attention->o,
                               &layer.attention->index_qk}) {
      add(*matrix, work);
    }
  }
  const artifact::MoeView& moe = layer.moe;
  for (const auto* matrix : {&moe.gate, &moe.up, &moe.down}) add(*matrix, work, chosen_experts);
  for (const auto* matrix :
       {&moe.router, &moe.shared_gate, &moe.shared_up, &moe.shared_down, &moe.shared_expert_gate}) {
    add(*matrix, work);
  }
  return work;
}

/// Bytes of state that one token of one layer touches.
double state_bytes(const artifact::ModelConfig& config, const artifact::LayerView& layer, backend::StateType state,
                   std::int64_t context) {
  if (layer.linear) {
    return 2.0 * 4.0 * static_cast<double>(config.value_size()) * static_cast<double>(config.linear_key_dim);
  }
  const double element = state == backend::StateType::F32 ? 4 : 2;
  const std::int64_t attended = std::min(context, config.indexer_budget + config.indexer_ratio);
  const std::int64_t pooled = context > config.indexer_budget ? context / config.indexer_ratio : 0;
  return element * static_cast<double>(attended * 2 * config.kv_heads * config.head_dim + pooled * config.indexer_dim);
}

}  // namespace

double matrix_bytes(const artifact::MatrixView& matrix) {
  const auto rows = static_cast<double>(matrix.count * matrix.rows);
  if (matrix.quantised) return rows * static_cast<double>(matrix.code_row_bytes() + 2 * matrix.scale_row_bytes());
  return rows * static_cast<double>(matrix.cols) * static_cast<double>(artifact::dtype_size(matrix.dtype));
}

Work prompt_work(const artifact::ModelView& view) {
  Work work;
  const double chosen = static_cast<double>(view.config.experts_per_token) /
                        static_cast<double>(std::max<std::int64_t>(1, view.config.experts));
  for (const artifact::LayerView& layer : view.layers) {
    const Work part = layer_work(layer, chosen);
    work.bytes += part.bytes;
    work.integer_macs += part.integer_macs;
    work.float_macs += part.float_macs;
  }
  return work;
}

Work decode_work(const artifact::ModelView& view, backend::StateType state, std::int64_t context) {
  Work work = prompt_work(view);
  add(view.mixer, work);
  add(view.head, work);
  for (const artifact::LayerView& layer : view.layers) work.bytes += state_bytes(view.config, layer, state, context);
  return work;
}

}  // namespace lockstep::model
