#include "kernels/cuda/few_delta.hpp"

#include <algorithm>

#include "kernels/cuda/delta_rule.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/quantise.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kDim = 128;  ///< of keys and values
constexpr int kTaps = 4;
constexpr int kSegments = kDim / kSegmentKeys;
constexpr int kThreads = kDim * kSegments;
constexpr int kPadded = kSegments * kPaddedKeys;
constexpr int kColumnsPerWarp = 32 / kSegments;

struct FewDeltaParams {
  ConvRun convs[kFewDeltaRuns];
  DeltaRun rules[kFewDeltaRuns];
  DeltaShape shape;
  FewDeltaInput input;
  std::uint8_t* digits;
  float2* steps;
  float q_scale;
};

struct Line {
  float q[kPadded], k[kPadded], v[kDim], z[kDim], o[kDim];  ///< z: its sigmoid
};

__device__ __forceinline__ int padded(int i) {
  return i + i / kSegmentKeys * 4;
}

/// Brings a line of memory to the second-level cache, which is the same for all kernels: allowed before the kernel in
/// front has ended, whoever writes it.
__device__ __forceinline__ void prefetch_line(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/// One block per value head (x) and run (y). A warp holds eight columns of the state, a lane 32 keys of one column.
__global__ void __launch_bounds__(kThreads, 1) few_delta_kernel(FewDeltaParams p) {
  __shared__ Line lines[kFewDeltaRows];
  __shared__ float decays[kFewDeltaRows];
  __shared__ float betas[kFewDeltaRows];
  __shared__ int last_reader;
  trigger_next_grid();
  const DeltaShape& s = p.shape;
  const ConvRun& conv = p.convs[blockIdx.y];
  const DeltaRun& rule = p.rules[blockIdx.y];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int head = static_cast<int>(blockIdx.x);
  const int ratio = s.heads / s.key_heads;
  const int key_head = head / ratio;
  const bool leads = head % ratio == 0;  // stores what the heads of a key head share
  const std::int64_t channels = s.channels();
  const std::int64_t state_base = static_cast<std::int64_t>(head) * kDim * kDim;
  prefetch_line(rule.state + state_base + thread * 32);
  const int kind = thread / kDim;  // q, k, v, gates
  const int place = thread % kDim;
  const std::int64_t channel =
      kind == 0 ? key_head * kDim + place
                : (kind == 1 ? s.key_size() + key_head * kDim + place : 2 * s.key_size() + head * kDim + place);
  float4 weight = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  if (kind < 3) weight = __ldg(reinterpret_cast<const float4*>(p.input.conv) + channel);
  float norm[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) norm[i] = __ldg(p.input.norm + lane + 32 * i);
  wait_previous_grid();

  float taps[kTaps];
  if (kind < 3) {
#pragma unroll
    for (int j = 0; j + 1 < kTaps; ++j) taps[j + 1] = conv.columns[j * channels + channel];
  }
  const int column = warp * kColumnsPerWarp + lane % kColumnsPerWarp;
  const int segment = lane / kColumnsPerWarp;
  const std::int64_t base = state_base + static_cast<std::int64_t>(segment) * kSegmentKeys * kDim + column;
  float state[kSegmentKeys];
#pragma unroll
  for (int k = 0; k < kSegmentKeys; ++k) state[k] = rule.state[base + static_cast<std::int64_t>(k) * kDim];
  if (kind == 3 && place < conv.rows) {
    const std::int64_t at = static_cast<std::int64_t>(conv.first_row + place) * s.heads + head;
    const float decay =
        canon_exp(p.input.gates.neg_a[head] * canon_softplus(p.input.gates.a[at] + p.input.gates.dt_bias[head]));
    decays[place] = decay;
    betas[place] = canon_sigmoid(p.input.gates.b[at]);
    if (rule.decays != nullptr) rule.decays[static_cast<std::int64_t>(place) * s.heads + head] = decay;
  }
#pragma unroll 1
  for (int t = 0; t < conv.rows; ++t) {
    const std::int64_t row = conv.first_row + t;
    if (kind == 3) {
      lines[t].z[place] = canon_sigmoid(p.input.z[(row * s.heads + head) * kDim + place]);
      continue;
    }
#pragma unroll
    for (int j = 0; j + 1 < kTaps; ++j) taps[j] = taps[j + 1];
    taps[kTaps - 1] = p.input.qkv[row * channels + channel];
    float sum = canon_fma(weight.x, taps[0], 0.0F);
    sum = canon_fma(weight.y, taps[1], sum);
    sum = canon_fma(weight.z, taps[2], sum);
    sum = canon_fma(weight.w, taps[3], sum);
    const float value = canon_silu(sum);
    if (kind == 0) {
      lines[t].q[padded(place)] = value;
    } else if (kind == 1) {
      lines[t].k[padded(place)] = value;
    } else {
      lines[t].v[place] = value;
    }
    if (conv.captured != nullptr && (kind == 2 || leads)) conv.captured[t * channels + channel] = taps[kTaps - 1];
  }
  __syncthreads();
  // The columns of q and k belong to several blocks: the last one to have read them moves them on.
  if (thread == 0 && conv.captured == nullptr) {
    __threadfence();
    // Counts up to the ratio and begins again, so that it never overflows.
    const auto last = static_cast<unsigned>(ratio - 1);
    const unsigned before = atomicInc(p.input.readers + blockIdx.y * s.key_heads + key_head, last);
    last_reader = before == last ? 1 : 0;
  }
#pragma unroll 1
  for (int item = warp; item < 2 * conv.rows; item += kThreads / 32) {
    float* x = item % 2 == 0 ? lines[item / 2].q : lines[item / 2].k;
    float values[4];
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = x[padded(lane + 32 * i)];
      sum = canon_fma(values[i], values[i], sum);
    }
    const float inverse = canon_rsqrt(fold_lanes(sum) + 1e-6F);
    const float scale = item % 2 == 0 ? p.q_scale : 1.0F;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float unit = (values[i] * inverse) * scale;
      x[padded(lane + 32 * i)] = unit;
      if (item % 2 == 1 && rule.keys != nullptr && leads) {
        rule.keys[(item / 2) * s.key_size() + key_head * kDim + lane + 32 * i] = unit;
      }
    }
  }
  __syncthreads();
  if (kind < 3 && conv.captured == nullptr && (kind == 2 || last_reader != 0)) {
#pragma unroll
    for (int j = 0; j + 1 < kTaps; ++j) conv.columns[j * channels + channel] = taps[j + 1];
  }
#pragma unroll 1
  for (int t = 0; t < rule.rows; ++t) {
    float keys[kSegmentKeys];
    load_keys(lines[t].k + segment * kPaddedKeys, keys);
    const float match = decay_and_match(state, decays[t], keys);
    const float delta = betas[t] * (lines[t].v[column] - add_segments<kSegments>(match));
    const float out = add_segments<kSegments>(update_and_read(state, keys, delta, lines[t].q + segment * kPaddedKeys));
    if (segment == 0) {
      lines[t].o[column] = out;
      if (rule.deltas != nullptr) rule.deltas[(static_cast<std::int64_t>(t) * s.heads + head) * kDim + column] = delta;
    }
  }
  __syncthreads();
  if (warp < rule.rows) {
    const Line& line = lines[warp];
    float values[4];
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = line.o[lane + 32 * i];
      sum = canon_fma(values[i], values[i], sum);
    }
    const float mean = fold_lanes(sum) / static_cast<float>(kDim);
    const float inverse = canon_rsqrt(mean + p.input.eps);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[i] = ((values[i] * inverse) * norm[i]) * line.z[lane + 32 * i];
    }
    const std::int64_t group = (static_cast<std::int64_t>(rule.first_row + warp) * s.heads + head) * 2;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      quantise_group64(half == 0 ? values[0] : values[2], half == 0 ? values[1] : values[3], lane, lane + 32,
                       p.digits + (group + half) * kChunkDigits, p.steps + group + half, lane);
    }
  }
#pragma unroll
  for (int k = 0; k < kSegmentKeys; ++k) rule.next_state[base + static_cast<std::int64_t>(k) * kDim] = state[k];
}

}  // namespace

bool few_delta_takes(std::span<const ConvRun> runs, const DeltaShape& shape, int kernel) {
  const bool few = std::all_of(runs.begin(), runs.end(), [](const ConvRun& run) { return run.rows <= kFewDeltaRows; });
  return few && kernel == kTaps && shape.key_dim == kDim && shape.value_dim == kDim &&
         shape.heads % shape.key_heads == 0;
}

void few_delta(Queue& queue, std::span<const ConvRun> convs, std::span<const DeltaRun> rules, const DeltaShape& shape,
               const FewDeltaInput& input, const ActivationRows& out) {
  if (convs.size() == 1 && queue.clusters()) {
    few_delta_run(queue, convs.front(), rules.front(), shape, input, out);
    return;
  }
  while (!convs.empty()) {
    FewDeltaParams p{};
    const std::size_t count = std::min<std::size_t>(convs.size(), kFewDeltaRuns);
    std::copy_n(convs.begin(), count, p.convs);
    std::copy_n(rules.begin(), count, p.rules);
    convs = convs.subspan(count);
    rules = rules.subspan(count);
    p.shape = shape;
    p.input.qkv = input.qkv;
    p.input.z = input.z;
    p.input.gates = input.gates;
    p.input.conv = input.conv;
    p.input.norm = input.norm;
    p.input.eps = input.eps;
    p.input.readers = input.readers;
    p.digits = static_cast<std::uint8_t*>(out.digits);
    p.steps = static_cast<float2*>(out.steps);
    p.q_scale = 1.0F / canon_sqrt(static_cast<float>(kDim));
    launch(queue, few_delta_kernel, {static_cast<unsigned>(shape.heads), static_cast<unsigned>(count), 1},
           {kThreads, 1, 1}, 0, p);
  }
}

}  // namespace lockstep::kernels::cuda
