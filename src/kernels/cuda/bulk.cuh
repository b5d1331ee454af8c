// Bulk copies to shared memory by one thread, and the wait for them. A loop of 16-byte copies costs as many
// instructions as what is done with the copied weights.
#pragma once

#include "kernels/cuda/device.cuh"

namespace lockstep::kernels::cuda {

/// In shared memory: counts what one round of copies after the other brings. Devices without bulk copies copy at once.
struct Arrival {
  std::uint64_t word;
};

__device__ __forceinline__ unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}

/// By one thread, before all else; the others need a barrier before they wait.
__device__ __forceinline__ void arrival_init(Arrival& arrival) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&arrival)) : "memory");
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

/// By one thread: begins a round of copies of `bytes` together.
__device__ __forceinline__ void arrival_begin(Arrival& arrival, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&arrival)), "r"(bytes)
               : "memory");
#endif
}

/// By the same thread: `bytes` in whole 16, both sides aligned to 16.
__device__ __forceinline__ void bulk_copy(void* to, const void* from, unsigned bytes, Arrival& arrival) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(&arrival))
               : "memory");
#else
  for (unsigned i = 0; i < bytes / 16; ++i) static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
#endif
}

/// bulk_copy() of what is read once a step (once_policy()).
__device__ __forceinline__ void bulk_copy_once(void* to, const void* from, unsigned bytes, Arrival& arrival,
                                               std::uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(&arrival)), "l"(policy)
      : "memory");
#else
  bulk_copy(to, from, bytes, arrival);
#endif
}

/// By the same thread, after the round's copies.
__device__ __forceinline__ void arrival_sent(Arrival& arrival) {
#if __CUDA_ARCH__ < 900
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(shared_address(&arrival))
               : "memory");
#endif
}

/// By everybody who reads: waits for a round; `parity` is that of the round's number.
__device__ __forceinline__ void arrival_wait(Arrival& arrival, int parity) {
  unsigned done = 0;
  while (done == 0) {
    asm volatile(
#if __CUDA_ARCH__ >= 900
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#else
        "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
#endif
        : "=r"(done)
        : "r"(shared_address(&arrival)), "r"(parity)
        : "memory");
  }
}

}  // namespace lockstep::kernels::cuda
