#include "decode/sampler_logprobs.hpp"

#include <algorithm>
#include <utility>

#include "decode/distribution_passes.hpp"
#include "numerics/double_math.hpp"

namespace lockstep::decode {

Status read_logprobs(std::span<const float> logits, TokenId chosen, std::size_t count, const RowContext& context,
                     RowScratch& scratch, Logprobs& out) {
  const bool fits = context.vocab > 0 && std::cmp_less_equal(context.vocab, logits.size());
  if (!fits || chosen < 0 || chosen >= context.vocab || count > kMaxTopLogprobs) {
    return fail(ErrorKind::Internal, "token {}: log-probabilities of id {} and {} more from {} logits, vocabulary {}",
                context.token_number, chosen, count, logits.size(), context.vocab);
  }
  const auto row = logits.first(static_cast<std::size_t>(context.vocab));
  scratch.values.resize(row.size());
  scratch.exps.resize(row.size());
  scratch.maxima.resize((row.size() + kMaximaBlock - 1) / kMaximaBlock);
  const RowPasses& passes = row_passes();
  if (!passes.scale(row.data(), 1.0F, scratch.values.data(), row.size())) {
    return detail::non_finite(row, context.token_number);
  }
  passes.block_maxima(scratch.values.data(), scratch.maxima.data(), row.size());
  const float largest = *std::max_element(scratch.maxima.begin(), scratch.maxima.end());
  const double log_z =
      numerics::canon_log64(passes.exp_fold(scratch.values.data(), largest, scratch.exps.data(), row.size()));
  const auto logprob = [&](TokenId id) {
    return (static_cast<double>(row[static_cast<std::size_t>(id)]) - static_cast<double>(largest)) - log_z;
  };
  out.chosen = logprob(chosen);
  out.top.clear();
  if (count == 0) return {};
  select_top(scratch.values, scratch.maxima, count, scratch.bounds, scratch.candidates);
  for (const Candidate& candidate : scratch.candidates) out.top.push_back({candidate.id, logprob(candidate.id)});
  return {};
}

}  // namespace lockstep::decode
