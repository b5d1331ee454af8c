// Log-probabilities for the `logprobs` of the wire formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "decode/distribution.hpp"
#include "decode/params.hpp"

namespace lockstep::decode {

/// The most alternatives that a request may ask for.
inline constexpr std::size_t kMaxTopLogprobs = 20;

struct TokenLogprob {
  TokenId id = 0;
  double logprob = 0;
};

struct Logprobs {
  double chosen = 0;              ///< of the emitted token
  std::vector<TokenLogprob> top;  ///< the most probable tokens in the canon's order; need not hold the emitted one
};

/// Natural logarithms of the model's own distribution: the softmax at temperature 1 of the raw logits over the usable
/// vocabulary, before mask, bias, penalties, temperature and filters. So they describe the model, whatever the
/// request's sampling; a token that sampling made likelier or impossible keeps the model's value. log p_i = (l_i - max)
/// - log Z, with Z as in decode/distribution.hpp and binary64 throughout. `chosen` is below context.vocab; `count` <=
/// kMaxTopLogprobs. Only vocab and token_number of the context are used. Errors: Internal for a non-finite logit, a
/// short row or an id outside the vocabulary.
Status read_logprobs(std::span<const float> logits, TokenId chosen, std::size_t count, const RowContext& context,
                     RowScratch& scratch, Logprobs& out);

}  // namespace lockstep::decode
