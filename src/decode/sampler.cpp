#include "decode/sampler.hpp"

#include <limits>

#include "numerics/double_math.hpp"
#include "numerics/philox.hpp"

namespace lockstep::decode {
namespace {

Choice choice_at(const Distribution& distribution, std::size_t index) {
  return {distribution.ids[index], distribution.probabilities[index]};
}

}  // namespace

Choice choose(const Distribution& distribution, double u) {
  const auto& p = distribution.probabilities;
  double total = 0;
  for (const double probability : p) total += probability;
  // The comparison with the rounded quotient is the rule; the product only says where it cannot hold yet, which saves a
  // division for nearly every id.
  const double surely_below = u * total * (1 - 0x1p-40);
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    sum += p[i];
    if (sum >= surely_below && sum / total > u) return choice_at(distribution, i);
  }
  return choice_at(distribution, p.size() - 1);  // not reached for u < 1: the last quotient is 1
}

Choice race(const Distribution& distribution, std::uint64_t seed, std::uint64_t token_number) {
  double earliest = std::numeric_limits<double>::infinity();
  std::size_t winner = 0;
  for (std::size_t i = 0; i < distribution.ids.size(); ++i) {
    const double p = distribution.probabilities[i];
    const double u = numerics::philox_uniform(seed, token_number, static_cast<std::uint32_t>(distribution.ids[i]));
    // -log(u) >= 1 - u: most candidates are out of the race before a logarithm is taken. The margin covers rounding.
    if (1.0 - u > earliest * p * (1 + 0x1p-40)) continue;
    const double arrival = -numerics::canon_log64(u) / p;
    if (arrival < earliest) {
      earliest = arrival;
      winner = i;
    }
  }
  return choice_at(distribution, winner);
}

Choice Sampler::draw(const Distribution& distribution, std::uint64_t token_number) const {
  if (distribution.greedy) return choice_at(distribution, 0);
  if (rule_ == DrawRule::Race) return race(distribution, seed_, token_number);
  return choose(distribution, uniform(token_number));
}

}  // namespace lockstep::decode
