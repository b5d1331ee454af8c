#include "backend/cuda_devices.hpp"

namespace lockstep::backend {
namespace {

/// What the PTX in this program needs.
constexpr int kLeastMajor = 8;
/// What the kernels of a few rows take at most.
constexpr std::size_t kLeastShared = std::size_t{227} << 10;

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
  if (info.shared_memory < kLeastShared) {
    return fail(
        ErrorKind::Unsupported,
        "CUDA device {} ({}) gives a block of threads {} KiB of shared memory; lockstep's kernels take up to {}, "
        "as devices for servers have from compute capability 9.0 on; use such a device or --device cpu",
        index, info.name, info.shared_memory >> 10, kLeastShared >> 10);
  }
  return info;
}

}  // namespace lockstep::backend
