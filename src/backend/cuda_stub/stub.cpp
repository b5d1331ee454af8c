// Linked instead of backend/cuda when the build has no CUDA.
#include "backend/cuda/cuda_backend.hpp"

namespace lockstep::backend {

bool cuda_built() {
  return false;
}

Result<std::unique_ptr<Backend>> create_cuda_backend(const CudaOptions& /*options*/) {
  return fail(ErrorKind::Unsupported,
              "this lockstep was built without CUDA; build it with nvcc installed (-DLOCKSTEP_CUDA=ON), or use "
              "--device cpu");
}

}  // namespace lockstep::backend
