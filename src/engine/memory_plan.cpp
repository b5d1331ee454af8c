#include "engine/memory_plan.hpp"

#include <algorithm>

#include "decode/generation.hpp"
#include "kernels/cpu/kernels.hpp"

namespace lockstep::engine {

MemoryPlan::MemoryPlan(const artifact::ModelConfig& config, backend::StateType state, const Options& options,
                       std::uint64_t total)
    : total_(total) {
  const bool drafts = options.depth > 0;
  const bool draft_layer = config.draft_layers > 0;
  const auto floats = [](std::int64_t n) { return static_cast<std::uint64_t>(n) * sizeof(float); };
  const std::int64_t attention = std::ranges::count(config.layers, artifact::LayerKind::Attention);
  const std::int64_t layers = std::ssize(config.layers) - attention;
  const std::int64_t matrices = layers * config.linear_value_heads * config.linear_key_dim * config.linear_value_dim;
  std::int64_t columns = layers * (config.conv_kernel - 1) * config.conv_channels();
  std::int64_t row = layers * (config.conv_channels() + config.linear_key_heads * config.linear_key_dim +
                               config.value_size() + config.linear_value_heads);
  if (!config.ple_layers.empty()) {
    columns += (config.ple_conv_kernel - 1) * config.ngram_size * config.wide_size();
    row += config.wide_size();
  }
  const std::int64_t rings =
      (attention + (draft_layer ? 1 : 0)) * backend::raw_key_ring(config.indexer_ratio) * config.indexer_dim;
  const std::int64_t rows = options.depth + 1;
  const std::int64_t hidden = drafts ? (decode::kMaxDepth + 2) * config.wide_size() : 0;
  const std::uint64_t block = backend::page_layout(config, state).bytes;
  page_ = block * static_cast<std::uint64_t>(std::max<std::int64_t>(1, attention) + (drafts ? 1 : 0));
  kept_ = floats(matrices + columns + rings + hidden + config.vocab_size);
  fixed_ = kept_;
  // The second copy of the matrices and the captured rows; without capture a fork of the sequence and two pages of it.
  if (drafts) fixed_ += options.capture ? floats(matrices + rows * row) : kept_ + 2 * page_;
  // Logits of all verified rows, on the device and on the host, and distributions over the vocabulary.
  fixed_ += floats(config.vocab_size) * static_cast<std::uint64_t>(2 * rows + 4 * (rows + decode::kMaxDepth));
  scored_ = floats(2 * decode::kScoredRows * config.vocab_size);
}

std::uint64_t MemoryPlan::pages(std::int64_t tokens) {
  return static_cast<std::uint64_t>((tokens + kernels::kPageTokens - 1) / kernels::kPageTokens);
}

Status MemoryPlan::check_room() const {
  constexpr std::int64_t kLeastTokens = 2;  // of prompt and answer
  if (choice(kLeastTokens) <= total_) return {};
  return fail(ErrorKind::Limit, "a memory plan of {} bytes has no room for a request, which needs at least {}", total_,
              choice(kLeastTokens));
}

std::int64_t MemoryPlan::most_tokens() const {
  if (total_ <= choice(0)) return -1;
  std::int64_t low = 0;
  std::int64_t high = std::int64_t{1} << 32;
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (choice(middle) <= total_) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

std::uint64_t MemoryPlan::bytes_per_token() const {
  return page_ / static_cast<std::uint64_t>(kernels::kPageTokens) + kTokenBytes;
}

}  // namespace lockstep::engine
