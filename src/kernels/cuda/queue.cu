#include <cuda_runtime.h>

#include <cstring>

#include "kernels/cuda/queue.hpp"

namespace lockstep::kernels::cuda {
namespace {

cudaStream_t stream_of(void* stream) {
  return static_cast<cudaStream_t>(stream);
}

}  // namespace

int device_count(std::string& reason) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess) return count;
  (void)cudaGetLastError();
  if (code == cudaErrorNoDevice) return 0;
  reason = cudaGetErrorString(code);
  return -1;
}

bool open_device(int index, DeviceInfo& info, std::string& reason) {
  cudaDeviceProp properties{};
  cudaError_t code = cudaSetDevice(index);
  if (code == cudaSuccess) code = cudaGetDeviceProperties(&properties, index);
  if (code == cudaSuccess) code = cudaMemGetInfo(&info.free_memory, &info.total_memory);
  if (code != cudaSuccess) {
    (void)cudaGetLastError();
    reason = cudaGetErrorString(code);
    return false;
  }
  info.name = properties.name;
  info.major = properties.major;
  info.minor = properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  return true;
}

Queue::Queue(int device) : device_(device) {
  if (!begin()) return;
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  stream_ = stream;
}

bool Queue::begin() {
  check(cudaSetDevice(device_), "cudaSetDevice");
  return !failed();
}

Queue::~Queue() {
  (void)cudaSetDevice(device_);
  (void)cudaStreamSynchronize(stream_of(stream_));
  for (void* mark : marks_) {
    if (mark != nullptr) (void)cudaEventDestroy(static_cast<cudaEvent_t>(mark));
  }
  for (const Parcel& parcel : parcels_) {
    (void)cudaFreeHost(parcel.memory);
    if (parcel.sent != nullptr) (void)cudaEventDestroy(static_cast<cudaEvent_t>(parcel.sent));
  }
  (void)cudaStreamDestroy(stream_of(stream_));
}

void Queue::check(int code, const char* what) {
  if (code == 0 || error_ != 0) return;
  error_ = code;
  failed_call_ = what;
}

void Queue::stop() {
  check(cudaErrorMemoryAllocation, "memory for an operation");
}

std::string Queue::error() const {
  return std::string(failed_call_) + ": " + cudaGetErrorString(static_cast<cudaError_t>(error_));
}

void* Queue::allocate(std::size_t bytes) {
  void* memory = nullptr;
  if (!begin()) return nullptr;
  if (cudaMalloc(&memory, bytes == 0 ? 1 : bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    return nullptr;
  }
  check(cudaMemsetAsync(memory, 0, bytes, stream_of(stream_)), "cudaMemset");
  return memory;
}

void Queue::release(void* memory) {
  (void)cudaSetDevice(device_);
  (void)cudaFree(memory);  // waits for kernels that may still use it
}

void Queue::copy(void* to, const void* from, std::size_t bytes) {
  if (!begin() || bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_of(stream_)), "copy on the device");
}

void Queue::upload(void* to, const void* host, std::size_t bytes) {
  if (!begin() || bytes == 0) return;
  check(cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, stream_of(stream_)), "copy to the device");
  wait();
}

void Queue::upload_soon(void* to, const void* host, std::size_t bytes) {
  if (!begin() || bytes == 0) return;
  Parcel& parcel = parcels_[next_parcel_++ % parcels_.size()];
  auto sent = static_cast<cudaEvent_t>(parcel.sent);
  if (sent == nullptr) {
    check(cudaEventCreateWithFlags(&sent, cudaEventDisableTiming), "cudaEventCreate");
    parcel.sent = sent;
  } else {
    check(cudaEventSynchronize(sent), "waiting for a copy to the device");
  }
  if (parcel.size < bytes) {
    (void)cudaFreeHost(parcel.memory);
    parcel.memory = nullptr;
    parcel.size = 0;
    check(cudaMallocHost(&parcel.memory, 2 * bytes), "page-locked memory");
    if (failed()) return;
    parcel.size = 2 * bytes;
  }
  std::memcpy(parcel.memory, host, bytes);
  check(cudaMemcpyAsync(to, parcel.memory, bytes, cudaMemcpyHostToDevice, stream_of(stream_)), "copy to the device");
  check(cudaEventRecord(sent, stream_of(stream_)), "cudaEventRecord");
}

void Queue::download(void* host, const void* from, std::size_t bytes) {
  if (!begin() || bytes == 0) return;
  check(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, stream_of(stream_)), "copy from the device");
  wait();
}

void Queue::wait() {
  if (!begin()) return;
  check(cudaStreamSynchronize(stream_of(stream_)), "waiting for the device");
}

void Queue::submit(const void* kernel, Extent grid, Extent block, std::size_t shared, const void* params) {
  if (!begin() || grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  void* arguments[] = {const_cast<void*>(params)};
  if (shared > 48 * 1024) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
          "shared memory of a kernel");
  }
  check(cudaLaunchKernel(kernel, dim3(grid.x, grid.y, grid.z), dim3(block.x, block.y, block.z), arguments, shared,
                         stream_of(stream_)),
        "kernel launch");
}

void Queue::mark(int which) {
  cudaEvent_t event = static_cast<cudaEvent_t>(marks_[which]);
  if (event == nullptr) {
    check(cudaEventCreate(&event), "cudaEventCreate");
    marks_[which] = event;
  }
  check(cudaEventRecord(event, stream_of(stream_)), "cudaEventRecord");
}

double Queue::seconds_between_marks() {
  float milliseconds = 0;
  check(cudaEventSynchronize(static_cast<cudaEvent_t>(marks_[1])), "cudaEventSynchronize");
  check(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(marks_[0]), static_cast<cudaEvent_t>(marks_[1])),
        "cudaEventElapsedTime");
  return static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace lockstep::kernels::cuda
