// Blocks and products of a few rows: the usual case of decoding.
#include "backend/cuda/device_backend.hpp"
#include "backend/cuda/expert_matrices.hpp"
#include "kernels/cuda/few_experts.hpp"
#include "kernels/cuda/several.hpp"

namespace lockstep::backend {
namespace {

namespace cuda = kernels::cuda;

}  // namespace

void DeviceBackend::delta_block(const HyperWeights& site, const DeltaWeights& weights, std::span<const DeltaSlot> slots,
                                const BlockRows& rows, float* x) {
  hyper_read(site, x, rows.count, rows.u, rows.inject);
  delta_into(weights, rows.u, slots, rows.count, {rows.y, x, rows.inject, static_cast<int>(config_.streams)});
}

void DeviceBackend::attention_block(const HyperWeights& site, const AttentionWeights& weights,
                                    std::span<const AttentionSlot> slots, const BlockRows& rows, float* x) {
  hyper_read(site, x, rows.count, rows.u, rows.inject);
  attention_into(weights, rows.u, slots, rows.count, {rows.y, x, rows.inject, static_cast<int>(config_.streams)});
}

void DeviceBackend::experts_block(const HyperWeights& site, const MoeWeights& weights, const BlockRows& rows,
                                  float* x) {
  hyper_read(site, x, rows.count, rows.u, rows.inject);
  experts_into(weights, rows.u, rows.count, {rows.y, x, rows.inject, static_cast<int>(config_.streams)});
}

void DeviceBackend::add_tail(const cuda::Tail& tail, std::int64_t rows) {
  if (tail.x != nullptr) hyper_write(tail.inject, tail.y, rows, tail.x);
}

void DeviceBackend::multiply_into(const Matrix& matrix, Input& input, const cuda::Tail& tail) {
  const auto& device = static_cast<const DeviceMatrix&>(matrix);
  if (device.quantised && tail.streams <= cuda::kTailStreams && cuda::few_takes(device.affine, input.rows())) {
    const cuda::ActivationRows* made = input.made(device.affine.group);
    cuda::few_product_into(queue_, device.affine, {made == nullptr ? input.x() : nullptr, made, nullptr, input.rows()},
                           tail);
    return;
  }
  if (device.quantised && tail.streams <= cuda::kTailStreams && cuda::several_takes(device.affine, input.rows())) {
    cuda::several_product_into(queue_, device.affine, input.quantised(device.affine.group), tail);
    return;
  }
  multiply({{matrix, input, tail.y}});
  add_tail(tail, input.rows());
}

bool DeviceBackend::multiply_few(std::initializer_list<Product> products) {
  constexpr std::size_t kMost = 6;
  for (const Product& product : products) {
    const auto& device = static_cast<const DeviceMatrix&>(product.matrix);
    if (!device.quantised || !cuda::few_takes(device.affine, product.x.rows())) return false;
  }
  for (const int bits : {4, 8}) {
    std::array<cuda::FewProduct, kMost> some;
    std::size_t count = 0;
    const Input* input = nullptr;
    for (const Product& product : products) {
      const auto& device = static_cast<const DeviceMatrix&>(product.matrix);
      if (device.affine.bits != bits) continue;
      some.at(count++) = {&device.affine, product.out};
      input = &product.x;
    }
    if (count == 0) continue;
    cuda::few_products(queue_, std::span(some).first(count), {input->x(), nullptr, nullptr, input->rows()}, {});
  }
  return true;
}

bool DeviceBackend::experts_few(const MoeWeights& weights, const float* u, std::int64_t rows, const cuda::Tail& tail) {
  const std::int64_t ranks = config_.experts_per_token;
  const auto few = expert_matrices(weights, rows, ranks);
  const DeviceMatrix& router = device_of(weights.router);
  const DeviceMatrix& side_matrix = device_of(weights.shared_expert_gate);
  if (!few || !router.quantised) return false;
  if (!cuda::few_takes(router.affine, rows) || !cuda::few_experts_take(*few)) return false;
  if (side_matrix.quantised && !cuda::few_takes(side_matrix.affine, rows)) return false;
  const std::int64_t inner_rows = cuda::few_inner_rows(rows, ranks);
  auto* logits = scratch(0, rows, config_.experts);
  auto* shared_logit = scratch(2, rows, 1);
  auto* choice = scratch<std::int32_t>(12, rows + 1, 4 * ranks + 4);  // nobody else's: it keeps its marks
  Input input(*this, u, rows, config_.hidden_size);
  Input inner(*this, nullptr, inner_rows, config_.expert_dim, 1);
  const cuda::ActivationRows& kept = input.to_fill(router.affine.group);
  const cuda::SideProduct side{&side_matrix.dense, u, shared_logit};
  const std::array<cuda::FewProduct, 2> products{{{&router.affine, logits}, {&side_matrix.affine, shared_logit}}};
  // The shared expert's gate shares the router's launch as one more matrix, as a dense row or as 4 bits beside 8.
  const bool quantised = side_matrix.quantised;
  const bool same = quantised && side_matrix.affine.bits == router.affine.bits;
  const bool fits = quantised && !same && router.affine.bits == 8;
  cuda::few_products(queue_, std::span(products).first(same ? 2 : 1), {u, nullptr, &kept, rows},
                     {quantised ? nullptr : &side, fits ? &products[1] : nullptr});
  if (quantised && !same && !fits) {
    cuda::few_products(queue_, std::span(products).last(1), {u, nullptr, nullptr, rows}, {});
  }
  const cuda::ActivationRows& inner_kept = inner.to_fill(device_of(weights.down).affine.group);
  cuda::few_experts_inner(queue_, *few, logits, kept, inner_kept, choice);
  const bool into = tail.streams <= cuda::kTailStreams;
  cuda::few_experts_down(queue_, *few, inner_kept, choice, shared_logit,
                         into ? tail : cuda::Tail{tail.y, nullptr, nullptr, 0});
  if (!into) add_tail(tail, rows);
  return true;
}

}  // namespace lockstep::backend
