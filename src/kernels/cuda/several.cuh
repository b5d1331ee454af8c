// What the kernels for 9 to 16 activation rows share: a warp's segment of a weight tile arrives in shared memory all at
// once, and runs of one or two rows use the columns of the tensor cores for several groups (few.cuh).
#pragma once

#include "kernels/cuda/few.cuh"

namespace lockstep::kernels::cuda {

/// Starts copying the first `chunks` of up to kRoom chunks of a tile, codes and then pairs.
template <int kRoom, int kBits = 4>
__device__ __forceinline__ void stage_chunks(std::byte* stage, const std::byte* codes, const std::byte* pairs,
                                             int chunks, std::uint64_t policy, int lane) {
  constexpr int kPieces = kBits / 4;
  std::byte* to = stage + lane * 16;
  const std::byte* from = codes + lane * 16;
#pragma unroll
  for (int i = 0; i < kRoom * kPieces; ++i) {
    if (i < chunks * kPieces) copy_once_soon(to + i * 512, from + i * 512, policy);
  }
#pragma unroll
  for (int i = 0; i < kRoom * 4; i += 32) {
    if (i + lane < chunks * 4) copy_once_soon(to + kRoom * 128 * kBits + i * 16, pairs + (i + lane) * 16, policy);
  }
}

}  // namespace lockstep::kernels::cuda
