#include "decode/decoder_core.hpp"

#include <algorithm>

namespace lockstep::decode {
namespace {

using Clock = std::chrono::steady_clock;

/// Adds the time until its end to a total.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total) {}
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() { total_ += std::chrono::duration<double>(Clock::now() - begin_).count(); }

 private:
  double& total_;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace

Status DecoderCore::check(const DecodeRequest& request) const {
  if (request.prompt.empty()) return fail(ErrorKind::Invalid, "the prompt is empty: it must have at least one token");
  const std::int64_t context = model_.config().max_positions;
  if (static_cast<std::int64_t>(request.prompt.size()) >= context) {
    return fail(ErrorKind::Limit, "the prompt has {} tokens and leaves no room in the context of {}",
                request.prompt.size(), context);
  }
  return {};
}

Status DecoderCore::start(const DecodeRequest& request, const PrefillProgress& progress) {
  LOCKSTEP_TRY(check(request));
  params_ = LOCKSTEP_TRY(checked_params(request.sampler, request.vocab));
  request_ = request;
  sampler_.emplace(params_);
  counts_ = {};
  stats_ = {};
  emitted_.clear();
  finish_ = Finish::None;
  cancelled_.store(false);
  budget_ = model_.config().max_positions - static_cast<std::int64_t>(request.prompt.size());
  if (request.max_tokens > 0) budget_ = std::min(budget_, request.max_tokens);
  const Stopwatch watch(stats_.prefill_seconds);
  LOCKSTEP_TRY(reuse_or_create());
  Status done = prefill(progress);
  if (!done) sequence_.reset();  // part of a prompt is nothing that a later request could continue
  return done;
}

Status DecoderCore::reuse_or_create() {
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

Status DecoderCore::prefill(const PrefillProgress& progress) {
  const std::span<const TokenId> prompt = request_.prompt;
  stats_.prompt_tokens = static_cast<std::int64_t>(prompt.size());
  for (auto done = static_cast<std::size_t>(stats_.reused_tokens); done < prompt.size();) {
    if (cancelled()) return fail(ErrorKind::Cancelled, "interrupted");
    const std::size_t count = std::min(static_cast<std::size_t>(runner_.max_rows()), prompt.size() - done);
    const bool last = done + count == prompt.size();
    // The next chunk's table rows are read while this one runs; those of the first chunk go before them.
    const std::size_t ahead = std::min(prompt.size() - done, count + static_cast<std::size_t>(runner_.max_rows()));
    const bool first = done == static_cast<std::size_t>(stats_.reused_tokens);
    LOCKSTEP_TRY(runner_.prefetch(*sequence_, prompt.subspan(done, ahead), first ? 0 : count));
    LOCKSTEP_TRY(before_chunk(done));
    const model::Segment segment{&*sequence_, prompt.subspan(done, count),
                                 last ? model::LogitsWanted::Last : model::LogitsWanted::None, false};
    LOCKSTEP_TRY(runner_.forward({&segment, 1}));
    LOCKSTEP_TRY(after_chunk(done, count));
    done += count;
    if (progress) progress(static_cast<std::int64_t>(done), stats_.prompt_tokens);
  }
  return request_.round_trip_state ? round_trip() : Status{};
}

Status DecoderCore::round_trip() {
  model::Sequence restored = LOCKSTEP_TRY(model::Sequence::create(model_));
  LOCKSTEP_TRY(restored.restore(sequence_->save()));
  sequence_ = LOCKSTEP_TRY(restored.fork());
  return {};
}

Result<std::span<const Choice>> DecoderCore::step() {
  const Stopwatch watch(stats_.decode_seconds);
  emitted_.clear();
  if (finish_ != Finish::None) return std::span<const Choice>{};
  if (cancelled()) return fail(ErrorKind::Cancelled, "interrupted");
  if (!sequence_) return fail(ErrorKind::Internal, "no request is running: start() must succeed first");
  const Status advanced = advance();
  if (!advanced) {
    sequence_.reset();
    return tl::unexpected(advanced.error());
  }
  return std::span<const Choice>(emitted_);
}

Status DecoderCore::distribution(std::span<const float> logits, std::uint64_t number, Distribution& out) {
  const RowContext row{number, request_.vocab, params_.has_penalties() ? &counts_ : nullptr, {}};
  return make_distribution(logits, params_, row, scratch_, out);
}

bool DecoderCore::is_stop(TokenId id) const {
  return std::binary_search(request_.stop_ids.begin(), request_.stop_ids.end(), id);
}

bool DecoderCore::emit(const Choice& choice) {
  if (is_stop(choice.id)) {
    finish_ = Finish::Stop;
    return false;
  }
  emitted_.push_back(choice);
  counts_.add(choice.id);
  ++stats_.tokens;
  if (budget_left() == 0) finish_ = Finish::Length;
  return finish_ == Finish::None;
}

}  // namespace lockstep::decode
