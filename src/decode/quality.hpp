// How well a model predicts a text, and how far two models are apart on it.
//
// All sums are float64. With z the float32 logits of a position over the usable vocabulary, log p(i) = z(i) - lse(z),
// lse(z) = m + log(sum exp(z(i) - m)), m = max z. The loss of a token is -log p(token), the perplexity of a text the
// exponential of the mean loss. The divergence of a position is KL(A || B) = sum over i of pA(i) (log pA(i) - log
// pB(i)), in nats; rounding may leave a hair below zero, which counts as zero.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "model/runner.hpp"

namespace lockstep::decode {

/// log(sum exp(z)) of finite logits, at least one.
[[nodiscard]] double log_sum_exp(std::span<const float> logits);

/// KL(A || B) of two distributions given as logits of the same length, with their log_sum_exp().
[[nodiscard]] double divergence(std::span<const float> a, double lse_a, std::span<const float> b, double lse_b);

/// The smallest of `ascending` (not empty) that at least the share `q` of them does not exceed: the nearest rank.
[[nodiscard]] double nearest_rank(std::span<const double> ascending, double q);

struct QualityOptions {
  std::int64_t context = 1024, stride = 512;  ///< see text_windows()
  std::int64_t vocab = 0;                     ///< usable vocabulary: logits from here on are left out
  std::int64_t chunk = 64;                    ///< rows of a step; results do not depend on it
};

struct QualityResult {
  std::vector<double> loss_a, loss_b;  ///< by scored token; `loss_b` and `kl` only with a second model
  std::vector<double> kl;
  std::int64_t same_top = 0;  ///< positions where both models have the same most probable token (ties: the lower id)
};

/// Scores a text with one model, or with two side by side; `b` may be null. Memory beyond the models is that of one
/// state and one chunk of logits each, and 24 bytes a token. `progress` gets scored tokens and may end the work by
/// returning false. Errors: Usage (options), Invalid (fewer than two tokens, an id outside the vocabulary), Limit,
/// Internal (a logit that is not finite, with its position), Io, Cancelled.
Result<QualityResult> measure_quality(const model::Model& a, const model::Model* b, std::span<const std::int32_t> ids,
                                      const QualityOptions& options,
                                      const std::function<bool(std::size_t scored, std::size_t total)>& progress);

/// Mean and the standard error of the mean; the error is 0 for fewer than two values.
struct MeanError {
  double mean = 0, error = 0;
};
[[nodiscard]] MeanError mean_error(std::span<const double> values);

}  // namespace lockstep::decode
