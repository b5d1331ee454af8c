// The parameters of one request that decide which tokens come out.
#pragma once

#include <cstdint>
#include <map>

#include "base/result.hpp"

namespace lockstep::decode {

using TokenId = std::int32_t;

/// How a token is drawn from its distribution (docs/numerics.md N9).
enum class DrawRule : std::uint8_t {
  Pcg64,  ///< token n uses double n of NumPy's default_rng(seed) and the inverse CDF over ascending ids
  Race,   ///< every candidate gets an exponential arrival time from (seed, n, id); the earliest wins
};

/// When a speculated token is kept (decode/acceptance.hpp).
enum class AcceptanceRule : std::uint8_t {
  Stream,     ///< iff it equals the token that the target draws: output equals plain decoding byte for byte
  Rejection,  ///< the p/q test: exact in distribution, with a draw order of its own; needs DrawRule::Pcg64
};

/// Below this temperature a request is greedy: argmax, ties to the lower id, no random number.
inline constexpr double kGreedyBelow = 1e-5;

struct SamplerParams {
  double temperature = 1.0;
  std::int64_t top_k = 0;  ///< 0 = off
  double top_p = 1.0;      ///< 1 = off; 0 keeps the most probable token
  double min_p = 0.0;      ///< 0 = off; keeps tokens with at least min_p times the largest probability
  double presence_penalty = 0.0, frequency_penalty = 0.0;
  std::map<TokenId, double> logit_bias{};  ///< added to raw logits
  std::uint64_t seed = 0;
  DrawRule draw_rule = DrawRule::Pcg64;
  AcceptanceRule acceptance = AcceptanceRule::Stream;

  [[nodiscard]] bool greedy() const { return temperature < kGreedyBelow; }
  [[nodiscard]] bool has_penalties() const { return presence_penalty != 0 || frequency_penalty != 0; }
};

/// Checks every parameter and returns the set in normal form: top_k -1 (off, as other engines write it) becomes 0 and
/// penalties are clamped to [-2, 2]. `vocab` is the usable vocabulary size. Errors: Invalid, naming the parameter, its
/// value and the range.
Result<SamplerParams> checked_params(SamplerParams params, std::int64_t vocab);

}  // namespace lockstep::decode
