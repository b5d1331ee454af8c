#include "decode/distribution_passes.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "numerics/bits.hpp"
#include "numerics/canon_math.hpp"

namespace lockstep::decode {
namespace {

// One source for all instruction sets: plain loops over fixed-width lanes, inlined into functions that differ only in
// the instructions the compiler may use.

LOCKSTEP_INLINE bool scale_body(const float* logits, float scale, float* values, std::size_t n) {
  constexpr std::uint32_t kExponent = 0x7f800000U;
  std::uint32_t bad = 0;
  for (std::size_t i = 0; i < n; ++i) {
    bad |= static_cast<std::uint32_t>((numerics::float_bits(logits[i]) & kExponent) == kExponent);
    values[i] = logits[i] * scale;
  }
  return bad == 0;
}

LOCKSTEP_INLINE void block_maxima_body(const float* values, float* maxima, std::size_t n) {
  constexpr std::size_t kLanes = 16;
  for (std::size_t begin = 0; begin < n; begin += kMaximaBlock, ++maxima) {
    const std::size_t end = std::min(begin + kMaximaBlock, n);
    float lanes[kLanes];
    for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
    std::size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (std::size_t j = 0; j < kLanes; ++j) lanes[j] = values[i + j] > lanes[j] ? values[i + j] : lanes[j];
    }
    for (; i < end; ++i) lanes[0] = values[i] > lanes[0] ? values[i] : lanes[0];
    *maxima = *std::max_element(lanes, lanes + kLanes);
  }
}

LOCKSTEP_INLINE double exp_fold_body(const float* values, float max, float* exps, std::size_t n) {
  constexpr std::size_t kLanes = 32;
  constexpr std::size_t kChunk = 32 * kLanes;  // stays in the first-level cache between the two loops
  double lanes[kLanes] = {};
  for (std::size_t begin = 0; begin < n; begin += kChunk) {
    const std::size_t count = std::min(kChunk, n - begin);
    const float* from = values + begin;
    float* to = exps + begin;
    for (std::size_t i = 0; i < count; ++i) to[i] = numerics::canon_exp(from[i] - max);
    std::size_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (std::size_t j = 0; j < kLanes; ++j) lanes[j] += static_cast<double>(to[i + j]);
    }
    // Missing elements of the last row would add +0 to a sum that is never -0: nothing to do for them.
    for (std::size_t j = 0; i + j < count; ++j) lanes[j] += static_cast<double>(to[i + j]);
  }
  for (std::size_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::size_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

bool scale_portable(const float* logits, float scale, float* values, std::size_t n) {
  return scale_body(logits, scale, values, n);
}
void block_maxima_portable(const float* values, float* maxima, std::size_t n) {
  block_maxima_body(values, maxima, n);
}
double exp_fold_portable(const float* values, float max, float* exps, std::size_t n) {
  return exp_fold_body(values, max, exps, n);
}

constexpr RowPasses kPortable = {"portable", scale_portable, block_maxima_portable, exp_fold_portable};

#if defined(__x86_64__)

[[gnu::target("avx2,fma")]] bool scale_avx2(const float* logits, float scale, float* values, std::size_t n) {
  return scale_body(logits, scale, values, n);
}
[[gnu::target("avx2,fma")]] void block_maxima_avx2(const float* values, float* maxima, std::size_t n) {
  block_maxima_body(values, maxima, n);
}
[[gnu::target("avx2,fma")]] double exp_fold_avx2(const float* values, float max, float* exps, std::size_t n) {
  return exp_fold_body(values, max, exps, n);
}

constexpr RowPasses kAvx2 = {"avx2", scale_avx2, block_maxima_avx2, exp_fold_avx2};

[[gnu::target("avx512f,avx512dq,avx512vl,fma")]] bool scale_avx512(const float* logits, float scale, float* values,
                                                                   std::size_t n) {
  return scale_body(logits, scale, values, n);
}
[[gnu::target("avx512f,avx512dq,avx512vl,fma")]] void block_maxima_avx512(const float* values, float* maxima,
                                                                          std::size_t n) {
  block_maxima_body(values, maxima, n);
}
[[gnu::target("avx512f,avx512dq,avx512vl,fma")]] double exp_fold_avx512(const float* values, float max, float* exps,
                                                                        std::size_t n) {
  return exp_fold_body(values, max, exps, n);
}

constexpr RowPasses kAvx512 = {"avx512", scale_avx512, block_maxima_avx512, exp_fold_avx512};

#endif

std::vector<RowPasses> detect() {
  std::vector<RowPasses> sets = {kPortable};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets.push_back(kAvx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    sets.push_back(kAvx512);
  }
#endif
  return sets;
}

}  // namespace

std::span<const RowPasses> supported_row_passes() {
  static const std::vector<RowPasses> sets = detect();
  return sets;
}

const RowPasses& row_passes() {
  return supported_row_passes().back();
}

}  // namespace lockstep::decode
