// Integer tensor-core products of a group of four warps, whose digits come from shared memory (docs/numerics.md N3).
// They run beside what the warps do meanwhile.
#pragma once

#include "kernels/cuda/device.cuh"

namespace lockstep::kernels::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// group_signed() starts d = A * B for the 64 rows of a group of warps, 8, 16, 24 or 32 columns and twice 32 inputs:
// unsigned weights, signed digits. group_unsigned() starts d += A * B with unsigned digits. A thread has of every eight
// columns {row g, row g + 8} x {column 2w, column 2w + 1}, as in mma_signed(). `b` and `next` name the digits of 32
// inputs each (digit_operand()). All 128 threads call them together, and touch neither `d` nor `a` before group_wait().

__device__ __forceinline__ void group_signed(int (&d)[4], const unsigned (&a)[2][4], unsigned b, unsigned next) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      ".reg .b64 one, two;\n"
      "mov.b64 one, {%12, 0x40000040};\n"
      "mov.b64 two, {%13, 0x40000040};\n"
      "mov.pred keep, 0;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.s8 "
      "{%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, one, keep;\n"
      "mov.pred keep, -1;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.s8 "
      "{%0, %1, %2, %3}, "
      "{%8, %9, %10, %11}, two, keep;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "}\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),
        "r"(b), "r"(next));
}
__device__ __forceinline__ void group_unsigned(int (&d)[4], const unsigned (&a)[2][4], unsigned b, unsigned next) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      ".reg .b64 one, two;\n"
      "mov.b64 one, {%12, 0x40000040};\n"
      "mov.b64 two, {%13, 0x40000040};\n"
      "mov.pred keep, -1;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.u8 "
      "{%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, one, keep;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.u8 "
      "{%0, %1, %2, %3}, "
      "{%8, %9, %10, %11}, two, keep;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "}\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),
        "r"(b), "r"(next));
}
/// Waits until at most kLeft of the products that were started are under way, `d` not among them.
template <int kLeft>
__device__ __forceinline__ void group_wait(int (&d)[4]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft));
  asm volatile("" : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]));
}

__device__ __forceinline__ void group_signed(int (&d)[8], const unsigned (&a)[2][4], unsigned b, unsigned next) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      ".reg .b64 one, two;\n"
      "mov.b64 one, {%16, 0x40000040};\n"
      "mov.b64 two, {%17, 0x40000040};\n"
      "mov.pred keep, 0;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%8, %9, %10, %11}, one, keep;\n"
      "mov.pred keep, -1;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%12, %13, %14, %15}, two, keep;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "}\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),
        "r"(b), "r"(next));
}
__device__ __forceinline__ void group_unsigned(int (&d)[8], const unsigned (&a)[2][4], unsigned b, unsigned next) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      ".reg .b64 one, two;\n"
      "mov.b64 one, {%16, 0x40000040};\n"
      "mov.b64 two, {%17, 0x40000040};\n"
      "mov.pred keep, -1;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.u8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%8, %9, %10, %11}, one, keep;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.u8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%12, %13, %14, %15}, two, keep;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "}\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),
        "r"(b), "r"(next));
}
/// Waits until at most kLeft of the products that were started are under way, `d` not among them.
template <int kLeft>
__device__ __forceinline__ void group_wait(int (&d)[8]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft));
  asm volatile("" : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]));
}

__device__ __forceinline__ void group_signed(int (&d)[12], const unsigned (&a)[2][4], unsigned b, unsigned next) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      ".reg .b64 one, two;\n"
      "mov.b64 one, {%20, 0x40000040};\n"
      "mov.b64 two, {%21, 0x40000040};\n"
      "mov.pred keep, 0;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n24k32.s32.u8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11}, "
      "{%12, %13, %14, %15}, one, keep;\n"
      "mov.pred keep, -1;\n"
      "wgmma.mma_async.sync.aligned.m64n24k32.s32.u8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11}, "
      "{%16, %17, %18, %19}, two, keep;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "}\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]),
        "+r"(d[9]), "+r"(d[10]), "+r"(d[11])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),
        "r"(b), "r"(next));
}
__device__ __forceinline__ void group_unsigned(int (&d)[12], const unsigned (&a)[2][4], unsigned b, unsigned next) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      ".reg .b64 one, two;\n"
      "mov.b64 one, {%20, 0x40000040};\n"
      "mov.b64 two, {%21, 0x40000040};\n"
      "mov.pred keep, -1;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n24k32.s32.u8.u8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11}, "
      "{%12, %13, %14, %15}, one, keep;\n"
      "wgmma.mma_async.sync.aligned.m64n24k32.s32.u8.u8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11}, "
      "{%16, %17, %18, %19}, two, keep;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "}\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]),
        "+r"(d[9]), "+r"(d[10]), "+r"(d[11])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),
        "r"(b), "r"(next));
}
/// Waits until at most kLeft of the products that were started are under way, `d` not among them.
template <int kLeft>
__device__ __forceinline__ void group_wait(int (&d)[12]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft));
  asm volatile(""
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
                 "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]));
}

__device__ __forceinline__ void group_signed(int (&d)[16], const unsigned (&a)[2][4], unsigned b, unsigned next) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      ".reg .b64 one, two;\n"
      "mov.b64 one, {%24, 0x40000040};\n"
      "mov.b64 two, {%25, 0x40000040};\n"
      "mov.pred keep, 0;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, one, keep;\n"
      "mov.pred keep, -1;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%20, %21, %22, %23}, two, keep;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "}\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]),
        "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),
        "r"(b), "r"(next));
}
__device__ __forceinline__ void group_unsigned(int (&d)[16], const unsigned (&a)[2][4], unsigned b, unsigned next) {
  asm volatile(
      "{\n"
      ".reg .pred keep;\n"
      ".reg .b64 one, two;\n"
      "mov.b64 one, {%24, 0x40000040};\n"
      "mov.b64 two, {%25, 0x40000040};\n"
      "mov.pred keep, -1;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.u8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, one, keep;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.u8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%20, %21, %22, %23}, two, keep;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "}\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]),
        "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),
        "r"(b), "r"(next));
}
/// Waits until at most kLeft of the products that were started are under way, `d` not among them.
template <int kLeft>
__device__ __forceinline__ void group_wait(int (&d)[16]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft));
  asm volatile(""
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
                 "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]));
}

#endif

/// How the tensor cores find digits of 32 inputs in shared memory: the address in units of 16 bytes. A token has 128
/// bytes, eight tokens follow each other from a multiple of 1024 bytes on, and piece i of 16 bytes of token t lies at
/// i ^ t % 8 (their swizzle of 128 bytes).
__device__ __forceinline__ unsigned digit_operand(const uint4* digits) {
  return static_cast<unsigned>(__cvta_generic_to_shared(digits)) >> 4 | 1U << 16;
}

}  // namespace lockstep::kernels::cuda
