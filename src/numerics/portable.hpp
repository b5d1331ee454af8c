// How numeric helpers are inlined. They are compiled into kernels for several instruction sets (and by nvcc), so they
// must never be emitted as shared functions that the linker could pick from the wrong one.
#pragma once

#if defined(__CUDACC__)
#define LOCKSTEP_INLINE __host__ __device__ __forceinline__
#else
#define LOCKSTEP_INLINE [[gnu::always_inline]] inline
#endif
