// Blocks that share what they compute without memory in between: clusters, and parts of a block that wait for each
// other.
#pragma once

#include "kernels/cuda/device.cuh"

/// Older devices have no clusters; the kernels that need them are not launched there.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define LOCKSTEP_CLUSTER(blocks)
#else
#define LOCKSTEP_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#endif

namespace lockstep::kernels::cuda {

/// Every thread of a cluster arrives, and waits before it arrives again. What was written before is visible afterwards.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

/// Writes to the place of `at` in the shared memory of another block of the cluster.
__device__ __forceinline__ void store_cluster(float* at, int rank, float value) {
#if __CUDA_ARCH__ >= 900
  const auto own = static_cast<unsigned>(__cvta_generic_to_shared(at));
  unsigned there = 0;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
#endif
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
