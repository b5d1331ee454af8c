// Activations to 16-bit integers (docs/numerics.md N3), alone or with the operation that makes them.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/linear.hpp"

namespace lockstep::kernels::cuda {
namespace {

struct QuantiseParams {
  const float *x, *up, *weight;
  std::uint8_t* digits;
  float2* steps;
  int items, cols, chunks, groups, group, dim;  ///< items: groups of all rows, or heads
  float eps;
};

/// The 32 * kPerLane values of a group, lane by lane: value i of a lane is input lane * kPerLane + i (kPacked) or
/// lane + 32 * i of the group.
template <bool kPacked>
__device__ __forceinline__ void store_group(const QuantiseParams& p, std::int64_t row, int group, const float* values,
                                            int per_lane, int lane) {
  unsigned top = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= per_lane) continue;
    const unsigned magnitude = float_bits(values[i]) & 0x7fffffffU;
    top = magnitude > top ? magnitude : top;
  }
  top = __reduce_max_sync(kAllLanes, top);
  const bool finite = top < 0x7f800000U;
  const float t = finite ? bits_float(top) / 32767.0F : bits_float(0x7fc00000U);
  int total = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= per_lane) continue;
    int a = 0;
    if (finite && t != 0.0F) {
      float q = values[i] / t;
      q = q > 32767.0F ? 32767.0F : q;
      q = q < -32767.0F ? -32767.0F : q;
      a = static_cast<int>(canon_round(q));
    }
    total += a;
    // Input c of a chunk: half m, lane quad j, place n of eight; even places come first.
    const int input = group * p.group + (kPacked ? lane * per_lane + i : lane + 32 * i);
    const int c = input % 64;
    const int n = c % 8;
    std::uint8_t* at =
        p.digits + (row * p.chunks + input / 64) * 128 + c % 32 / 8 * 32 + c / 32 * 8 + n % 2 * 4 + n / 2;
    at[0] = static_cast<std::uint8_t>(a >> 8);
    at[16] = static_cast<std::uint8_t>(a);
  }
  total = __reduce_add_sync(kAllLanes, total);
  if (lane == 0) p.steps[row * p.groups + group] = make_float2(t, static_cast<float>(total));
}

/// Two tasks of one launch; the second may be empty.
struct QuantisePair {
  QuantiseParams part[2];
};

/// One warp per group.
template <bool kGated>
__global__ void quantise_kernel(QuantisePair pair) {
  trigger_next_grid();
  wait_previous_grid();
  int item = warp_item();
  const int which = item < pair.part[0].items ? 0 : 1;
  const QuantiseParams& p = pair.part[which];
  if (which == 1) item -= pair.part[0].items;
  if (item >= p.items) return;
  const int lane = lane_id();
  const std::int64_t row = item / p.groups;
  const int group = item % p.groups;
  const std::int64_t from = row * p.cols + group * p.group;
  const int per_lane = p.group / 32;  // 1, 2 or 4
  float values[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= per_lane) continue;
    const std::int64_t at = from + lane * per_lane + i;
    values[i] = kGated ? canon_silu(p.x[at]) * p.up[at] : p.x[at];
  }
  store_group<true>(p, row, group, values, per_lane, lane);
}

/// x / t where 1 / t is known, rounded as a division rounds: a quotient corrected once is off by less than its last
/// place, and corrected once more is the nearest one (Markstein), as long as no remainder that matters is too small for
/// a float. Between these limits of t one is too small only where x is below a quarter of t, and then any quotient near
/// it becomes 0. A division costs twice as much.
constexpr float kLeastStep = 0x1p-60F;
constexpr float kMostStep = 0x1p60F;
__device__ __forceinline__ float quotient(float x, float t, float reciprocal) {
  const float rough = x * reciprocal;
  const float close = canon_fma(canon_fma(-rough, t, x), reciprocal, rough);
  return canon_fma(canon_fma(-close, t, x), reciprocal, close);
}

constexpr int kGroupLanes = 8;  ///< of a group of 64 inputs
constexpr int kLaneInputs = 8;  ///< consecutive ones of a lane

/// Digits of eight consecutive inputs: even ones in .x, odd ones in .y.
struct EightDigits {
  uint2 high, low;
};

__device__ __forceinline__ EightDigits digits_of(const float (&values)[kLaneInputs], float t, bool finite, int& total) {
  const bool divide = !(t >= kLeastStep && t <= kMostStep);
  const float reciprocal = 1.0F / t;
  unsigned high[2] = {0, 0};
  unsigned low[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kLaneInputs; ++i) {
    int a = 0;
    if (finite && t != 0.0F) {
      float q = divide ? values[i] / t : quotient(values[i], t, reciprocal);
      q = q > 32767.0F ? 32767.0F : q;
      q = q < -32767.0F ? -32767.0F : q;
      a = static_cast<int>(canon_round(q));
    }
    total += a;
    high[i % 2] |= (static_cast<unsigned>(a) >> 8 & 0xffU) << (8 * (i / 2));
    low[i % 2] |= (static_cast<unsigned>(a) & 0xffU) << (8 * (i / 2));
  }
  return {make_uint2(high[0], high[1]), make_uint2(low[0], low[1])};
}

/// quantise_kernel() for groups of 64: eight lanes a group, eight consecutive inputs a lane, so that loads and stores
/// are whole words.
template <bool kGated>
__global__ void __launch_bounds__(256) quantise_words_kernel(QuantisePair pair) {
  trigger_next_grid();
  wait_previous_grid();
  int item = thread_item() / kGroupLanes;
  const int which = item < pair.part[0].items ? 0 : 1;
  const QuantiseParams& p = pair.part[which];
  if (which == 1) item -= pair.part[0].items;
  const bool inside = item < p.items;
  const int lane = lane_id() % kGroupLanes;
  float values[kLaneInputs] = {};
  if (inside) {
    const std::int64_t from = static_cast<std::int64_t>(item) * 64 + lane * kLaneInputs;
    const auto* x = reinterpret_cast<const float4*>(p.x + from);
    const float4 first = x[0];
    const float4 second = x[1];
    const float loaded[kLaneInputs] = {first.x, first.y, first.z, first.w, second.x, second.y, second.z, second.w};
    float factors[kLaneInputs];
    if (kGated) {
      const auto* up = reinterpret_cast<const float4*>(p.up + from);
      const float4 a = up[0];
      const float4 b = up[1];
      const float both[kLaneInputs] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < kLaneInputs; ++i) factors[i] = both[i];
    }
#pragma unroll
    for (int i = 0; i < kLaneInputs; ++i) values[i] = kGated ? canon_silu(loaded[i]) * factors[i] : loaded[i];
  }
  unsigned top = 0;
#pragma unroll
  for (int i = 0; i < kLaneInputs; ++i) {
    const unsigned magnitude = float_bits(values[i]) & 0x7fffffffU;
    top = magnitude > top ? magnitude : top;
  }
#pragma unroll
  for (int width = 1; width < kGroupLanes; width *= 2) {
    const unsigned other = __shfl_xor_sync(kAllLanes, top, width);
    top = other > top ? other : top;
  }
  const bool finite = top < 0x7f800000U;
  const float t = finite ? bits_float(top) / 32767.0F : bits_float(0x7fc00000U);
  int total = 0;
  const EightDigits digits = digits_of(values, t, finite, total);
#pragma unroll
  for (int width = 1; width < kGroupLanes; width *= 2) total += __shfl_xor_sync(kAllLanes, total, width);
  if (!inside) return;
  std::uint8_t* at = p.digits + static_cast<std::int64_t>(item) * 128 + lane % 4 * 32 + lane / 4 * 8;
  *reinterpret_cast<uint2*>(at) = digits.high;
  *reinterpret_cast<uint2*>(at + 16) = digits.low;
  if (lane == 0) p.steps[item] = make_float2(t, static_cast<float>(total));
}

constexpr int kMostPerLane = 8;

/// One warp per head of dim values.
__global__ void quantise_norm_kernel(QuantiseParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const int item = warp_item();
  if (item >= p.items) return;
  const int lane = lane_id();
  const int heads = p.cols / p.dim;
  const std::int64_t row = item / heads;
  const int head = item % heads;
  const std::int64_t from = static_cast<std::int64_t>(item) * p.dim;
  float values[kMostPerLane];
  float sum = 0.0F;
#pragma unroll
  for (int i = 0; i < kMostPerLane; ++i) {
    if (32 * i >= p.dim) continue;
    values[i] = p.x[from + lane + 32 * i];
    sum = canon_fma(values[i], values[i], sum);
  }
  const float mean = fold_lanes(sum) / static_cast<float>(p.dim);
  const float inverse = canon_rsqrt(mean + p.eps);
#pragma unroll
  for (int i = 0; i < kMostPerLane; ++i) {
    if (32 * i >= p.dim) continue;
    const int at = lane + 32 * i;
    values[i] = ((values[i] * inverse) * p.weight[at]) * canon_sigmoid(p.up[from + at]);
  }
  const int per_lane = p.group / 32;
  const int head_groups = p.dim / p.group;
#pragma unroll
  for (int i = 0; i < kMostPerLane; ++i) {
    if (i % per_lane != 0 || 32 * i >= p.dim) continue;
    float part[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) part[k] = i + k < kMostPerLane ? values[i + k] : 0.0F;
    store_group<false>(p, row, head * head_groups + i / per_lane, part, per_lane, lane);
  }
}

QuantiseParams params_for(const ActivationRows& target) {
  QuantiseParams p{};
  p.digits = static_cast<std::uint8_t*>(target.digits);
  p.steps = static_cast<float2*>(target.steps);
  p.cols = static_cast<int>(target.cols);
  p.chunks = static_cast<int>(target.chunks());
  p.group = target.group;
  p.groups = p.cols / p.group;
  p.items = static_cast<int>(target.rows) * p.groups;
  return p;
}

template <bool kGated>
void launch_quantise(Queue& queue, std::int64_t items, const QuantisePair& pair) {
  const bool words = pair.part[0].group == 64 && (pair.part[1].items == 0 || pair.part[1].group == 64);
  if (words) {
    launch_threads(queue, quantise_words_kernel<kGated>, items * kGroupLanes, pair);
  } else {
    launch_warps(queue, quantise_kernel<kGated>, items, pair);
  }
}

}  // namespace

void quantise_rows(Queue& queue, const float* x, const ActivationRows& target) {
  QuantisePair pair{};
  pair.part[0] = params_for(target);
  pair.part[0].x = x;
  launch_quantise<false>(queue, pair.part[0].items, pair);
}

void quantise_gated(Queue& queue, std::span<const GatedRows> tasks) {
  QuantisePair pair{};
  std::int64_t items = 0;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    QuantiseParams& p = pair.part[i];
    p = params_for(*tasks[i].target);
    p.x = tasks[i].gate;
    p.up = tasks[i].up;
    items += p.items;
  }
  launch_quantise<true>(queue, items, pair);
}

void quantise_gated_norm(Queue& queue, const float* o, const float* z, const float* weight, int dim, float eps,
                         const ActivationRows& target) {
  QuantiseParams p = params_for(target);
  p.x = o;
  p.up = z;
  p.weight = weight;
  p.dim = dim;
  p.eps = eps;
  p.items = static_cast<int>(target.rows) * (p.cols / dim);
  launch_warps(queue, quantise_norm_kernel, p.items, p);
}

}  // namespace lockstep::kernels::cuda
