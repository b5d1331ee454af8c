#include "engine/request.hpp"

#include <charconv>

#include "base/sha256.hpp"

namespace lockstep::engine {

std::uint64_t choice_seed(std::uint64_t seed, std::uint64_t i) {
  if (i == 0) return seed;
  const std::string digest = sha256_hex(fmt::format("lockstep choice {} {}", seed, i));
  std::uint64_t derived = 0;
  std::from_chars(digest.data(), digest.data() + 16, derived, 16);
  return derived;
}

}  // namespace lockstep::engine
