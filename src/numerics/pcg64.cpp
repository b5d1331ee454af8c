#include "numerics/pcg64.hpp"

#include <bit>

namespace lockstep::numerics {
namespace {

constexpr Uint128 kMultiplier = (Uint128{0x2360ed051fc65da4U} << 64) | 0x4385df649fccf645U;

// The hash of SeedSequence: every word is mixed with a running constant that is multiplied after each use.
class SeedHash {
 public:
  SeedHash(std::uint32_t initial, std::uint32_t multiplier) : constant_(initial), multiplier_(multiplier) {}

  std::uint32_t operator()(std::uint32_t value) {
    value ^= constant_;
    constant_ *= multiplier_;
    value *= constant_;
    return value ^ (value >> 16);
  }

 private:
  std::uint32_t constant_, multiplier_;
};

std::uint32_t mix(std::uint32_t x, std::uint32_t y) {
  const std::uint32_t result = x * 0xca01f9ddU - y * 0x4973f715U;
  return result ^ (result >> 16);
}

std::array<std::uint32_t, 4> entropy_pool(std::uint64_t seed) {
  SeedHash hash(0x43b0d7e5U, 0x931e8875U);
  // The seed enters as little-endian 32-bit words; absent words hash as zero, so the upper word needs no special case.
  std::array<std::uint32_t, 4> pool = {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32), 0, 0};
  for (std::uint32_t& word : pool) word = hash(word);
  for (std::size_t from = 0; from < pool.size(); ++from) {
    for (std::size_t to = 0; to < pool.size(); ++to) {
      if (from != to) pool[to] = mix(pool[to], hash(pool[from]));
    }
  }
  return pool;
}

}  // namespace

void seed_sequence(std::uint64_t seed, std::span<std::uint64_t> out) {
  const std::array<std::uint32_t, 4> pool = entropy_pool(seed);
  SeedHash hash(0x8b51f9ddU, 0x58f38dedU);
  std::size_t next = 0;
  for (std::uint64_t& value : out) {
    const std::uint64_t low = hash(pool[next % 4]);
    const std::uint64_t high = hash(pool[(next + 1) % 4]);
    value = low | (high << 32);
    next += 2;
  }
}

Pcg64::Pcg64(std::uint64_t seed) {
  std::array<std::uint64_t, 4> words;
  seed_sequence(seed, words);
  increment_ = (((Uint128{words[2]} << 64) | words[3]) << 1) | 1;
  // From state 0: one step gives the increment, then the initial state is added and one more step taken.
  state_ = (increment_ + ((Uint128{words[0]} << 64) | words[1])) * kMultiplier + increment_;
}

std::uint64_t Pcg64::next() {
  state_ = state_ * kMultiplier + increment_;
  const auto high = static_cast<std::uint64_t>(state_ >> 64);
  const auto low = static_cast<std::uint64_t>(state_);
  return std::rotr(high ^ low, static_cast<int>(high >> 58));
}

void Pcg64::skip(std::uint64_t count) {
  // n steps are one affine map; squaring it doubles the number of steps (F. Brown, "Random number generation with
  // arbitrary strides", 1994).
  Uint128 multiplier = 1, increment = 0, step_multiplier = kMultiplier, step_increment = increment_;
  for (; count != 0; count >>= 1) {
    if ((count & 1) != 0) {
      multiplier *= step_multiplier;
      increment = increment * step_multiplier + step_increment;
    }
    step_increment *= step_multiplier + 1;
    step_multiplier *= step_multiplier;
  }
  state_ = state_ * multiplier + increment;
}

double Pcg64::uniform_at(std::uint64_t n) const {
  Pcg64 copy = *this;
  copy.skip(n);
  return copy.next_double();
}

}  // namespace lockstep::numerics
