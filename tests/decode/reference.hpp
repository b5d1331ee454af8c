// The distribution of docs/numerics.md N9 in the plainest form: full sorts, maps, one scalar loop per step. The fast
// code must give the same ids and the same bits.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "decode/distribution.hpp"
#include "numerics/canon_math.hpp"

namespace lockstep::decode::testing {

inline bool is_allowed(std::span<const std::uint64_t> allowed, std::size_t id) {
  return allowed.empty() || ((allowed[id / 64] >> (id % 64)) & 1) != 0;
}

/// Nothing when no token is allowed.
inline std::optional<Distribution> reference_distribution(std::span<const float> row, const SamplerParams& params,
                                                          const RowContext& context) {
  const auto n = static_cast<std::size_t>(context.vocab);
  const float inverse = params.greedy() ? 1.0F : static_cast<float>(1.0 / params.temperature);
  std::vector<float> v(n);
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < n; ++i) {
    double logit = row[i];
    const auto bias = params.logit_bias.find(static_cast<TokenId>(i));
    if (bias != params.logit_bias.end()) logit += bias->second;
    const std::uint32_t count = context.counts == nullptr ? 0 : context.counts->of(static_cast<TokenId>(i));
    if (count > 0) logit -= params.frequency_penalty * count + params.presence_penalty;
    v[i] = static_cast<float>(logit) * inverse;
    if (is_allowed(context.allowed, i)) order.push_back(i);
  }
  if (order.empty()) return std::nullopt;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return v[a] > v[b]; });

  Distribution out;
  if (params.greedy()) {
    out.ids = {static_cast<TokenId>(order.front())};
    out.probabilities = {1.0};
    out.greedy = true;
    return out;
  }
  const float max = v[order.front()];
  std::vector<double> e(n, 0.0);
  for (const std::size_t i : order) e[i] = numerics::canon_exp(v[i] - max);
  double lanes[32] = {};
  for (std::size_t i = 0; i < n; ++i) lanes[i % 32] += e[i];
  for (std::size_t width = 16; width > 0; width /= 2) {
    for (std::size_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  const double z = lanes[0];

  if (params.top_k > 0 && std::cmp_less(params.top_k, order.size())) {
    order.resize(static_cast<std::size_t>(params.top_k));
  }
  if (params.top_p < 1) {
    double mass = 0;
    std::size_t kept = 0;
    while (kept < order.size() && (kept == 0 || mass < params.top_p)) mass += e[order[kept++]] / z;
    order.resize(kept);
  }
  std::erase_if(order, [&](std::size_t i) { return e[i] == 0 || e[i] < params.min_p; });
  std::sort(order.begin(), order.end());
  double sum = 0;
  for (const std::size_t i : order) sum += e[i] / z;
  for (const std::size_t i : order) {
    out.ids.push_back(static_cast<TokenId>(i));
    out.probabilities.push_back(e[i] / z / sum);
  }
  return out;
}

/// A random row: smooth, full of ties, nearly flat, or spiked.
inline std::vector<float> random_row(std::mt19937_64& random, std::size_t n) {
  std::vector<float> row(n);
  const int kind = static_cast<int>(random() % 5);
  std::normal_distribution<float> normal(0.0F, kind == 3 ? 0.01F : 4.0F);
  for (float& x : row) {
    x = normal(random);
    if (kind == 1) x = std::round(x);
    if (kind == 2) x = random() % 2 == 0 ? 0.0F : -0.0F;
    if (kind == 4 && random() % 50 != 0) x -= 120.0F;
  }
  return row;
}

template <class T>
T pick(std::mt19937_64& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

inline SamplerParams random_params(std::mt19937_64& random, std::size_t n) {
  SamplerParams params;
  params.temperature = pick(random, {0.0, 0.3, 0.7, 1.0, 1.0, 1.7, 40.0});
  params.top_k = pick<std::int64_t>(
      random, {0, 0, 1, 2, 20, 50, static_cast<std::int64_t>(n), static_cast<std::int64_t>(n) + 5, INT64_MAX});
  params.top_p = pick(random, {1.0, 1.0, 0.95, 0.5, 0.9999, 0.0, 1e-9});
  params.min_p = pick(random, {0.0, 0.0, 0.05, 0.5, 1.0});
  params.presence_penalty = pick(random, {0.0, 0.0, 1.5, -2.0});
  params.frequency_penalty = pick(random, {0.0, 0.0, 0.3, -0.7});
  for (std::size_t i = random() % 4; i-- > 0;) {
    params.logit_bias[static_cast<TokenId>(random() % n)] = pick(random, {-100.0, -1.5, 0.1, 5.0, 100.0});
  }
  params.seed = random();
  return params;
}

/// A mask that allows about one token in `one_in`, at least one.
inline std::vector<std::uint64_t> random_mask(std::mt19937_64& random, std::size_t n, std::size_t one_in) {
  std::vector<std::uint64_t> words((n + 63) / 64, 0);
  for (std::size_t i = 0; i < n; ++i) {
    if (random() % one_in == 0) words[i / 64] |= std::uint64_t{1} << (i % 64);
  }
  const std::size_t sure = random() % n;
  words[sure / 64] |= std::uint64_t{1} << (sure % 64);
  return words;
}

}  // namespace lockstep::decode::testing
