// Page-locked memory of the host, at the address that the device knows it by.
#pragma once

#include <cstddef>

#include "backend/backend.hpp"
#include "kernels/cuda/queue.hpp"

namespace lockstep::backend {

class PinnedBuffer final : public Buffer {
 public:
  PinnedBuffer(kernels::cuda::Queue& queue, void* memory, std::size_t size)
      : queue_(queue), memory_(static_cast<std::byte*>(memory)), size_(size) {}
  ~PinnedBuffer() override { queue_.release_pinned(memory_, size_); }
  [[nodiscard]] std::byte* data() override { return memory_; }
  [[nodiscard]] std::size_t size() const override { return size_; }

 private:
  kernels::cuda::Queue& queue_;
  std::byte* memory_;
  std::size_t size_;
};

}  // namespace lockstep::backend
