// Drawing a token from a distribution (docs/numerics.md N9). Every draw is a pure function of its arguments: token n
// can be drawn again, or ahead of time by a speculating step, with the same result.
#pragma once

#include <cstdint>

#include "decode/distribution.hpp"
#include "decode/params.hpp"
#include "numerics/pcg64.hpp"

namespace lockstep::decode {

struct Choice {
  TokenId id = 0;
  double probability = 0;  ///< of the id in the distribution it was drawn from
};

/// NumPy's Generator.choice(ids, p=p) for the double u in [0, 1) that it would draw: with c the sequential cumulative
/// sum of the probabilities over ascending ids, the first id with c_i / c_last > u. The distribution is not empty.
[[nodiscard]] Choice choose(const Distribution& distribution, double u);

/// The race: id x arrives at -log(u) / p(x), u = philox_uniform(seed, token_number, x); the earliest wins, ties go to
/// the lower id. Exponential arrival times with rates p make x win with probability p(x). The distribution is not
/// empty.
[[nodiscard]] Choice race(const Distribution& distribution, std::uint64_t seed, std::uint64_t token_number);

/// The draws of one request. Immutable and cheap to copy; may be used by several threads.
class Sampler {
 public:
  Sampler(std::uint64_t seed, DrawRule rule) : generator_(seed), seed_(seed), rule_(rule) {}
  explicit Sampler(const SamplerParams& params) : Sampler(params.seed, params.draw_rule) {}

  /// Token number `token_number` (from 0) of the completion. Under pcg64 it uses double `token_number` of the request's
  /// generator. A greedy distribution gives its only id.
  [[nodiscard]] Choice draw(const Distribution& distribution, std::uint64_t token_number) const;

  /// The double that token `token_number` uses under pcg64.
  [[nodiscard]] double uniform(std::uint64_t token_number) const { return generator_.uniform_at(token_number); }

 private:
  numerics::Pcg64 generator_;
  std::uint64_t seed_;
  DrawRule rule_;
};

}  // namespace lockstep::decode
