#include "decode/quality.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "decode/text_windows.hpp"

namespace lockstep::decode {
namespace {

/// One model reading windows of a text.
class Reader {
 public:
  static Result<Reader> create(const model::Model& model, std::int64_t rows) {
    return Reader(model, LOCKSTEP_TRY(model::Runner::create(model, rows)));
  }

  /// Forgets everything read.
  Status begin() {
    sequence_.reset();  // before the next one, so that its pages are free again
    sequence_.emplace(LOCKSTEP_TRY(model::Sequence::create(*model_)));
    return {};
  }

  Status read(std::span<const std::int32_t> tokens, bool wanted) {
    const model::Segment segment{&*sequence_, tokens, wanted ? model::LogitsWanted::All : model::LogitsWanted::None,
                                 false};
    return runner_.forward({&segment, 1});
  }

  /// Usable logits of row `row` of the last step. Errors: Internal when one is not finite.
  Result<std::span<const float>> row(std::size_t row, std::size_t usable, std::size_t position) const {
    const auto vocabulary = static_cast<std::size_t>(model_->config().vocab_size);
    const std::span<const float> logits = runner_.logits().subspan(row * vocabulary, usable);
    const auto bad = std::ranges::find_if_not(logits, [](float x) { return std::isfinite(x); });
    if (bad == logits.end()) return logits;
    return fail(ErrorKind::Internal, "position {}, token id {}: the model gave {}, not a finite logit", position,
                bad - logits.begin(), *bad);
  }

 private:
  Reader(const model::Model& model, model::Runner runner) : model_(&model), runner_(std::move(runner)) {}
  const model::Model* model_;
  model::Runner runner_;
  std::optional<model::Sequence> sequence_;
};

std::ptrdiff_t top(std::span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

class Scorer {
 public:
  Scorer(std::span<const std::int32_t> ids, const QualityOptions& options, Reader a, std::optional<Reader> b)
      : ids_(ids), options_(options), a_(std::move(a)), b_(std::move(b)) {}

  Status window(const TextWindow& window, const std::function<Status()>& after_chunk) {
    LOCKSTEP_TRY(a_.begin());
    if (b_) LOCKSTEP_TRY(b_->begin());
    const auto step = static_cast<std::size_t>(options_.chunk);
    // The last token of a window predicts nothing that is scored here.
    for (std::size_t first = window.begin; first + 1 < window.end; first += step) {
      const std::size_t count = std::min(step, window.end - 1 - first);
      const bool wanted = first + count >= window.scored;
      LOCKSTEP_TRY(a_.read(ids_.subspan(first, count), wanted));
      if (b_) LOCKSTEP_TRY(b_->read(ids_.subspan(first, count), wanted));
      for (std::size_t i = 0; i < count; ++i) {
        if (first + i + 1 >= window.scored) LOCKSTEP_TRY(score(i, first + i));
      }
      LOCKSTEP_TRY(after_chunk());
    }
    return {};
  }

  QualityResult result;

 private:
  /// Row `row` stands at `position` and predicts the token after it.
  Status score(std::size_t row, std::size_t position) {
    const auto usable = static_cast<std::size_t>(options_.vocab);
    const auto token = static_cast<std::size_t>(ids_[position + 1]);
    const std::span<const float> a = LOCKSTEP_TRY(a_.row(row, usable, position));
    const double lse_a = log_sum_exp(a);
    result.loss_a.push_back(lse_a - static_cast<double>(a[token]));
    if (!b_) return {};
    const std::span<const float> b = LOCKSTEP_TRY(b_->row(row, usable, position));
    const double lse_b = log_sum_exp(b);
    result.loss_b.push_back(lse_b - static_cast<double>(b[token]));
    result.kl.push_back(divergence(a, lse_a, b, lse_b));
    if (top(a) == top(b)) ++result.same_top;
    return {};
  }

  std::span<const std::int32_t> ids_;
  QualityOptions options_;
  Reader a_;
  std::optional<Reader> b_;
};

Status check(const model::Model& a, const model::Model* b, std::span<const std::int32_t> ids,
             const QualityOptions& options) {
  if (options.context < 2) return fail(ErrorKind::Usage, "a window needs at least 2 tokens");
  if (options.stride < 1 || options.stride > options.context) {
    return fail(ErrorKind::Usage, "the stride must be between 1 and the window's {} tokens", options.context);
  }
  for (const model::Model* model : {&a, b}) {
    if (model == nullptr) continue;
    if (options.vocab < 1 || options.vocab > model->config().vocab_size) {
      return fail(ErrorKind::Invalid, "a vocabulary of {} tokens, but the model has {}", options.vocab,
                  model->config().vocab_size);
    }
    if (options.context > model->config().max_positions) {
      return fail(ErrorKind::Limit, "windows of {} tokens do not fit the model's context of {}", options.context,
                  model->config().max_positions);
    }
  }
  if (ids.size() < 2) return fail(ErrorKind::Invalid, "the text has {} tokens; at least 2 are needed", ids.size());
  const auto bad = std::ranges::find_if(ids, [&](std::int32_t id) { return id < 0 || id >= options.vocab; });
  if (bad == ids.end()) return {};
  return fail(ErrorKind::Invalid, "token {}: id {} is not below {}", bad - ids.begin(), *bad, options.vocab);
}

}  // namespace

double log_sum_exp(std::span<const float> logits) {
  const double most = *std::ranges::max_element(logits);
  double sum = 0;
  for (const float z : logits) sum += std::exp(static_cast<double>(z) - most);
  return most + std::log(sum);
}

double divergence(std::span<const float> a, double lse_a, std::span<const float> b, double lse_b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double log_a = static_cast<double>(a[i]) - lse_a;
    sum += std::exp(log_a) * (log_a - (static_cast<double>(b[i]) - lse_b));
  }
  return std::max(sum, 0.0);
}

double nearest_rank(std::span<const double> ascending, double q) {
  const auto count = static_cast<double>(ascending.size());
  const auto rank = static_cast<std::size_t>(std::ceil(std::clamp(q, 0.0, 1.0) * count));
  return ascending[std::clamp<std::size_t>(rank, 1, ascending.size()) - 1];
}

MeanError mean_error(std::span<const double> values) {
  if (values.empty()) return {};
  const auto count = static_cast<double>(values.size());
  double sum = 0;
  for (const double value : values) sum += value;
  MeanError out{sum / count, 0};
  if (values.size() < 2) return out;
  double squares = 0;
  for (const double value : values) squares += (value - out.mean) * (value - out.mean);
  out.error = std::sqrt(squares / (count - 1) / count);
  return out;
}

Result<QualityResult> measure_quality(const model::Model& a, const model::Model* b, std::span<const std::int32_t> ids,
                                      const QualityOptions& options,
                                      const std::function<bool(std::size_t scored, std::size_t total)>& progress) {
  LOCKSTEP_TRY(check(a, b, ids, options));
  const std::vector<TextWindow> windows =
      text_windows(ids.size(), static_cast<std::size_t>(options.context), static_cast<std::size_t>(options.stride));
  std::size_t total = 0;
  for (const TextWindow& window : windows) total += window.end - window.scored;
  Reader first = LOCKSTEP_TRY(Reader::create(a, options.chunk));
  std::optional<Reader> second;
  if (b != nullptr) second = LOCKSTEP_TRY(Reader::create(*b, options.chunk));
  Scorer scorer(ids, options, std::move(first), std::move(second));
  for (const TextWindow& window : windows) {
    LOCKSTEP_TRY(scorer.window(window, [&]() -> Status {
      if (progress(scorer.result.loss_a.size(), total)) return {};
      return fail(ErrorKind::Cancelled, "interrupted");
    }));
  }
  return std::move(scorer.result);
}

}  // namespace lockstep::decode
