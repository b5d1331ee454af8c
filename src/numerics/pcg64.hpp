// PCG64 (XSL-RR 128/64) seeded like NumPy, so that a seed means the same stream as numpy.random.default_rng(seed).
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace lockstep::numerics {

__extension__ typedef unsigned __int128 Uint128;

/// NumPy's SeedSequence for a 64-bit entropy: hashes the seed into a pool of four words and expands it to `out`.
/// The same as numpy.random.SeedSequence(seed).generate_state(out.size(), numpy.uint64).
void seed_sequence(std::uint64_t seed, std::span<std::uint64_t> out);

/// The generator. A value type: copying it copies the stream position, equality compares streams and positions.
class Pcg64 {
 public:
  explicit Pcg64(std::uint64_t seed);

  /// The next 64 bits: one step of the congruential state, then its output function.
  std::uint64_t next();

  /// The next double in [0, 1): the upper 53 bits of next() times 2^-53, NumPy's Generator.random().
  double next_double() { return to_double(next()); }

  /// Passes over `count` outputs, in O(log count).
  void skip(std::uint64_t count);

  /// Double number `n` (from 0) counted from the present position, which does not move. O(log n).
  [[nodiscard]] double uniform_at(std::uint64_t n) const;

  [[nodiscard]] static double to_double(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

  [[nodiscard]] Uint128 state() const { return state_; }
  [[nodiscard]] Uint128 increment() const { return increment_; }

  friend bool operator==(const Pcg64&, const Pcg64&) = default;

 private:
  Uint128 state_, increment_;
};

}  // namespace lockstep::numerics
