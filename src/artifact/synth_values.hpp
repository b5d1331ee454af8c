// The numbers of synthetic models. Every tensor is a function of (seed, name of the tensor) and of the index of its
// elements, so that any slice of any tensor can be made alone, on any machine, in any order (docs/artifact.md,
// "Synthetic models").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "artifact/quantization.hpp"

namespace lockstep::artifact {

/// The key of a tensor's counter-based stream: the first eight bytes (little-endian) of SHA-256("SEED NAME"). Block b
/// of the stream is philox4x32 of the counter (b bits 0-31, b bits 32-63, 0, 0) with this key: 16 bytes, its words in
/// order and little-endian.
[[nodiscard]] std::uint64_t synth_key(std::uint64_t seed, std::string_view name);

/// Bytes [offset, offset + out.size()) of a stream. Codes are these bytes as they are: uniform at every width.
void synth_bytes(std::uint64_t key, std::uint64_t offset, std::span<std::byte> out);

/// Elements [first, first + out.size()) of a dense bf16 tensor, uniform in (-1, 1) * sqrt(3) * deviation: element i
/// takes the halfword h at byte 2i and is bf16((h + 1/2 - 2^15) / 2^15 * sqrt(3) * deviation).
void synth_dense(std::uint64_t key, std::uint64_t first, float deviation, std::span<std::uint16_t> out);

/// Scales [first, first + out.size()) of an affine tensor whose weights shall have this standard deviation: with h the
/// halfword of group i, bf16(step * (3/4 + (h + 1/2) / 2^17)), step = deviation * sqrt(12 / (4^bits - 1)).
void synth_scales(std::uint64_t key, std::uint64_t first, Precision precision, float deviation,
                  std::span<std::uint16_t> out);

/// The biases that centre those weights: bf16(-scale * (2^bits - 1) / 2), element by element.
void synth_biases(std::span<const std::uint16_t> scales, Precision precision, std::span<std::uint16_t> out);

/// What numerics::synthetic_weight(), synthetic_scale() and synthetic_bias() take besides the halfword or the scale.
[[nodiscard]] float synth_unit(float deviation);
[[nodiscard]] float synth_step(Precision precision, float deviation);
[[nodiscard]] float synth_middle(Precision precision);

/// The standard deviation of the weights of a module with rows of `cols` inputs, chosen so that random activations stay
/// of order one through any number of layers, the router discriminates and logits spread over several units.
[[nodiscard]] float synth_deviation(std::string_view module, std::int64_t cols);

}  // namespace lockstep::artifact
