#include "decode/acceptance.hpp"

#include <algorithm>

namespace lockstep::decode {

std::size_t stream_accepted(std::span<const TokenId> drafts, std::span<const TokenId> targets) {
  const std::size_t count = std::min(drafts.size(), targets.size());
  std::size_t kept = 0;
  while (kept < count && drafts[kept] == targets[kept]) ++kept;
  return kept;
}

double acceptance_probability(double p, double q) {
  if (p == 0) return 0;
  return p < q ? p / q : 1;
}

bool accepts(double u, double p, double q) {
  return p > 0 && u <= acceptance_probability(p, q);
}

void residual(const Distribution& p, const Distribution& q, Distribution& out) {
  out.ids.clear();
  out.probabilities.clear();
  out.greedy = false;
  // Only ids of p can have something left, so walking p covers the union; q is followed in step.
  double sum = 0;
  std::size_t j = 0;
  for (std::size_t i = 0; i < p.ids.size(); ++i) {
    while (j < q.ids.size() && q.ids[j] < p.ids[i]) ++j;
    const double drafted = j < q.ids.size() && q.ids[j] == p.ids[i] ? q.probabilities[j] : 0.0;
    const double left = p.probabilities[i] - drafted;
    if (!(left > 0)) continue;
    out.ids.push_back(p.ids[i]);
    out.probabilities.push_back(left);
    sum += left;
  }
  if (out.ids.empty()) {
    out = p;
    return;
  }
  for (double& probability : out.probabilities) probability /= sum;
}

TokenId draw_next(const Distribution& distribution, numerics::Pcg64& generator) {
  if (distribution.greedy) return distribution.ids.front();
  return choose(distribution, generator.next_double()).id;
}

RejectionOutcome rejection_accepted(std::span<const TokenId> drafts, std::span<const Distribution> q,
                                    std::span<const Distribution> p, bool want_bonus, numerics::Pcg64& generator,
                                    Distribution& scratch) {
  RejectionOutcome outcome;
  for (; outcome.accepted < drafts.size(); ++outcome.accepted) {
    const std::size_t i = outcome.accepted;
    if (p[i].greedy) {
      if (drafts[i] == p[i].ids.front()) continue;
      outcome.next = p[i].ids.front();
      return outcome;
    }
    const double u = generator.next_double();
    if (accepts(u, p[i].probability_of(drafts[i]), q[i].probability_of(drafts[i]))) continue;
    residual(p[i], q[i], scratch);
    outcome.next = draw_next(scratch, generator);
    return outcome;
  }
  if (want_bonus) outcome.next = draw_next(p[drafts.size()], generator);
  return outcome;
}

}  // namespace lockstep::decode
