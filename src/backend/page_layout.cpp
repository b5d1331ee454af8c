#include "backend/backend.hpp"
#include "kernels/cpu/kernels.hpp"

namespace lockstep::backend {

PageLayout page_layout(const artifact::ModelConfig& config, StateType type) {
  const std::size_t element = type == StateType::F32 ? 4 : 2;
  const auto bytes = [element](std::int64_t n) { return (static_cast<std::size_t>(n) * element + 63) / 64 * 64; };
  const std::size_t kv = bytes(kernels::kPageTokens * config.kv_heads * config.head_dim);
  const std::size_t index = bytes(kernels::kPageTokens / config.indexer_ratio * config.indexer_dim);
  return {0, kv, 2 * kv, 2 * kv + index};
}

}  // namespace lockstep::backend
