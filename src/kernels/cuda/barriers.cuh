// Barriers in shared memory by which the warps of a block hand stages to each other. Hopper's machine code only: other
// devices lack the wait.
#pragma once

#include "kernels/cuda/bulk.cuh"

namespace lockstep::kernels::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

/// A barrier whose phase ends after `count` arrivals.
__device__ __forceinline__ void start_barrier(std::uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(std::uint64_t* barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(shared_address(barrier))
               : "memory");
}
/// Waits for the end of an even or odd phase.
__device__ __forceinline__ void wait_phase(std::uint64_t* barrier, int parity) {
  unsigned done = 0;
  while (done == 0) {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
  }
}

#endif

}  // namespace lockstep::kernels::cuda
