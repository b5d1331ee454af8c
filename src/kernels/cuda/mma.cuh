// Integer tensor-core products of weight codes and activation digits (docs/numerics.md N3).
#pragma once

#include "kernels/cuda/device.cuh"

namespace lockstep::kernels::cuda {

/// D += A * B for 16 rows, 8 columns, 32 inputs: unsigned weights, signed or
/// unsigned digits.
__device__ __forceinline__ void mma_signed(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_unsigned(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// mma_signed() that the compiler may move, and the first of a sum, D = A * B.
__device__ __forceinline__ void mma_next(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_first(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, "
      "{%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
}

/// The codes of inputs 32m..32m+31 of a chunk as the mma's A operand: even
/// inputs of every eight, then odd ones.
template <int kBits>
__device__ __forceinline__ void unpack(const uint4* chunk, int m, unsigned (&a)[4]) {
  if constexpr (kBits == 4) {
    const unsigned low = m == 0 ? chunk[0].x : chunk[0].z;
    const unsigned high = m == 0 ? chunk[0].y : chunk[0].w;
    a[0] = low & 0x0f0f0f0fU;
    a[1] = high & 0x0f0f0f0fU;
    a[2] = (low >> 4) & 0x0f0f0f0fU;
    a[3] = (high >> 4) & 0x0f0f0f0fU;
  } else {
    a[0] = chunk[m].x;
    a[1] = chunk[m].y;
    a[2] = chunk[m].z;
    a[3] = chunk[m].w;
  }
}

}  // namespace lockstep::kernels::cuda
