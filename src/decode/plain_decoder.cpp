#include <algorithm>
#include <chrono>
#include <optional>

#include "decode/decoder.hpp"

namespace lockstep::decode {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class PlainDecoder final : public Decoder {
 public:
  PlainDecoder(const model::Model& model, model::Runner runner) : model_(model), runner_(std::move(runner)) {}

  Status start(const DecodeRequest& request, const PrefillProgress& progress) override {
    if (request.prompt.empty()) return fail(ErrorKind::Invalid, "the prompt is empty: it must have at least one token");
    const std::int64_t context = model_.config().max_positions;
    const auto length = static_cast<std::int64_t>(request.prompt.size());
    if (length >= context) {
      return fail(ErrorKind::Limit, "the prompt has {} tokens and leaves no room in the context of {}", length,
                  context);
    }
    request_ = request;
    params_ = LOCKSTEP_TRY(checked_params(request.sampler, request.vocab));
    sampler_.emplace(params_);
    counts_ = {};
    stats_ = {};
    finish_ = Finish::None;
    cancelled_.store(false);
    budget_ = context - length;
    if (request.max_tokens > 0) budget_ = std::min(budget_, request.max_tokens);
    return prefill(progress);
  }

  Result<std::span<const Choice>> step() override {
    const auto begin = Clock::now();
    if (cancelled()) return fail(ErrorKind::Cancelled, "interrupted");
    if (stats_.tokens == budget_) finish_ = Finish::Length;
    if (finish_ != Finish::None) return std::span<const Choice>{};
    if (stats_.tokens > 0) LOCKSTEP_TRY(forward({&choice_.id, 1}));
    const auto number = static_cast<std::uint64_t>(stats_.tokens);
    const RowContext row{number, request_.vocab, params_.has_penalties() ? &counts_ : nullptr, {}};
    LOCKSTEP_TRY(make_distribution(runner_.logits(), params_, row, scratch_, distribution_));
    choice_ = sampler_->draw(distribution_, number);
    stats_.decode_seconds += seconds_since(begin);
    if (std::binary_search(request_.stop_ids.begin(), request_.stop_ids.end(), choice_.id)) {
      finish_ = Finish::Stop;
      return std::span<const Choice>{};
    }
    counts_.add(choice_.id);
    ++stats_.tokens;
    return std::span<const Choice>(&choice_, 1);
  }

  [[nodiscard]] Finish finish() const override { return finish_; }
  [[nodiscard]] const DecodeStats& stats() const override { return stats_; }

 private:
  Status forward(std::span<const TokenId> tokens) {
    const model::Segment segment{&*sequence_, tokens, model::LogitsWanted::Last, false};
    ++stats_.steps;
    return runner_.forward({&segment, 1});
  }

  /// Keeps the sequence when the prompt continues it by at least one token, else starts a new one.
  Status reuse_or_create() {
    if (sequence_) {
      const std::vector<TokenId>& have = sequence_->tokens();
      if (have.size() < request_.prompt.size() && std::equal(have.begin(), have.end(), request_.prompt.begin())) {
        stats_.reused_tokens = static_cast<std::int64_t>(have.size());
        return {};
      }
      sequence_.reset();
    }
    sequence_.emplace(LOCKSTEP_TRY(model::Sequence::create(model_)));
    return {};
  }

  Status prefill(const PrefillProgress& progress) {
    const auto begin = Clock::now();
    LOCKSTEP_TRY(reuse_or_create());
    const std::span<const TokenId> prompt = request_.prompt;
    stats_.prompt_tokens = static_cast<std::int64_t>(prompt.size());
    for (auto done = static_cast<std::size_t>(stats_.reused_tokens); done < prompt.size();) {
      if (cancelled()) return fail(ErrorKind::Cancelled, "interrupted");
      const std::size_t count = std::min(static_cast<std::size_t>(runner_.max_rows()), prompt.size() - done);
      const bool last = done + count == prompt.size();
      const model::Segment segment{&*sequence_, prompt.subspan(done, count),
                                   last ? model::LogitsWanted::Last : model::LogitsWanted::None, false};
      LOCKSTEP_TRY(runner_.forward({&segment, 1}));
      done += count;
      if (progress) progress(static_cast<std::int64_t>(done), stats_.prompt_tokens);
    }
    stats_.prefill_seconds = seconds_since(begin);
    return {};
  }

  const model::Model& model_;
  model::Runner runner_;
  std::optional<model::Sequence> sequence_;
  DecodeRequest request_;
  SamplerParams params_;
  std::optional<Sampler> sampler_;
  TokenCounts counts_;
  RowScratch scratch_;
  Distribution distribution_;
  Choice choice_;
  DecodeStats stats_;
  Finish finish_ = Finish::None;
  std::int64_t budget_ = 0;
};

}  // namespace

Result<std::unique_ptr<Decoder>> make_plain_decoder(const model::Model& model) {
  model::Runner runner = LOCKSTEP_TRY(model::Runner::create(model, kPrefillChunk));
  return std::make_unique<PlainDecoder>(model, std::move(runner));
}

}  // namespace lockstep::decode
