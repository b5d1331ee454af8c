// Blocks of up to 16 rows: parallel sequences that decode one row each.
#include "backend/cuda/device_backend.hpp"
#include "backend/cuda/expert_matrices.hpp"
#include "kernels/cuda/several.hpp"
#include "kernels/cuda/several_experts.hpp"

namespace lockstep::backend {
namespace {

namespace cuda = kernels::cuda;

}  // namespace

bool DeviceBackend::multiply_several(std::span<const cuda::AffineProduct> products) {
  constexpr std::size_t kMost = 6;
  std::array<cuda::FewProduct, kMost> some;
  std::size_t count = 0;
  for (const cuda::AffineProduct& product : products) {
    const bool same = product.selection == nullptr && product.x == products.front().x;
    if (!same || count == kMost || !cuda::several_takes(*product.weights, product.x->rows)) return false;
    some.at(count++) = {product.weights, product.out};
  }
  if (count == 0) return false;
  cuda::several_products(queue_, std::span(some).first(count), *products.front().x);
  return true;
}

bool DeviceBackend::experts_several(const MoeWeights& weights, const float* u, std::int64_t rows,
                                    const cuda::Tail& tail) {
  const std::int64_t ranks = config_.experts_per_token;
  const std::int64_t hidden = config_.hidden_size;
  const auto experts = expert_matrices(weights, rows, ranks);
  if (!experts || !cuda::several_experts_take(*experts)) return false;
  auto* logits = scratch(0, rows, config_.experts);
  auto* shared_logit = scratch(2, rows, 1);
  Input input(*this, u, rows, hidden);
  multiply({{*weights.router, input, logits}, {*weights.shared_expert_gate, input, shared_logit}});
  const std::int64_t inner_rows = cuda::few_inner_rows(rows, ranks);
  const std::int64_t most_rows = cuda::few_inner_rows(cuda::kSeveralRows, ranks);
  Input inner(*this, nullptr, inner_rows, config_.expert_dim, 1);
  cuda::SeveralScratch parts;
  parts.choice = scratch<std::int32_t>(8, rows + 1, 4 * ranks + 4);
  parts.arrived = static_cast<std::uint32_t*>(arrived_.bytes(*this, sizeof(std::uint32_t)));
  parts.outputs =
      static_cast<float*>(scratch_.at(6).bytes(*this, static_cast<std::size_t>(most_rows * hidden) * sizeof(float)));
  parts.inner = &inner.to_fill(64);
  const bool into = tail.streams <= cuda::kTailStreams;
  cuda::several_experts(queue_, *experts, logits, shared_logit, input.quantised(64), parts,
                        into ? tail : cuda::Tail{tail.y, nullptr, nullptr, 0});
  if (!into) add_tail(tail, rows);
  return true;
}

}  // namespace lockstep::backend
