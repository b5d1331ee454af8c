// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a counter-based generator, so
// that the random number of any (token position, token id) can be computed alone, on any machine, in any order.
#pragma once

#include <cstdint>

#include "numerics/portable.hpp"

namespace lockstep::numerics {

struct PhiloxBlock {
  std::uint32_t word[4];
};

/// Ten rounds over a counter of four words with a key of two words.
LOCKSTEP_INLINE PhiloxBlock philox4x32(PhiloxBlock counter, std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xd2511f53U} * counter.word[0];
    const std::uint64_t product1 = std::uint64_t{0xcd9e8d57U} * counter.word[2];
    counter = {
        {static_cast<std::uint32_t>(product1 >> 32) ^ counter.word[1] ^ key0, static_cast<std::uint32_t>(product1),
         static_cast<std::uint32_t>(product0 >> 32) ^ counter.word[3] ^ key1, static_cast<std::uint32_t>(product0)}};
    key0 += 0x9e3779b9U;
    key1 += 0xbb67ae85U;
  }
  return counter;
}

/// The uniform number of candidate token `id` at token number `n` of a request (docs/numerics.md N9).
///
///   key     = (seed bits 0-31, seed bits 32-63)
///   counter = (n bits 0-31, n bits 32-63, id, 0)
///   r       = output word 0 + 2^32 * output word 1
///   u       = ((r >> 11) | 1) * 2^-53
///
/// The numerator is odd and has 53 bits, so u is exact, never 0 and never 1: 2^-53 <= u <= 1 - 2^-53, and its values
/// are symmetric about 1/2. Output words 2 and 3 are not used.
LOCKSTEP_INLINE double philox_uniform(std::uint64_t seed, std::uint64_t n, std::uint32_t id) {
  const PhiloxBlock block = philox4x32({{static_cast<std::uint32_t>(n), static_cast<std::uint32_t>(n >> 32), id, 0}},
                                       static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32));
  const std::uint64_t r = block.word[0] | (std::uint64_t{block.word[1]} << 32);
  return static_cast<double>((r >> 11) | 1) * 0x1p-53;
}

}  // namespace lockstep::numerics
