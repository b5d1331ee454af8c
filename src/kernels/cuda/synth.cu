// Synthetic weights: a thread per block of the counter-based stream.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/synth.hpp"
#include "numerics/philox.hpp"
#include "numerics/synthetic.hpp"

namespace lockstep::kernels::cuda {
namespace {

enum class Plane : int { Codes, Elements, Scales };

struct SynthParams {
  SynthBlocks from;
  uint4 *out, *biases;
  float factor, middle;  ///< unit of elements or step of scales
};

__device__ __forceinline__ std::uint16_t low_half(unsigned word) {
  return static_cast<std::uint16_t>(word & 0xffffU);
}
__device__ __forceinline__ unsigned both_halves(std::uint16_t low, std::uint16_t high) {
  return low | static_cast<unsigned>(high) << 16;
}

template <Plane kPlane>
__global__ void synth_kernel(SynthParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= p.from.blocks) return;
  const std::uint64_t index = p.from.first + static_cast<std::uint64_t>(item);
  const PhiloxBlock block =
      philox4x32({{static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0}},
                 static_cast<std::uint32_t>(p.from.key), static_cast<std::uint32_t>(p.from.key >> 32));
  unsigned made[4];
  unsigned biases[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned word = block.word[i];
    if constexpr (kPlane == Plane::Codes) {
      made[i] = word;
    } else if constexpr (kPlane == Plane::Elements) {
      made[i] =
          both_halves(synthetic_weight(low_half(word), p.factor), synthetic_weight(low_half(word >> 16), p.factor));
    } else {
      const std::uint16_t low = synthetic_scale(low_half(word), p.factor);
      const std::uint16_t high = synthetic_scale(low_half(word >> 16), p.factor);
      made[i] = both_halves(low, high);
      biases[i] = both_halves(synthetic_bias(low, p.middle), synthetic_bias(high, p.middle));
    }
  }
  p.out[item] = make_uint4(made[0], made[1], made[2], made[3]);
  if constexpr (kPlane == Plane::Scales) p.biases[item] = make_uint4(biases[0], biases[1], biases[2], biases[3]);
}

template <Plane kPlane>
void launch_synth(Queue& queue, const SynthBlocks& from, float factor, float middle, void* out, void* biases) {
  SynthParams p{};
  p.from = from;
  p.out = static_cast<uint4*>(out);
  p.biases = static_cast<uint4*>(biases);
  p.factor = factor;
  p.middle = middle;
  launch_threads(queue, synth_kernel<kPlane>, from.blocks, p);
}

}  // namespace

void synth_codes(Queue& queue, const SynthBlocks& blocks, void* out) {
  launch_synth<Plane::Codes>(queue, blocks, 0.0F, 0.0F, out, nullptr);
}

void synth_elements(Queue& queue, const SynthBlocks& blocks, float unit, void* out) {
  launch_synth<Plane::Elements>(queue, blocks, unit, 0.0F, out, nullptr);
}

void synth_scales(Queue& queue, const SynthBlocks& blocks, float step, float middle, void* scales, void* biases) {
  launch_synth<Plane::Scales>(queue, blocks, step, middle, scales, biases);
}

}  // namespace lockstep::kernels::cuda
