// What the kernels share: warp-wide fold32, typed loads, launches.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/queue.hpp"
#include "kernels/element_type.hpp"
#include "numerics/canon_math.hpp"

namespace lockstep::kernels::cuda {

using namespace lockstep::numerics;

constexpr unsigned kAllLanes = 0xffffffffU;
/// Sequences whose description travels with one launch.
constexpr int kMaxRuns = 16;

/// The 32 lanes of fold32, one a thread, added pairwise (docs/numerics.md N2).
/// IEEE addition commutes, so the exchange gives every lane the bits of lane 0.
__device__ __forceinline__ float fold_lanes(float lane) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) lane += __shfl_xor_sync(kAllLanes, lane, width);
  return lane;
}

/// The largest value of a warp, in every lane.
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int width = 16; width > 0; width /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, x, width);
    x = other > x ? other : x;
  }
  return x;
}

/// Rounds of fold_transposed from `kWidth` down, with kLeft sums left in each lane.
template <int kWidth, int kLeft>
__device__ __forceinline__ float fold_rounds(float* sums, int lane) {
  if constexpr (kWidth == 0) {
    return sums[0];
  } else if constexpr (kLeft > 1) {
    const bool upper = (lane & kWidth) != 0;
#pragma unroll
    for (int i = 0; i < kLeft / 2; ++i) {
      const float keep = upper ? sums[i + kLeft / 2] : sums[i];
      const float give = upper ? sums[i] : sums[i + kLeft / 2];
      sums[i] = keep + __shfl_xor_sync(kAllLanes, give, kWidth);
    }
    return fold_rounds<kWidth / 2, kLeft / 2>(sums, lane);
  } else {
    sums[0] += __shfl_xor_sync(kAllLanes, sums[0], kWidth);
    return fold_rounds<kWidth / 2, 1>(sums, lane);
  }
}

/// Adds kCount sums (a power of two up to 32) of every lane over the lanes as fold32 does, all at once: afterwards lane
/// i holds the total of sums[i * kCount / 32]. While there are several, a lane keeps in every round the half that its
/// bit names, so 31 exchanges do for 32 sums.
template <int kCount>
__device__ __forceinline__ float fold_transposed(float (&sums)[kCount], int lane) {
  return fold_rounds<16, kCount>(sums, lane);
}

/// fold_transposed() of 32 sums that lie in an order of each lane's own: sums[i] of a lane is that of output i ^ lane.
/// What a lane keeps and what it gives then have the same places in all lanes, which spares the choice between them.
template <int kWidth = 16>
__device__ __forceinline__ float fold_permuted(float (&sums)[32]) {
#pragma unroll
  for (int i = 0; i < kWidth; ++i) sums[i] += __shfl_xor_sync(kAllLanes, sums[i + kWidth], kWidth);
  if constexpr (kWidth > 1) {
    return fold_permuted<kWidth / 2>(sums);
  } else {
    return sums[0];
  }
}

/// Orders like the value, the two zeros equal; above 0 for every number.
__device__ __forceinline__ unsigned ordered_bits(float value) {
  const unsigned bits = float_bits(value + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// fold32 of a[i] * b[i], computed by one warp; every lane gets the result.
__device__ __forceinline__ float warp_dot(const float* a, const float* b, int n, int lane) {
  float sum = 0.0F;
#pragma unroll 8
  for (int i = lane; i < n; i += 32) sum = canon_fma(a[i], b[i], sum);
  return fold_lanes(sum);
}

__device__ __forceinline__ float load_element(const void* data, ElementType type, std::int64_t index) {
  if (type == ElementType::F32) return static_cast<const float*>(data)[index];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[index];
  return type == ElementType::BF16 ? bf16_to_float(bits) : half_to_float(bits);
}

/// Stores x as `type`, BF16 or F32.
__device__ __forceinline__ void store_element(void* data, ElementType type, std::int64_t index, float x) {
  if (type == ElementType::F32) {
    static_cast<float*>(data)[index] = x;
  } else {
    static_cast<std::uint16_t*>(data)[index] = float_to_bf16(x);
  }
}

/// Lets the next kernel of the queue start its blocks. It still waits for this
/// one's results.
__device__ __forceinline__ void trigger_next_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Waits for the results of everything before in the queue. Every kernel calls
/// it in every thread that reads or writes what other kernels touch, so that
/// "before" reaches back over any number of kernels.
__device__ __forceinline__ void wait_previous_grid() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Copies 16 bytes to shared memory while the thread goes on.
__device__ __forceinline__ void copy_soon(void* to, const void* from) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
/// The policy of what is read once a step and need not stay in the second-level cache. What a step reads of a layer is
/// twice as large as that cache: without it they push out the kernels' own instructions, and all multiprocessors wait
/// for those.
__device__ __forceinline__ std::uint64_t once_policy() {
  std::uint64_t policy = 0;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// copy_soon() of what is read once.
__device__ __forceinline__ void copy_once_soon(void* to, const void* from, std::uint64_t policy) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "l"(policy)
               : "memory");
}
/// The same for 8 bytes.
__device__ __forceinline__ void copy_eight_soon(void* to, const void* from) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address), "l"(from) : "memory");
}
/// The same for 4 bytes.
__device__ __forceinline__ void copy_four_soon(void* to, const void* from) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
}
/// Ends a group of copies.
__device__ __forceinline__ void copies_made() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most kLeft of the thread's groups are under way.
template <int kLeft>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

constexpr int kWarps = 8;  ///< of blocks that give each warp its own item

__device__ __forceinline__ int warp_item() {
  return static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
}
__device__ __forceinline__ int lane_id() {
  return static_cast<int>(threadIdx.x) % 32;
}
__device__ __forceinline__ int thread_item() {
  return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

template <class Params>
void launch(Queue& queue, void (*kernel)(Params), Extent grid, Extent block, std::size_t shared, const Params& params) {
  queue.submit(reinterpret_cast<const void*>(kernel), grid, block, shared, &params, sizeof(Params));
}

inline unsigned blocks_for(std::int64_t items, int per_block) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}
/// One thread an item.
template <class Params>
void launch_threads(Queue& queue, void (*kernel)(Params), std::int64_t items, const Params& params) {
  launch(queue, kernel, {blocks_for(items, 256), 1, 1}, {256, 1, 1}, 0, params);
}
/// One warp an item.
template <class Params>
void launch_warps(Queue& queue, void (*kernel)(Params), std::int64_t items, const Params& params,
                  std::size_t shared = 0) {
  launch(queue, kernel, {blocks_for(items, kWarps), 1, 1}, {32 * kWarps, 1, 1}, shared, params);
}

}  // namespace lockstep::kernels::cuda
