#include "backend/cpu/linear.hpp"

namespace lockstep::backend {
namespace {

kernels::ElementType element_type(artifact::DType type) {
  switch (type) {
    case artifact::DType::F32:
      return kernels::ElementType::F32;
    case artifact::DType::F16:
      return kernels::ElementType::F16;
    default:
      return kernels::ElementType::BF16;
  }
}

}  // namespace

kernels::AffineMatrix CpuMatrix::affine(std::int64_t index) const {
  const auto matrix = static_cast<std::size_t>(index) * static_cast<std::size_t>(rows());
  const std::byte* codes = view_.codes + matrix * view_.code_row_bytes();
  return {reinterpret_cast<const std::uint8_t*>(codes),
          view_.scales + matrix * view_.scale_row_bytes(),
          view_.biases + matrix * view_.scale_row_bytes(),
          element_type(view_.scale_dtype),
          rows(),
          cols(),
          view_.bits,
          view_.group};
}

kernels::DenseMatrix CpuMatrix::dense(std::int64_t index) const {
  return {view_.data + static_cast<std::size_t>(index) * view_.matrix_stride, element_type(view_.dtype), rows(),
          cols()};
}

const kernels::QuantisedRows& Activations::quantised(int group) {
  const std::size_t slot = group == 32 ? 0 : (group == 64 ? 1 : 2);
  kernels::QuantisedRows& rows = quantised_.at(slot);
  if (rows.values != nullptr) return rows;
  QuantisedStorage& storage = storage_.at(slot);
  const auto values = static_cast<std::size_t>(rows_ * cols_);
  const std::size_t groups = values / static_cast<std::size_t>(group);
  if (storage.values.size() < values) storage.values.resize(values);
  if (storage.steps.size() < groups) {
    storage.steps.resize(groups);
    storage.sums.resize(groups);
  }
  rows = {storage.values.data(), storage.steps.data(), storage.sums.data(), rows_, cols_, group};
  pool_.parallel_for(groups, 256, [&](std::size_t begin, std::size_t end) {
    const std::size_t first = begin * static_cast<std::size_t>(group);
    kernels_.quantise_rows(x_ + first, static_cast<std::int64_t>(end - begin), group, group,
                           storage.values.data() + first, storage.steps.data() + begin, storage.sums.data() + begin);
  });
  return rows;
}

}  // namespace lockstep::backend
