// Sixteen 32-bit lanes in two AVX2 registers.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "numerics/portable.hpp"

namespace lockstep::kernels::avx2 {

struct Isa {
  struct Int {
    __m256i low, high;
  };
  struct Float {
    __m256 low, high;
  };
  static constexpr int kTileRows = 4;
  static constexpr bool kFusedDot = false;

  static constexpr int kDeltaRegisters = 1;
  static constexpr int kPanelRows = 3;
  static constexpr int kAttendHeads = 2, kAttendKeys = 1, kAttendColumns = 2;
  static constexpr int kDenseRows = 3, kDenseOutputs = 1, kDenseOutputsOne = 2;

  LOCKSTEP_INLINE static Int zero_int() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  LOCKSTEP_INLINE static Float zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  LOCKSTEP_INLINE static Int load(const std::byte* data) {
    const auto* words = reinterpret_cast<const __m256i*>(data);
    return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
  }
  LOCKSTEP_INLINE static Int either(Int a, Int b) {
    return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
  }
  LOCKSTEP_INLINE static Int add_int(Int a, Int b) {
    return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
  }

  /// (word >> Shift) & Mask in both halves of every lane; a negative shift is one to the left.
  template <int Shift, unsigned Mask>
  LOCKSTEP_INLINE static Int field(Int word) {
    return {field_half<Shift, Mask>(word.low), field_half<Shift, Mask>(word.high)};
  }

  /// The pair of activations a[0], a[1] in every lane.
  LOCKSTEP_INLINE static Int activations(const std::int16_t* a) {
    std::int32_t both;
    std::memcpy(&both, a, 4);
    const __m256i x = _mm256_set1_epi32(both);
    return {x, x};
  }
  /// sum + low half of the codes * a[0] + high half * a[1], exact.
  LOCKSTEP_INLINE static Int dot(Int sum, Int codes, Int a) {
    return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(codes.low, a.low)),
            _mm256_add_epi32(sum.high, _mm256_madd_epi16(codes.high, a.high))};
  }

  LOCKSTEP_INLINE static Float to_float(Int x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }
  LOCKSTEP_INLINE static Float broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  LOCKSTEP_INLINE static Float add(Float a, Float b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  LOCKSTEP_INLINE static Float sub(Float a, Float b) {
    return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
  }
  LOCKSTEP_INLINE static Float mul(Float a, Float b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  LOCKSTEP_INLINE static Float fma(Float a, Float b, Float c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }

  /// Sixteen bf16 or binary32 numbers.
  LOCKSTEP_INLINE static Float load_scales(const std::byte* data, bool wide) {
    return wide ? load_floats(reinterpret_cast<const float*>(data)) : load_bf16(data);
  }
  LOCKSTEP_INLINE static Float load_bf16(const std::byte* data) {
    const auto* halves = reinterpret_cast<const __m128i*>(data);
    return {widen(_mm_loadu_si128(halves)), widen(_mm_loadu_si128(halves + 1))};
  }
  LOCKSTEP_INLINE static Float load_floats(const float* data) {
    return {_mm256_loadu_ps(data), _mm256_loadu_ps(data + 8)};
  }
  LOCKSTEP_INLINE static Float in_register(Float x) { return x; }
  LOCKSTEP_INLINE static void store(float* out, Float x, int count) {
    if (count == 16) {
      _mm256_storeu_ps(out, x.low);
      _mm256_storeu_ps(out + 8, x.high);
      return;
    }
    float all[16];
    _mm256_storeu_ps(all, x.low);
    _mm256_storeu_ps(all + 8, x.high);
    std::memcpy(out, all, sizeof(float) * static_cast<std::size_t>(count));
  }
  /// Lane j += lane j + 8, then + 4, + 2, + 1.
  LOCKSTEP_INLINE static float fold16(Float x) {
    const __m256 eight = _mm256_add_ps(x.low, x.high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
  }

  /// Lane k is fold16(x[k]): a tree of additions that halves the registers while the lanes of each sum halve.
  LOCKSTEP_INLINE static Float fold_each(const Float* x) { return {fold_eight(x), fold_eight(x + 8)}; }
  /// x where it is above 0, else x * 0, which keeps NaN.
  LOCKSTEP_INLINE static Float positive(Float x) { return {positive_half(x.low), positive_half(x.high)}; }

  /// Fetches the lines that a thread reads a little later.
  template <int Bytes>
  LOCKSTEP_INLINE static void prefetch(const std::byte* data) {
    for (int i = 0; i < Bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(data) + 4096 + i, _MM_HINT_T0);
  }

 private:
  template <int Shift, unsigned Mask>
  LOCKSTEP_INLINE static __m256i field_half(__m256i word) {
    if constexpr (Shift > 0) word = _mm256_srli_epi32(word, Shift);
    if constexpr (Shift < 0) word = _mm256_slli_epi32(word, -Shift);
    return _mm256_and_si256(word, _mm256_set1_epi32(static_cast<int>(Mask * 0x10001U)));
  }
  LOCKSTEP_INLINE static __m256 fold_eight(const Float* x) {
    __m256 four[4];
    for (int i = 0; i < 4; ++i) {
      const __m256 a = _mm256_add_ps(x[2 * i].low, x[2 * i].high);
      const __m256 b = _mm256_add_ps(x[2 * i + 1].low, x[2 * i + 1].high);
      four[i] = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    }
    __m256 two[2];
    for (int i = 0; i < 2; ++i) {
      two[i] = _mm256_add_ps(_mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),
                             _mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0xee));
    }
    const __m256 one = _mm256_add_ps(_mm256_shuffle_ps(two[0], two[1], 0x88), _mm256_shuffle_ps(two[0], two[1], 0xdd));
    return _mm256_permutevar8x32_ps(one, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  }
  LOCKSTEP_INLINE static __m256 positive_half(__m256 x) {
    const __m256 zero = _mm256_setzero_ps();
    return _mm256_blendv_ps(_mm256_mul_ps(x, zero), x, _mm256_cmp_ps(x, zero, _CMP_GT_OQ));
  }
  LOCKSTEP_INLINE static __m256 widen(__m128i halves) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
};

}  // namespace lockstep::kernels::avx2
