#include "report/statistics.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace lockstep::report {
namespace {

struct TableEntry {
  std::size_t degrees;
  double quantile;
};
constexpr std::array kTable = std::to_array<TableEntry>({
    {1, 12.706}, {2, 4.303},  {3, 3.182},  {4, 2.776},  {5, 2.571},  {6, 2.447},  {7, 2.365},  {8, 2.306},
    {9, 2.262},  {10, 2.228}, {11, 2.201}, {12, 2.179}, {13, 2.160}, {14, 2.145}, {15, 2.131}, {16, 2.120},
    {17, 2.110}, {18, 2.101}, {19, 2.093}, {20, 2.086}, {25, 2.060}, {30, 2.042}, {40, 2.021}, {60, 2.000},
});

/// The control's speed at the time of window `at`, by seed.
std::vector<double> control_at(std::span<const Measured> windows, std::size_t at, std::size_t control) {
  std::optional<std::size_t> before;
  std::optional<std::size_t> after;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    if (windows[i].arm != control) continue;
    if (i < at) before = i;
    if (i > at && !after) after = i;
  }
  if (!before) return windows[*after].by_seed;
  if (!after) return windows[*before].by_seed;
  const double weight = static_cast<double>(at - *before) / static_cast<double>(*after - *before);
  std::vector<double> out(windows[at].by_seed.size());
  for (std::size_t s = 0; s < out.size(); ++s) {
    out[s] = (1 - weight) * windows[*before].by_seed[s] + weight * windows[*after].by_seed[s];
  }
  return out;
}

/// [window of the arm][seed] relative differences.
std::vector<std::vector<double>> differences(std::span<const Measured> windows, std::size_t arm, std::size_t control) {
  std::vector<std::vector<double>> out;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    if (windows[i].arm != arm) continue;
    const std::vector<double> reference = control_at(windows, i, control);
    std::vector<double> row;
    for (std::size_t s = 0; s < reference.size(); ++s) row.push_back(windows[i].by_seed[s] / reference[s] - 1);
    out.push_back(std::move(row));
  }
  return out;
}

/// One value a seed, or with a single seed one a window.
std::vector<double> pairs_of(const std::vector<std::vector<double>>& rows) {
  std::vector<double> out;
  if (rows.front().size() == 1) {
    for (const std::vector<double>& row : rows) out.push_back(row.front());
    return out;
  }
  for (std::size_t s = 0; s < rows.front().size(); ++s) {
    double sum = 0;
    for (const std::vector<double>& row : rows) sum += row[s];
    out.push_back(sum / static_cast<double>(rows.size()));
  }
  return out;
}

std::optional<SeedSpread> larger(const std::optional<SeedSpread>& a, const std::optional<SeedSpread>& b) {
  if (!a || !b) return a ? a : b;
  return SeedSpread{std::max(a->largest, b->largest), std::max(a->median, b->median)};
}

std::vector<double> window_means(std::span<const Measured> windows, std::size_t arm) {
  std::vector<double> means;
  for (const Measured& window : windows) {
    if (window.arm == arm) means.push_back(mean(window.by_seed));
  }
  return means;
}

bool has_window(std::span<const Measured> windows, std::size_t arm) {
  return std::ranges::any_of(windows, [&](const Measured& window) { return window.arm == arm; });
}

}  // namespace

double mean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double deviation(std::span<const double> values) {
  if (values.size() < 2) return 0;
  const double middle = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - middle) * (value - middle);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

double t_quantile(std::size_t degrees) {
  double found = kTable.front().quantile;
  for (const TableEntry& entry : kTable) {
    if (entry.degrees <= degrees) found = entry.quantile;
  }
  return found;
}

std::optional<Interval> interval(std::span<const double> values) {
  if (values.size() < 2) return std::nullopt;
  const double half = t_quantile(values.size() - 1) * deviation(values) / std::sqrt(static_cast<double>(values.size()));
  const double middle = mean(values);
  return Interval{middle - half, middle + half};
}

std::string_view word_text(Word word) {
  constexpr std::array<std::string_view, 3> kTexts{"gain", "within noise", "loss"};
  return kTexts.at(static_cast<std::size_t>(word));
}

std::optional<double> window_half_width(std::span<const Measured> windows, std::size_t arm, std::size_t control) {
  double squares = 0;
  double reciprocals = 0;
  std::size_t degrees = 0;
  for (const std::size_t which : {arm, control}) {
    const std::vector<double> means = window_means(windows, which);
    if (means.empty()) return std::nullopt;
    const double middle = mean(means);
    for (const double value : means) squares += (value / middle - 1) * (value / middle - 1);
    reciprocals += 1 / static_cast<double>(means.size());
    degrees += means.size() - 1;
  }
  if (degrees == 0) return std::nullopt;
  return t_quantile(degrees) * std::sqrt(squares / static_cast<double>(degrees) * reciprocals);
}

std::optional<double> window_noise(std::span<const Measured> windows, std::size_t arm) {
  const std::vector<double> means = window_means(windows, arm);
  if (means.size() < 2) return std::nullopt;
  const auto [low, high] = std::ranges::minmax(means);
  return (high - low) / mean(means);
}

std::optional<SeedSpread> seed_spread(std::span<const Measured> windows, std::size_t arm) {
  std::vector<std::vector<double>> by_seed;
  std::size_t count = 0;
  for (const Measured& window : windows) {
    if (window.arm != arm) continue;
    ++count;
    by_seed.resize(window.by_seed.size());
    for (std::size_t s = 0; s < by_seed.size(); ++s) by_seed[s].push_back(window.by_seed[s]);
  }
  if (count < 2) return std::nullopt;
  std::vector<double> spreads;
  for (const std::vector<double>& values : by_seed) {
    const auto [low, high] = std::ranges::minmax(values);
    spreads.push_back((high - low) / mean(values));
  }
  return SeedSpread{std::ranges::max(spreads), median(spreads)};
}

std::optional<Comparison> compare(std::span<const Measured> windows, std::size_t arm, std::size_t control) {
  if (arm == control || !has_window(windows, arm) || !has_window(windows, control)) return std::nullopt;
  const std::vector<double> pairs = pairs_of(differences(windows, arm, control));
  Comparison out;
  out.change = mean(pairs);
  out.pairs = pairs.size();
  out.interval = interval(pairs);
  out.noise = window_noise(windows, control);
  if (!out.noise) out.noise = window_noise(windows, arm);
  out.seed_spread = larger(seed_spread(windows, control), seed_spread(windows, arm));
  out.window_half_width = window_half_width(windows, arm, control);
  if (!out.interval || !out.noise || !out.seed_spread || !out.window_half_width) return out;
  const auto seeds = static_cast<double>(windows.front().by_seed.size());
  out.threshold = std::max({(out.interval->high - out.interval->low) / 2, *out.window_half_width, *out.noise,
                            out.seed_spread->median / std::sqrt(seeds)});
  if (out.change > *out.threshold) out.word = Word::Gain;
  if (-out.change > *out.threshold) out.word = Word::Loss;
  return out;
}

}  // namespace lockstep::report
