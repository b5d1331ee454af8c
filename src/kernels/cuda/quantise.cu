// Activations to 16-bit integers (docs/numerics.md N3), alone or with the operation that makes them.
#include "kernels/cuda/linear.hpp"
#include "kernels/cuda/quantise_octet.cuh"

namespace lockstep::kernels::cuda {
namespace {

struct QuantiseParams {
  const float *x, *up;
  std::uint8_t* digits;
  float2* steps;
  int items, cols, chunks, groups, group;  ///< items: groups of all rows
};

/// The 32 * per_lane values of a group: value i of a lane is input lane * per_lane + i.
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
    const int input = group * p.group + lane * per_lane + i;
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
  const QuantiseParams p = which == 0 ? pair.part[0] : pair.part[1];
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
  store_group(p, row, group, values, per_lane, lane);
}

constexpr int kGroupLanes = 64 / kOctet;

/// quantise_kernel() for groups of 64: eight lanes a group, eight consecutive inputs a lane, so that loads and stores
/// are whole words.
template <bool kGated>
__global__ void __launch_bounds__(256) quantise_words_kernel(QuantisePair pair) {
  trigger_next_grid();
  wait_previous_grid();
  int item = thread_item() / kGroupLanes;
  const int which = item < pair.part[0].items ? 0 : 1;
  const QuantiseParams p = which == 0 ? pair.part[0] : pair.part[1];
  if (which == 1) item -= pair.part[0].items;
  const bool inside = item < p.items;
  const std::int64_t octet = static_cast<std::int64_t>(item) * kGroupLanes + lane_id() % kGroupLanes;
  float values[kOctet] = {};
  if (inside) {
    load_octet(p.x + octet * kOctet, values);
    if constexpr (kGated) {
      float up[kOctet];
      load_octet(p.up + octet * kOctet, up);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) values[i] = quick_silu(values[i]) * up[i];
    }
  }
  quantise_octet<kGroupLanes>(values, p.digits + digits_of_octet(octet), p.steps + item, inside);
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

}  // namespace lockstep::kernels::cuda
