// From speeds to a word: gain, loss, or within noise (rules in docs/ab.md).
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep::report {

[[nodiscard]] double mean(std::span<const double> values);       ///< of at least one value
[[nodiscard]] double median(std::vector<double> values);         ///< of at least one value; the middle two averaged
[[nodiscard]] double deviation(std::span<const double> values);  ///< of the sample, n - 1; 0 for fewer than two

/// The 97.5 % point of Student's t with `degrees` >= 1 degrees of freedom, from a table; between its entries that of
/// the next smaller one, which makes intervals wider.
[[nodiscard]] double t_quantile(std::size_t degrees);

/// A two-sided 95 % interval of the mean.
struct Interval {
  double low = 0, high = 0;
};
/// By Student's t; nothing for fewer than two values.
[[nodiscard]] std::optional<Interval> interval(std::span<const double> values);

/// Speeds of one metric: one row a window in run order, one column a seed; every window has every seed.
struct Measured {
  std::size_t arm = 0;
  std::vector<double> by_seed;
};

enum class Word { Gain, WithinNoise, Loss };
[[nodiscard]] std::string_view word_text(Word word);  ///< "gain", "within noise", "loss"

/// How far the same request repeats in one arm: of every seed the largest less the smallest speed over the arm's
/// windows, over their mean. Swings of single seeds cancel in the means of windows, but not here.
struct SeedSpread {
  double largest = 0, median = 0;  ///< over the seeds
};
/// Nothing with fewer than two windows.
[[nodiscard]] std::optional<SeedSpread> seed_spread(std::span<const Measured> windows, std::size_t arm);

struct Comparison {
  double change = 0;                      ///< mean relative difference to the bracketing controls; 0.05 is 5 % faster
  std::optional<Interval> interval;       ///< of it; nothing with a single pair
  std::size_t pairs = 0;                  ///< values behind the interval
  std::optional<double> noise;            ///< relative spread of windows that were run more than once
  std::optional<SeedSpread> seed_spread;  ///< the larger of the two arms', each figure by itself
  /// Half the width of the 95 % interval that follows from windows alone: all seeds of a window are fast or slow
  /// together, which the pairs do not show. Nothing when no window was repeated.
  std::optional<double> window_half_width;
  /// What a change must exceed to be told apart: the largest of half the paired interval's width, window_half_width,
  /// the noise, and the median same-seed spread over the square root of the number of seeds, which averaging leaves of
  /// it. Nothing when one of them is unknown.
  std::optional<double> threshold;
  Word word = Word::WithinNoise;  ///< Gain or Loss when the change exceeds the threshold
};

/// Compares `arm` with `control`. The control of a window is the mean of the control windows next before and next after
/// it, weighted by nearness; with one only on one side, that one. A seed's difference is the mean over the arm's
/// windows; with a single seed the windows are the pairs. Nothing when one of the two has no window.
[[nodiscard]] std::optional<Comparison> compare(std::span<const Measured> windows, std::size_t arm,
                                                std::size_t control);

/// Half the width of the 95 % interval of the difference of two arms' means, relative to them: Student's t with the
/// standard deviation of window means around those of their arms, pooled over both. Nothing without a repeated window.
[[nodiscard]] std::optional<double> window_half_width(std::span<const Measured> windows, std::size_t arm,
                                                      std::size_t control);

/// Largest less smallest of an arm's window means over their mean; nothing with fewer than two windows.
[[nodiscard]] std::optional<double> window_noise(std::span<const Measured> windows, std::size_t arm);

}  // namespace lockstep::report
