// Choosing a CUDA device and saying why one cannot be used, apart from the runtime that is asked.
#pragma once

#include <string>

#include "base/result.hpp"
#include "kernels/cuda/queue.hpp"

namespace lockstep::backend {

/// What the CUDA runtime says of a machine's devices.
class CudaDevices {
 public:
  CudaDevices() = default;
  CudaDevices(const CudaDevices&) = delete;
  CudaDevices& operator=(const CudaDevices&) = delete;
  virtual ~CudaDevices() = default;
  /// Number of devices; negative without a driver that serves, with the runtime's words in `reason`.
  virtual int count(std::string& reason) = 0;
  /// Describes a device. False with the runtime's words in `reason`.
  virtual bool open(int index, kernels::cuda::DeviceInfo& info, std::string& reason) = 0;
};

/// The device of that number, if lockstep can use it. Errors: Unsupported without a driver or a device, for one that
/// cannot be opened, for an architecture before compute capability 8.0 and for too little shared memory; Usage for a
/// number that does not exist.
Result<kernels::cuda::DeviceInfo> choose_cuda_device(CudaDevices& devices, int index);

/// The same with this machine's devices; the memory is what is free now. Errors: also Unsupported when the program was
/// built without CUDA.
Result<kernels::cuda::DeviceInfo> open_cuda_device(int index);

}  // namespace lockstep::backend
