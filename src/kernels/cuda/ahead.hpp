// Weights that a kernel further back in the queue will read: brought to the second-level cache while the kernels in
// front of it are busy with something else than memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lockstep::kernels::cuda {

/// Ranges of device memory, each of a multiple of 16 bytes; a hint without any effect on results. Every block of the
/// kernel that gets it fetches one slice of each range.
struct Ahead {
  static constexpr int kMost = 8;
  std::array<const std::byte*, kMost> from{};
  std::array<std::uint64_t, kMost> bytes{};
  std::array<std::uint32_t, kMost> slice{};  ///< of a block; filled by the launch
  int count = 0;

  void add(const void* data, std::size_t size) {
    if (count == kMost || size == 0) return;
    from.at(static_cast<std::size_t>(count)) = static_cast<const std::byte*>(data);
    bytes.at(static_cast<std::size_t>(count++)) = size / 16 * 16;
  }
  /// Cuts the ranges for a launch of so many blocks.
  void cut(int blocks) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      const std::uint64_t each =
          (bytes.at(i) / 16 + static_cast<std::uint64_t>(blocks) - 1) / static_cast<std::uint64_t>(blocks);
      slice.at(i) = static_cast<std::uint32_t>(each * 16);
    }
  }
};

}  // namespace lockstep::kernels::cuda
