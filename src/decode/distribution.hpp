// From a row of logits to the distribution that a token is drawn from (docs/numerics.md N9).
//
// In this order:
//   1. the mask of a constraint: a masked token has probability 0;
//   2. on raw logits, in binary64: + logit_bias, - (frequency_penalty * count + presence_penalty * [count > 0]);
//   3. rounded to binary32 and multiplied by float(1 / temperature): v. The largest v is m;
//      e_i = canon_exp(v_i - m) (0 for a masked token), Z = fold32 of all e in binary64, p_i = e_i / Z;
//   4. top-k: the first k in the order (v descending, id ascending);
//   5. top-p: walking that order, a token stays while the sum of the p before it is below top_p; the first one stays
//      always. p is normalised over the FULL vocabulary, not over the k survivors;
//   6. min-p: a token stays when e_i >= min_p, that is p_i >= min_p * p_max. This criterion needs no normalisation and
//      cuts a tail of the same order, so it gives the same tokens before or after steps 4 and 5;
//   7. tokens with e_i = 0 go; the rest are listed by ascending id and divided by the sequential sum of their p.
// Greedy requests (SamplerParams::greedy) take the argmax after step 2, ties to the lower id.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "decode/distribution_counts.hpp"
#include "decode/distribution_order.hpp"
#include "decode/params.hpp"

namespace lockstep::decode {

/// The tokens that can be drawn.
struct Distribution {
  std::vector<TokenId> ids;           ///< ascending
  std::vector<double> probabilities;  ///< of ids[i]; positive, sum 1 up to rounding
  bool greedy = false;                ///< one id with probability 1, chosen without a random number

  /// 0 for a token that is not listed. O(log size).
  [[nodiscard]] double probability_of(TokenId id) const;
};

/// What else decides a row besides the request's parameters.
struct RowContext {
  std::uint64_t token_number = 0;            ///< of the token to be drawn, for error messages
  std::int64_t vocab = 0;                    ///< usable vocabulary: ids from here on are padding and never emitted
  const TokenCounts* counts = nullptr;       ///< of the completion before this token; needed only with penalties
  std::span<const std::uint64_t> allowed{};  ///< bit i % 64 of word i / 64 allows token i; empty allows every token
};

/// Working memory, reused between calls; after the first call with a vocabulary size nothing is allocated unless a
/// candidate list grows. One per thread.
struct RowScratch {
  std::vector<float> values, exps, maxima, bounds;
  std::vector<Candidate> candidates;
};

/// Computes the distribution of one row. `logits` has at least context.vocab values; `params` come from checked_params.
/// Errors: Internal for a non-finite logit (padding aside), with the token number and id; Invalid when the mask leaves
/// no token; Internal for a mask or row that is too short.
Status make_distribution(std::span<const float> logits, const SamplerParams& params, const RowContext& context,
                         RowScratch& scratch, Distribution& out);

namespace detail {

/// The error for a row whose scan found a non-finite logit.
[[nodiscard]] tl::unexpected<Error> non_finite(std::span<const float> logits, std::uint64_t token_number);

}  // namespace detail

}  // namespace lockstep::decode
