// Small data from page-locked host memory, read by a kernel: a copy between two kernels of a queue costs about 12 us,
// because both wait for it and it waits for the one in front; a kernel's reads over the bus are under way before that.
#pragma once

#include <cstddef>

#include "kernels/cuda/queue.hpp"

namespace lockstep::kernels::cuda {

/// Above this the copy engine is faster.
inline constexpr std::size_t kMostFetched = std::size_t{32} << 10;

/// Whether fetch() takes so many bytes: whole words, not too many.
[[nodiscard]] constexpr bool fetch_takes(std::size_t bytes) {
  return bytes % 4 == 0 && bytes <= kMostFetched;
}

/// Copies `bytes` from page-locked host memory, which must keep its contents until the next wait of the queue.
void fetch(Queue& queue, void* to, const void* from, std::size_t bytes);

}  // namespace lockstep::kernels::cuda
