// The CUDA runtime as the layers above need it: devices, memory and one ordered queue of kernels and copies.
//
// No CUDA header is needed to use it. Errors are kept: the first one stays and everything after it is skipped, so a
// caller may look once per step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace lockstep::kernels::cuda {

struct DeviceInfo {
  std::string name;
  int major = 0, minor = 0;  ///< compute capability
  int multiprocessors = 0;
  std::size_t total_memory = 0, free_memory = 0;
};

/// Number of devices; negative when there is no driver or it is too old, with the runtime's words in `reason`.
int device_count(std::string& reason);
/// Makes `index` the calling thread's device and describes it. False with the runtime's words in `reason`.
bool open_device(int index, DeviceInfo& info, std::string& reason);

struct Extent {
  unsigned x = 1, y = 1, z = 1;
};

/// Kernels and copies in order, on one device. One user thread at a time.
class Queue {
 public:
  explicit Queue(int device);
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  ~Queue();

  /// Zeroed device memory, or null when the device has too little; that is no error of the queue.
  void* allocate(std::size_t bytes);
  void release(void* memory);

  void copy(void* to, const void* from, std::size_t bytes);    ///< device to device
  void upload(void* to, const void* host, std::size_t bytes);  ///< waits until it is done
  /// The same without waiting for earlier work: `host` is copied aside first. For small things.
  void upload_soon(void* to, const void* host, std::size_t bytes);
  void download(void* host, const void* from, std::size_t bytes);  ///< waits for everything before it
  void wait();

  /// `params` is the kernel's only parameter, passed by value.
  void submit(const void* kernel, Extent grid, Extent block, std::size_t shared, const void* params);

  [[nodiscard]] bool failed() const { return error_ != 0; }
  /// Takes nothing more, as after an error.
  void stop();
  [[nodiscard]] std::string error() const;
  /// Seconds of device time between two marks; for measurements.
  void mark(int which);
  [[nodiscard]] double seconds_between_marks();

 private:
  /// Page-locked memory on its way to the device.
  struct Parcel {
    void *memory = nullptr, *sent = nullptr;  ///< the event after the copy
    std::size_t size = 0;
  };

  void check(int code, const char* what);
  /// The device becomes the calling thread's; false when nothing may follow.
  bool begin();

  std::array<Parcel, 8> parcels_;
  std::size_t next_parcel_ = 0;
  int device_;
  void* stream_ = nullptr;
  void* marks_[2] = {nullptr, nullptr};
  int error_ = 0;
  const char* failed_call_ = "";
};

}  // namespace lockstep::kernels::cuda
