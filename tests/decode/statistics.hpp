// Chi-square goodness of fit for the tests of random draws.
#pragma once

#include <cmath>
#include <cstdio>
#include <map>
#include <string>

namespace lockstep::decode::testing {

/// The upper tail Q(a, x) of the regularised incomplete gamma function, by its series or its continued fraction.
inline double gamma_upper_tail(double a, double x) {
  if (x <= 0) return 1;
  const double front = std::exp(a * std::log(x) - x - std::lgamma(a));
  if (x < a + 1) {
    double term = 1 / a, sum = term;
    for (int n = 1; n < 2000; ++n) sum += term *= x / (a + n);
    return 1 - front * sum;
  }
  double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
  for (int n = 1; n < 2000; ++n) {
    const double an = -n * (n - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    h *= d * c;
  }
  return front * h;
}

struct ChiSquare {
  double statistic = 0, degrees = 0, p_value = 1;
  bool impossible = false;  ///< an outcome of probability 0 was seen
};

/// Compares counts with probabilities (which sum to 1). Outcomes expected fewer than 10 times are pooled.
template <class Key>
ChiSquare chi_square(const std::map<Key, double>& expected, const std::map<Key, long>& seen, const std::string& label) {
  ChiSquare result;
  long total = 0;
  for (const auto& [key, count] : seen) {
    total += count;
    if (!expected.contains(key) || expected.at(key) <= 0) result.impossible = true;
  }
  double cells = 0, pool_expected = 0, pool_seen = 0;
  const auto add = [&](double want, double got) {
    result.statistic += (got - want) * (got - want) / want;
    ++cells;
  };
  for (const auto& [key, probability] : expected) {
    const double want = probability * static_cast<double>(total);
    const auto found = seen.find(key);
    const double got = found == seen.end() ? 0.0 : static_cast<double>(found->second);
    if (want >= 10) {
      add(want, got);
    } else {
      pool_expected += want;
      pool_seen += got;
    }
  }
  if (pool_expected > 5) add(pool_expected, pool_seen);
  result.degrees = cells - 1;
  if (result.degrees > 0) result.p_value = gamma_upper_tail(result.degrees / 2, result.statistic / 2);
  std::printf("%-64s %7ld draws  chi2 %8.2f  df %3.0f  p %.4f\n", label.c_str(), total, result.statistic,
              result.degrees, result.p_value);
  return result;
}

/// Below this the fit is rejected. Seeds are fixed, so a test passes always or never.
inline constexpr double kLeastPValue = 1e-4;

}  // namespace lockstep::decode::testing
