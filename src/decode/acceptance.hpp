// When speculated tokens are kept: the two acceptance rules of docs/speculation.md as pure functions.
//
// A cycle drafted d_1..d_D. Row i of the target (from 0) is the distribution of the token that follows the i drafts
// before it, so row i judges d_{i+1} and row D follows a cycle whose drafts were all kept.
//
// Stream mode: the target draws token number n of every row with the request's own draw for n, exactly as plain
// decoding would. A draft is kept iff it equals that token. The output is the plain output whatever the drafts were.
//
// Rejection mode keeps a draft x, drawn from the draft distribution q, with probability min(1, p(x) / q(x)) and
// replaces the first one that fails by a draw from the normalised max(p - q, 0): the emitted token has distribution p
// exactly (Leviathan et al., "Fast inference from transformers via speculative decoding", 2023). One generator per
// request serves everything, in this order within a cycle:
//   1. the first token of the request when no token is pending: one double;
//   2. the drafts in order: one double each, by choose() from their q;
//   3. one double u per draft until the first rejection; kept iff u <= min(1, p / q);
//   4. on a rejection one double for the replacement; when every draft was kept, one for the bonus token from row D.
// A greedy request has greedy distributions on both sides, draws nothing, and keeps a draft iff it is the argmax.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "decode/distribution.hpp"
#include "decode/sampler.hpp"
#include "numerics/pcg64.hpp"

namespace lockstep::decode {

/// Stream mode: how many drafts are kept. `targets[i]` is the token that row i of the target drew; there is at least
/// one for every draft. The token after the kept drafts is targets[kept] where that row was computed.
[[nodiscard]] std::size_t stream_accepted(std::span<const TokenId> drafts, std::span<const TokenId> targets);

/// min(1, p/q) for the probabilities of one token. q = 0 (a draft from outside its distribution): 1 when p > 0. p = 0
/// gives 0.
[[nodiscard]] double acceptance_probability(double p, double q);

/// The coin of rejection mode: u <= min(1, p/q), and never for p = 0, not even for u = 0.
[[nodiscard]] bool accepts(double u, double p, double q);

/// The distribution of the replacement: max(p - q, 0) over the ascending union of ids, divided by its sequential sum;
/// ids with nothing left are not listed. When nothing at all is left it is p.
void residual(const Distribution& p, const Distribution& q, Distribution& out);

/// One draw from the request's sequential generator: one double by choose(), none for a greedy distribution.
[[nodiscard]] TokenId draw_next(const Distribution& distribution, numerics::Pcg64& generator);

struct RejectionOutcome {
  std::size_t accepted = 0;     ///< drafts kept, from the first
  std::optional<TokenId> next;  ///< the replacement or the bonus token; nothing when the bonus was not wanted
};

/// Steps 3 and 4 of a cycle. `q[i]` is what drafts[i] was drawn from and `p[i]` is row i of the target; p has
/// drafts.size() rows, and one more when `want_bonus` (not at the token budget, no stop token among the drafts).
/// `scratch` receives the residual.
[[nodiscard]] RejectionOutcome rejection_accepted(std::span<const TokenId> drafts, std::span<const Distribution> q,
                                                  std::span<const Distribution> p, bool want_bonus,
                                                  numerics::Pcg64& generator, Distribution& scratch);

}  // namespace lockstep::decode
