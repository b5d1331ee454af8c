// Sixteen 32-bit lanes in one AVX-512 register; integer products by VNNI.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "numerics/portable.hpp"

namespace lockstep::kernels::avx512 {

struct Isa {
  using Int = __m512i;
  using Float = __m512;
  static constexpr int kTileRows = 8;
  static constexpr bool kFusedDot = true;  ///< dot() is one instruction with a latency of several cycles

  static constexpr int kDeltaRegisters = 4;
  static constexpr int kPanelRows = 4;
  static constexpr int kAttendHeads = 4, kAttendKeys = 2, kAttendColumns = 4;
  static constexpr int kDenseRows = 6, kDenseOutputs = 2, kDenseOutputsOne = 4;

  LOCKSTEP_INLINE static Int zero_int() { return _mm512_setzero_si512(); }
  LOCKSTEP_INLINE static Float zero() { return _mm512_setzero_ps(); }
  LOCKSTEP_INLINE static Int load(const std::byte* data) { return _mm512_loadu_si512(data); }
  LOCKSTEP_INLINE static Int either(Int a, Int b) { return _mm512_or_si512(a, b); }
  LOCKSTEP_INLINE static Int add_int(Int a, Int b) { return _mm512_add_epi32(a, b); }

  /// (word >> Shift) & Mask in both halves of every lane; a negative shift is one to the left.
  template <int Shift, unsigned Mask>
  LOCKSTEP_INLINE static Int field(Int word) {
    if constexpr (Shift > 0) word = _mm512_srli_epi32(word, Shift);
    if constexpr (Shift < 0) word = _mm512_slli_epi32(word, -Shift);
    return _mm512_and_si512(word, _mm512_set1_epi32(static_cast<int>(Mask * 0x10001U)));
  }

  /// The pair of activations a[0], a[1] in every lane.
  LOCKSTEP_INLINE static Int activations(const std::int16_t* a) {
    std::int32_t both;
    std::memcpy(&both, a, 4);
    return _mm512_set1_epi32(both);
  }
  /// sum + low half of the codes * a[0] + high half * a[1], exact.
  LOCKSTEP_INLINE static Int dot(Int sum, Int codes, Int a) { return _mm512_dpwssd_epi32(sum, codes, a); }

  LOCKSTEP_INLINE static Float to_float(Int x) { return _mm512_cvtepi32_ps(x); }
  LOCKSTEP_INLINE static Float broadcast(float x) { return _mm512_set1_ps(x); }
  LOCKSTEP_INLINE static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  LOCKSTEP_INLINE static Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  LOCKSTEP_INLINE static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  LOCKSTEP_INLINE static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }

  /// Sixteen bf16 or binary32 numbers.
  LOCKSTEP_INLINE static Float load_scales(const std::byte* data, bool wide) {
    return wide ? _mm512_loadu_ps(data) : load_bf16(data);
  }
  LOCKSTEP_INLINE static Float load_bf16(const std::byte* data) {
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(data)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
  }
  LOCKSTEP_INLINE static Float load_floats(const float* data) { return _mm512_loadu_ps(data); }
  /// Keeps the compiler from loading x again for every use, which would make loads the limit.
  LOCKSTEP_INLINE static Float in_register(Float x) {
    asm("" : "+v"(x));  // NOLINT(hicpp-no-assembler)
    return x;
  }
  LOCKSTEP_INLINE static void store(float* out, Float x, int count) {
    _mm512_mask_storeu_ps(out, static_cast<__mmask16>((1U << count) - 1U), x);
  }
  /// Lane j += lane j + 8, then + 4, + 2, + 1.
  LOCKSTEP_INLINE static float fold16(Float x) {
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }

  /// Lane k is fold16(x[k]): a tree of additions that halves the registers while the lanes of each sum halve.
  LOCKSTEP_INLINE static Float fold_each(const Float* x) {
    Float eight[8];
    for (int i = 0; i < 8; ++i) {
      eight[i] =
          add(_mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0x44), _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0xee));
    }
    Float four[4];
    for (int i = 0; i < 4; ++i) {
      four[i] = add(_mm512_shuffle_f32x4(eight[2 * i], eight[2 * i + 1], 0x88),
                    _mm512_shuffle_f32x4(eight[2 * i], eight[2 * i + 1], 0xdd));
    }
    Float two[2];
    for (int i = 0; i < 2; ++i) {
      two[i] = add(_mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),
                   _mm512_shuffle_ps(four[2 * i], four[2 * i + 1], 0xee));
    }
    const Float one = add(_mm512_shuffle_ps(two[0], two[1], 0x88), _mm512_shuffle_ps(two[0], two[1], 0xdd));
    const Int order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_ps(order, one);
  }
  /// x where it is above 0, else x * 0, which keeps NaN.
  LOCKSTEP_INLINE static Float positive(Float x) {
    return _mm512_mask_mov_ps(mul(x, zero()), _mm512_cmp_ps_mask(x, zero(), _CMP_GT_OQ), x);
  }

  /// Fetches the lines that a thread reads a little later.
  template <int Bytes>
  LOCKSTEP_INLINE static void prefetch(const std::byte* data) {
    for (int i = 0; i < Bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(data) + 4096 + i, _MM_HINT_T0);
  }
};

}  // namespace lockstep::kernels::avx512
