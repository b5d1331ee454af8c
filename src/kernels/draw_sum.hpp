// A long chain of additions in binary64, sum = round(sum + e) over e >= 0, cut into segments that are looked at side by
// side, with every bit of the chain.
//
// Why that can be: let a sum s lie in [2^E, 2^(E+1)), so that s = N g with g = 2^(E-52). While the sums stay there,
// round(s + e) - s = g (q + r): q is the whole part of e / g, and r, 0 or 1, depends on its fraction and, in a tie,
// on whether N + q is odd. So what a step adds depends on e, E and the parity of N alone, and so does the next parity.
// What a segment adds is therefore known for any s in that binade from two runs, one that begins with the even 2^E and
// one that begins with the odd 2^E + g; the difference to the beginning is exact, and so is adding it to s.
//
// Which binade a segment begins in is told by an approximate sum of all before it. The chain and the approximation both
// stay within 2^-38 of the exact sum, relatively (up to 2^14 additions of what is not negative, each within 2^-53), so
// whoever keeps a distance of kMargin to powers of two is where it seems. Rounding is monotonic, so a sum is also
// surely not below any of its values, nor below what one segment adds up to by itself: with a token that is nearly
// certain, the sum of its lane is 1 and next to nothing. A segment may enter one other binade, by one addition that is
// then made on the real sum. Everything else - the first segment, sums close to a power of two - is added step by step.
#pragma once

#include <cstdint>
#include <cstring>

#include "numerics/portable.hpp"

namespace lockstep::kernels {

/// Additions of a segment.
inline constexpr int kSegmentSteps = 64;
/// Most additions of a chain.
inline constexpr int kMostSteps = 1 << 14;

/// What a segment, or a part of it, adds to an even and to an odd sum.
struct SumIncrement {
  double even, odd;
};

struct SumSegment {
  enum Kind : std::int32_t { kStepByStep, kOneBinade, kTwoBinades };

  SumIncrement first;
  SumIncrement second;  ///< after `across`
  float across;         ///< the value whose addition leaves the first binade
  std::int32_t kind;
};

namespace draw_sum {

inline constexpr double kMargin = 0x1p-37;

LOCKSTEP_INLINE std::uint64_t bits_of(double x) {
  std::uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

/// The largest power of two up to a normal x > 0.
LOCKSTEP_INLINE double binade(double x) {
  const std::uint64_t bits = bits_of(x) & 0x7ff0000000000000ULL;
  double power;
  std::memcpy(&power, &bits, sizeof(power));
  return power;
}

/// Whether a sum of about this size, and surely not below `sure`, is certain to lie in [low, 2 low).
LOCKSTEP_INLINE bool inside(double about, double sure, double low) {
  return (sure >= low || about >= low * (1 + kMargin)) && about < low * (2 - 2 * kMargin);
}

}  // namespace draw_sum

/// `about`: the sum of what the segments before this one add up to, each by itself; `sure`: the largest of them.
/// `value(i)`: the segment's values.
template <class Value>
LOCKSTEP_INLINE SumSegment plan_segment(double about, double sure, Value value) {
  SumSegment out{{0, 0}, {0, 0}, 0.0F, SumSegment::kStepByStep};
  double low = draw_sum::binade(about);
  if (!draw_sum::inside(about, sure, low)) return out;
  double odd_start = low + low * 0x1p-52;
  SumIncrement run{low, odd_start};
  bool crossed = false;
  bool lost = false;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int i = 0; i < kSegmentSteps; ++i) {
    const auto e = static_cast<double>(value(i));
    about += e;
    if (about < low * (2 - 2 * draw_sum::kMargin)) {
      run.even += e;
      run.odd += e;
      continue;
    }
    out.first = {run.even - low, run.odd - odd_start};
    out.across = value(i);
    low = draw_sum::binade(about);
    lost = lost || crossed || !draw_sum::inside(about, e > sure ? e : sure, low);
    crossed = true;
    odd_start = low + low * 0x1p-52;
    run = {low, odd_start};
  }
  const SumIncrement last{run.even - low, run.odd - odd_start};
  (crossed ? out.second : out.first) = last;
  if (!lost) out.kind = crossed ? SumSegment::kTwoBinades : SumSegment::kOneBinade;
  return out;
}

LOCKSTEP_INLINE double add_increment(double sum, const SumIncrement& increment) {
  return sum + ((draw_sum::bits_of(sum) & 1) != 0 ? increment.odd : increment.even);
}

/// The sum after a segment that began with `sum`.
template <class Value>
LOCKSTEP_INLINE double add_segment(double sum, const SumSegment& segment, Value value) {
  if (segment.kind == SumSegment::kStepByStep) {
#if defined(__CUDA_ARCH__)
#pragma unroll 32
#endif
    for (int i = 0; i < kSegmentSteps; ++i) sum += static_cast<double>(value(i));
    return sum;
  }
  sum = add_increment(sum, segment.first);
  if (segment.kind == SumSegment::kOneBinade) return sum;
  return add_increment(sum + static_cast<double>(segment.across), segment.second);
}

}  // namespace lockstep::kernels
