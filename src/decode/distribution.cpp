#include "decode/distribution.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "decode/distribution_passes.hpp"

namespace lockstep::decode {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

/// Candidates looked at first when only the probability mass bounds their number.
constexpr std::size_t kFirstLook = 64;

Status check_arguments(std::span<const float> logits, const SamplerParams& params, const RowContext& context) {
  const std::int64_t vocab = context.vocab;
  if (vocab <= 0 || std::cmp_greater(vocab, logits.size())) {
    return fail(ErrorKind::Internal, "token {}: a row of {} logits for a vocabulary of {}", context.token_number,
                logits.size(), vocab);
  }
  if (!context.allowed.empty() && context.allowed.size() < (static_cast<std::size_t>(vocab) + 63) / 64) {
    return fail(ErrorKind::Internal, "token {}: a mask of {} words for a vocabulary of {}", context.token_number,
                context.allowed.size(), vocab);
  }
  const auto& bias = params.logit_bias;
  if (!bias.empty() && (bias.begin()->first < 0 || bias.rbegin()->first >= vocab)) {
    return fail(ErrorKind::Internal, "token {}: logit_bias was not checked against the vocabulary of {}",
                context.token_number, vocab);
  }
  return {};
}

/// Step 2 for the few tokens that it concerns; everything else was scaled as it is.
void adjust(std::span<const float> logits, const SamplerParams& params, const RowContext& context, float scale,
            std::span<float> values) {
  const TokenCounts* counts = params.has_penalties() ? context.counts : nullptr;
  const auto set = [&](TokenId id, double bias, std::uint32_t count) {
    const auto i = static_cast<std::size_t>(id);
    double logit = static_cast<double>(logits[i]) + bias;
    if (count > 0) logit -= params.frequency_penalty * count + params.presence_penalty;
    values[i] = static_cast<float>(logit) * scale;
  };
  for (const auto& [id, bias] : params.logit_bias) set(id, bias, counts == nullptr ? 0 : counts->of(id));
  if (counts == nullptr) return;
  for (const auto& [id, count] : counts->entries()) {
    const bool in_row = id >= 0 && std::cmp_less(id, values.size());
    if (in_row && !params.logit_bias.contains(id)) set(id, 0.0, count);
  }
}

void mask(std::span<const std::uint64_t> allowed, std::span<float> values) {
  for (std::size_t word = 0; word * 64 < values.size() && word < allowed.size(); ++word) {
    if (allowed[word] == ~std::uint64_t{0}) continue;
    const std::size_t end = std::min(word * 64 + 64, values.size());
    for (std::size_t i = word * 64; i < end; ++i) {
      if (((allowed[word] >> (i % 64)) & 1) == 0) values[i] = kMasked;
    }
  }
}

/// Steps 1 to 3 up to the maximum, which is returned; fills scratch.values and scratch.maxima.
Result<float> scaled_values(std::span<const float> logits, const SamplerParams& params, const RowContext& context,
                            RowScratch& scratch) {
  const float scale = params.greedy() ? 1.0F : static_cast<float>(1.0 / params.temperature);
  const std::size_t n = logits.size();
  scratch.values.resize(n);
  scratch.maxima.resize((n + kMaximaBlock - 1) / kMaximaBlock);
  const RowPasses& passes = row_passes();
  if (!passes.scale(logits.data(), scale, scratch.values.data(), n)) {
    return detail::non_finite(logits, context.token_number);
  }
  adjust(logits, params, context, scale, scratch.values);
  mask(context.allowed, scratch.values);
  passes.block_maxima(scratch.values.data(), scratch.maxima.data(), n);
  const float largest = *std::max_element(scratch.maxima.begin(), scratch.maxima.end());
  if (std::isfinite(largest)) return largest;
  if (largest > 0) {
    return fail(ErrorKind::Internal, "token {}: a logit divided by temperature {} overflows", context.token_number,
                params.temperature);
  }
  return fail(ErrorKind::Invalid, "token {}: the constraint on the output leaves no token to choose",
              context.token_number);
}

/// How many of the ordered candidates step 5 keeps.
std::size_t mass_prefix(std::span<const Candidate> candidates, std::span<const float> exps, double z, double top_p) {
  if (top_p >= 1) return candidates.size();
  double before = 0;
  for (std::size_t rank = 0; rank < candidates.size(); ++rank) {
    if (rank > 0 && !(before < top_p)) return rank;
    before += static_cast<double>(exps[static_cast<std::size_t>(candidates[rank].id)]) / z;
  }
  return candidates.size();
}

/// Steps 4 and 5; leaves the kept tokens in scratch.candidates, by ascending id.
void select_candidates(const SamplerParams& params, double z, RowScratch& scratch) {
  auto& candidates = scratch.candidates;
  const bool bounded = params.top_k > 0;
  std::size_t count = bounded ? static_cast<std::size_t>(params.top_k) : kFirstLook;
  for (;; count *= 8) {
    select_top(scratch.values, scratch.maxima, count, scratch.bounds, candidates);
    const std::size_t found = candidates.size();
    const std::size_t kept = mass_prefix(candidates, scratch.exps, z, params.top_p);
    candidates.resize(kept);
    // A full list that was kept whole may go on; one that is short holds every token there is.
    if (bounded || kept < found || found < count) break;
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

/// Steps 6 and 7 for one token: lists it unless it is filtered. Returns the sum with its probability added.
double keep(TokenId id, double min_p, double z, std::span<const float> exps, double sum, Distribution& out) {
  const double e = exps[static_cast<std::size_t>(id)];
  if (e == 0 || e < min_p) return sum;
  out.ids.push_back(id);
  out.probabilities.push_back(e / z);
  return sum + out.probabilities.back();
}

}  // namespace

namespace detail {

tl::unexpected<Error> non_finite(std::span<const float> logits, std::uint64_t token_number) {
  const auto bad = std::find_if(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x); });
  return fail(ErrorKind::Internal, "token {}: the model gave a non-finite logit ({} for id {}); the request is stopped",
              token_number, bad == logits.end() ? 0.0F : *bad, bad - logits.begin());
}

}  // namespace detail

double Distribution::probability_of(TokenId id) const {
  const auto found = std::lower_bound(ids.begin(), ids.end(), id);
  return found == ids.end() || *found != id ? 0.0 : probabilities[static_cast<std::size_t>(found - ids.begin())];
}

Status make_distribution(std::span<const float> logits, const SamplerParams& params, const RowContext& context,
                         RowScratch& scratch, Distribution& out) {
  LOCKSTEP_TRY(check_arguments(logits, params, context));
  const auto row = logits.first(static_cast<std::size_t>(context.vocab));
  const float largest = LOCKSTEP_TRY(scaled_values(row, params, context, scratch));
  out.ids.clear();
  out.probabilities.clear();
  out.greedy = params.greedy();
  if (out.greedy) {
    out.ids.push_back(select_first(scratch.values, scratch.maxima));
    out.probabilities.push_back(1.0);
    return {};
  }
  scratch.exps.resize(row.size());
  const double z = row_passes().exp_fold(scratch.values.data(), largest, scratch.exps.data(), row.size());
  double sum = 0;
  if (params.top_k > 0 || params.top_p < 1) {
    select_candidates(params, z, scratch);
    for (const Candidate& candidate : scratch.candidates) {
      sum = keep(candidate.id, params.min_p, z, scratch.exps, sum, out);
    }
  } else {
    for (std::size_t i = 0; i < row.size(); ++i) {
      sum = keep(static_cast<TokenId>(i), params.min_p, z, scratch.exps, sum, out);
    }
  }
  for (double& probability : out.probabilities) probability /= sum;
  return {};
}

}  // namespace lockstep::decode
