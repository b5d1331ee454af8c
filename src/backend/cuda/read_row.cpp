// Rows of weights read back from a device.
#include "backend/cuda/device_backend.hpp"

namespace lockstep::backend {

Status read_cuda_row(Backend& backend, const Matrix& matrix, std::int64_t index, std::int64_t row,
                     std::span<float> out) {
  const auto& device = static_cast<const DeviceMatrix&>(matrix);
  // Matrices of a stack begin at whole tiles (kernels/cuda/linear.hpp); a lookup counts their rows.
  const std::int64_t rows = device.quantised ? device.affine.tiles() * 16 : matrix.rows();
  const auto id = static_cast<std::int32_t>(index * rows + row);
  return static_cast<DeviceBackend&>(backend).read_back(matrix, id, out);
}

Status DeviceBackend::read_back(const Matrix& matrix, std::int32_t id, std::span<float> out) {
  const BufferPtr values = LOCKSTEP_TRY(allocate(out.size_bytes()));
  lookup(matrix, {&id, 1}, 1, values->floats());
  read(out.data(), values->data(), out.size_bytes());
  return health();
}

}  // namespace lockstep::backend
