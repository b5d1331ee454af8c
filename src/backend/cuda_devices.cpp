#include "backend/cuda_devices.hpp"

namespace lockstep::backend {
namespace {

/// What the PTX in this program needs.
constexpr int kLeastMajor = 8;

}  // namespace

Result<kernels::cuda::DeviceInfo> choose_cuda_device(CudaDevices& devices, int index) {
  std::string reason;
  const int count = devices.count(reason);
  if (count < 0) {
    return fail(ErrorKind::Unsupported, "CUDA cannot be used on this machine: {}; use --device cpu", reason);
  }
  if (count == 0) return fail(ErrorKind::Unsupported, "this machine has no CUDA device; use --device cpu");
  if (index < 0 || index >= count) {
    return fail(ErrorKind::Usage, "there is no CUDA device {}; this machine has {}, the last is --device cuda:{}",
                index, count, count - 1);
  }
  kernels::cuda::DeviceInfo info;
  if (!devices.open(index, info, reason)) {
    return fail(ErrorKind::Unsupported, "CUDA device {} cannot be opened: {}; use another one or --device cpu", index,
                reason);
  }
  if (info.major < kLeastMajor) {
    return fail(ErrorKind::Unsupported,
                "CUDA device {} ({}) has compute capability {}.{}; lockstep needs {}.0 or later; use a newer device "
                "or --device cpu",
                index, info.name, info.major, info.minor, kLeastMajor);
  }
  return info;
}

}  // namespace lockstep::backend
