// Integer tensor-core products of a group of four warps, whose digits come from shared memory (docs/numerics.md N3).
#pragma once

#include "kernels/cuda/mma.cuh"

namespace lockstep::kernels::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// group_signed(): d = A * B for the 64 rows of a group of warps, 8, 16, 32 or 64 columns and twice 32 inputs: unsigned
// weights, signed digits. A thread has of every eight columns the four results that it has in mma_signed().
// group_unsigned(): d += A * B with unsigned digits. Both wait for their results.

__device__ __forceinline__ void group_signed(int (&d)[4], const unsigned (&a)[2][4], std::uint64_t b0,
                                             std::uint64_t b1) {
  asm volatile(
      "{\n"
      ".reg .pred on;\n"
      "mov.pred on, 0;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.s8 "
      "{%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, %12, on;\n"
      "mov.pred on, -1;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.s8 "
      "{%0, %1, %2, %3}, "
      "{%8, %9, %10, %11}, %13, on;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 0;\n"
      "}\n"
      : "=&r"(d[0]), "=&r"(d[1]), "=&r"(d[2]), "=&r"(d[3])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),
        "l"(b0), "l"(b1));
}

__device__ __forceinline__ void group_unsigned(int (&d)[4], const unsigned (&a)[2][4], std::uint64_t b0,
                                               std::uint64_t b1) {
  asm volatile(
      "{\n"
      ".reg .pred on;\n"
      "mov.pred on, -1;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.u8 "
      "{%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, %12, on;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.s32.u8.u8 "
      "{%0, %1, %2, %3}, "
      "{%8, %9, %10, %11}, %13, on;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 0;\n"
      "}\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),
        "l"(b0), "l"(b1));
}

__device__ __forceinline__ void group_signed(int (&d)[8], const unsigned (&a)[2][4], std::uint64_t b0,
                                             std::uint64_t b1) {
  asm volatile(
      "{\n"
      ".reg .pred on;\n"
      "mov.pred on, 0;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%8, %9, %10, %11}, %16, on;\n"
      "mov.pred on, -1;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%12, %13, %14, %15}, %17, on;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 0;\n"
      "}\n"
      : "=&r"(d[0]), "=&r"(d[1]), "=&r"(d[2]), "=&r"(d[3]), "=&r"(d[4]), "=&r"(d[5]), "=&r"(d[6]), "=&r"(d[7])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),
        "l"(b0), "l"(b1));
}

__device__ __forceinline__ void group_unsigned(int (&d)[8], const unsigned (&a)[2][4], std::uint64_t b0,
                                               std::uint64_t b1) {
  asm volatile(
      "{\n"
      ".reg .pred on;\n"
      "mov.pred on, -1;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.u8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%8, %9, %10, %11}, %16, on;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.s32.u8.u8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7}, "
      "{%12, %13, %14, %15}, %17, on;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 0;\n"
      "}\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),
        "l"(b0), "l"(b1));
}

__device__ __forceinline__ void group_signed(int (&d)[16], const unsigned (&a)[2][4], std::uint64_t b0,
                                             std::uint64_t b1) {
  asm volatile(
      "{\n"
      ".reg .pred on;\n"
      "mov.pred on, 0;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %24, on;\n"
      "mov.pred on, -1;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%20, %21, %22, %23}, %25, on;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 0;\n"
      "}\n"
      : "=&r"(d[0]), "=&r"(d[1]), "=&r"(d[2]), "=&r"(d[3]), "=&r"(d[4]), "=&r"(d[5]), "=&r"(d[6]), "=&r"(d[7]),
        "=&r"(d[8]), "=&r"(d[9]), "=&r"(d[10]), "=&r"(d[11]), "=&r"(d[12]), "=&r"(d[13]), "=&r"(d[14]), "=&r"(d[15])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),
        "l"(b0), "l"(b1));
}

__device__ __forceinline__ void group_unsigned(int (&d)[16], const unsigned (&a)[2][4], std::uint64_t b0,
                                               std::uint64_t b1) {
  asm volatile(
      "{\n"
      ".reg .pred on;\n"
      "mov.pred on, -1;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.u8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%16, %17, %18, %19}, %24, on;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.s32.u8.u8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15}, "
      "{%20, %21, %22, %23}, %25, on;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 0;\n"
      "}\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]),
        "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),
        "l"(b0), "l"(b1));
}

__device__ __forceinline__ void group_signed(int (&d)[32], const unsigned (&a)[2][4], std::uint64_t b0,
                                             std::uint64_t b1) {
  asm volatile(
      "{\n"
      ".reg .pred on;\n"
      "mov.pred on, 0;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %40, on;\n"
      "mov.pred on, -1;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.s8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%36, %37, %38, %39}, %41, on;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 0;\n"
      "}\n"
      : "=&r"(d[0]), "=&r"(d[1]), "=&r"(d[2]), "=&r"(d[3]), "=&r"(d[4]), "=&r"(d[5]), "=&r"(d[6]), "=&r"(d[7]),
        "=&r"(d[8]), "=&r"(d[9]), "=&r"(d[10]), "=&r"(d[11]), "=&r"(d[12]), "=&r"(d[13]), "=&r"(d[14]), "=&r"(d[15]),
        "=&r"(d[16]), "=&r"(d[17]), "=&r"(d[18]), "=&r"(d[19]), "=&r"(d[20]), "=&r"(d[21]), "=&r"(d[22]), "=&r"(d[23]),
        "=&r"(d[24]), "=&r"(d[25]), "=&r"(d[26]), "=&r"(d[27]), "=&r"(d[28]), "=&r"(d[29]), "=&r"(d[30]), "=&r"(d[31])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),
        "l"(b0), "l"(b1));
}

__device__ __forceinline__ void group_unsigned(int (&d)[32], const unsigned (&a)[2][4], std::uint64_t b0,
                                               std::uint64_t b1) {
  asm volatile(
      "{\n"
      ".reg .pred on;\n"
      "mov.pred on, -1;\n"
      "wgmma.fence.sync.aligned;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.u8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %40, on;\n"
      "wgmma.mma_async.sync.aligned.m64n64k32.s32.u8.u8 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, "
      "%8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, "
      "%24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%36, %37, %38, %39}, %41, on;\n"
      "wgmma.commit_group.sync.aligned;\n"
      "wgmma.wait_group.sync.aligned 0;\n"
      "}\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]), "+r"(d[8]),
        "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]), "+r"(d[16]),
        "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), "+r"(d[23]), "+r"(d[24]),
        "+r"(d[25]), "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]), "+r"(d[31])
      : "r"(a[0][0]), "r"(a[0][1]), "r"(a[0][2]), "r"(a[0][3]), "r"(a[1][0]), "r"(a[1][1]), "r"(a[1][2]), "r"(a[1][3]),
        "l"(b0), "l"(b1));
}

#endif

/// Products of the 16 rows of each warp with 2 * kDots tokens (8, 16, 32 or 64) over 64 inputs: sums of codes * (256 *
/// high + low), as [eight of tokens][{row g, row g + 8} x {token 2w, token 2w + 1}]. `a` are the codes of two steps of
/// 32 inputs, `digits` those of the tokens, [j = 0..3][high, low][kPieceRows][16 bytes]. All warps of a group of four,
/// 128 threads, call it together.
template <int kPieceRows, int kDots>
__device__ __forceinline__ void digit_dots(int (&d)[kDots], const unsigned (&a)[2][4], const uint4* digits) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  // The operand in shared memory, no swizzle: address, bytes to the next 16 inputs, bytes to the next eight tokens, all
  // in units of 16 bytes.
  constexpr std::uint64_t kStrides = static_cast<std::uint64_t>(2 * kPieceRows) << 16 | std::uint64_t{8} << 32;
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(digits));
  const std::uint64_t first = kStrides | (address & 0x3ffffU) >> 4;
  group_signed(d, a, first, first + 4 * kPieceRows);
#pragma unroll
  for (int& dot : d) dot *= 256;
  group_unsigned(d, a, first + kPieceRows, first + 5 * kPieceRows);
#else
  const int g = static_cast<int>(threadIdx.x) % 32 / 4;
  const int w = static_cast<int>(threadIdx.x) % 4;
  const auto word = [&](int piece, int n) {
    return reinterpret_cast<const unsigned*>(digits + piece * kPieceRows + 8 * n + g)[w];
  };
#pragma unroll
  for (int n = 0; n < kDots / 4; ++n) {
    int high[4] = {0, 0, 0, 0};
    int low[4] = {0, 0, 0, 0};
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      mma_signed(high, a[q], word(4 * q, n), word(4 * q + 2, n));
      mma_unsigned(low, a[q], word(4 * q + 1, n), word(4 * q + 3, n));
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) d[4 * n + i] = high[i] * 256 + low[i];
  }
#endif
}

}  // namespace lockstep::kernels::cuda
