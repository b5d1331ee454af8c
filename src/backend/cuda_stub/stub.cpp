// Linked instead of backend/cuda when the build has no CUDA.
#include "backend/cuda/cuda_backend.hpp"
#include "backend/cuda_devices.hpp"

namespace lockstep::backend {

bool cuda_built() {
  return false;
}

namespace {

Status not_built() {
  return fail(ErrorKind::Unsupported,
              "this lockstep was built without CUDA; build it with nvcc installed (-DLOCKSTEP_CUDA=ON), or use "
              "--device cpu");
}

}  // namespace

Result<kernels::cuda::DeviceInfo> open_cuda_device(int /*index*/) {
  LOCKSTEP_TRY(not_built());
  return kernels::cuda::DeviceInfo{};
}

Result<std::unique_ptr<Backend>> create_cuda_backend(const CudaOptions& /*options*/) {
  LOCKSTEP_TRY(not_built());
  return std::unique_ptr<Backend>();
}

Status read_cuda_row(Backend& /*backend*/, const Matrix& /*matrix*/, std::int64_t /*index*/, std::int64_t /*row*/,
                     std::span<float> /*out*/) {
  return not_built();
}

}  // namespace lockstep::backend
