// Blocks that share what they compute without memory in between: clusters, and parts of a block that wait for each
// other.
#pragma once

#include "kernels/cuda/device.cuh"

// Clusters are Hopper's: the code for older devices (and for newer ones, which compile that) does without these
// kernels.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define LOCKSTEP_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define LOCKSTEP_CLUSTER(blocks)
#endif

namespace lockstep::kernels::cuda {

/// Every thread of a cluster arrives, and waits before it arrives again; by whole warps. What was written before is
/// visible afterwards.
__device__ __forceinline__ void cluster_arrive() {
  __syncwarp();
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
  __syncwarp();
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/// The address of block `rank`'s copy of a variable in shared memory.
__device__ __forceinline__ unsigned remote(const void* mine, int rank) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(mine));
  unsigned there = address;
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
#endif
  return there;
}
__device__ __forceinline__ void store_remote(unsigned to, unsigned value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
#endif
}
__device__ __forceinline__ uint2 load_remote(unsigned from) {
  uint2 value{};
#if __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v2.u32 {%0, %1}, [%2];" : "=r"(value.x), "=r"(value.y) : "r"(from) : "memory");
#endif
  return value;
}

/// Barrier `which` (1..15) of a block for `threads` of its threads, whole warps: those that wait and those that only
/// arrive.
__device__ __forceinline__ void part_sync(int which, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(which), "r"(threads) : "memory");
}
__device__ __forceinline__ void part_arrive(int which, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(which), "r"(threads) : "memory");
}

}  // namespace lockstep::kernels::cuda
