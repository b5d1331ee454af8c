// Synthetic weights made on a CUDA device: the bytes that artifact/synth_values.hpp gives on the processor, as they are
// stored (before layout.cu lays them out).
#pragma once

#include <cstdint>

#include "kernels/cuda/queue.hpp"

namespace lockstep::kernels::cuda {

/// A piece of a stream of 16-byte blocks (numerics/philox.hpp): blocks [first, first + blocks). Targets have room for
/// all of them, so a plane that ends inside a block is followed by what completes it.
struct SynthBlocks {
  std::uint64_t key = 0, first = 0;
  std::int64_t blocks = 0;
};

/// Blocks that hold `bytes` bytes.
[[nodiscard]] constexpr std::int64_t synth_blocks(std::uint64_t bytes) {
  return static_cast<std::int64_t>((bytes + 15) / 16);
}

/// The stream as it is: codes. `out` is 16-byte aligned, here and below.
void synth_codes(Queue& queue, const SynthBlocks& blocks, void* out);
/// Dense bf16 elements, eight a block (numerics::synthetic_weight).
void synth_elements(Queue& queue, const SynthBlocks& blocks, float unit, void* out);
/// bf16 scales and their biases, eight a block (numerics::synthetic_scale, numerics::synthetic_bias).
void synth_scales(Queue& queue, const SynthBlocks& blocks, float step, float middle, void* scales, void* biases);

}  // namespace lockstep::kernels::cuda
