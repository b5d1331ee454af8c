#include "decode/generation.hpp"

#include <algorithm>

namespace lockstep::decode {

Result<Checkpoint> Checkpoint::fork(const model::Model& model) const {
  Checkpoint copy{LOCKSTEP_TRY(sequence.fork()), nullptr, logits};
  if (hidden) {
    copy.hidden = LOCKSTEP_TRY(model.backend().allocate(hidden->size()));
    model.backend().copy(copy.hidden->data(), hidden->data(), hidden->size());
  }
  return copy;
}

Result<SamplerParams> check_request(const model::Model& model, const DecodeRequest& request) {
  if (request.prompt.empty()) return fail(ErrorKind::Invalid, "the prompt is empty: it must have at least one token");
  const std::int64_t context = model.config().max_positions;
  if (static_cast<std::int64_t>(request.prompt.size()) >= context) {
    return fail(ErrorKind::Limit, "the prompt has {} tokens and leaves no room in the context of {}",
                request.prompt.size(), context);
  }
  if (request.top_logprobs < 0 || request.top_logprobs > static_cast<std::int64_t>(kMaxTopLogprobs)) {
    return fail(ErrorKind::Invalid, "top_logprobs is {}; it must be between 0 and {}", request.top_logprobs,
                kMaxTopLogprobs);
  }
  if (request.prompt_logprobs) {
    const auto padding = std::find_if(request.prompt.begin(), request.prompt.end(),
                                      [&](TokenId id) { return id < 0 || id >= request.vocab; });
    if (padding != request.prompt.end()) {
      return fail(ErrorKind::Invalid, "token id {} of the prompt is outside the vocabulary of {}", *padding,
                  request.vocab);
    }
  }
  return checked_params(request.sampler, request.vocab);
}

std::optional<backend::DrawRequest> device_draw(const model::Model& model, const DecodeRequest& request,
                                                const SamplerParams& params) {
  const std::int64_t most = std::min(model.config().vocab_size, model.backend().draw_vocabulary());
  if (request.vocab < 1 || request.vocab > most || request.logprobs) return std::nullopt;
  if (params.has_penalties() || !params.logit_bias.empty()) return std::nullopt;
  if (params.acceptance == AcceptanceRule::Rejection) return std::nullopt;
  backend::DrawRequest draw;
  draw.vocab = static_cast<std::int32_t>(request.vocab);
  if (params.greedy()) return draw;
  if (params.draw_rule != DrawRule::Pcg64) return std::nullopt;
  if (params.top_k < 1 || params.top_k > kernels::kMostCandidates) return std::nullopt;
  draw.scale = static_cast<float>(1.0 / params.temperature);
  draw.top_k = static_cast<std::int32_t>(params.top_k);
  draw.top_p = params.top_p;
  draw.min_p = params.min_p;
  return draw;
}

Generation::Generation(const model::Model& model, DecodeRequest request, SamplerParams params, Checkpoint start)
    : model_(model),
      request_(std::move(request)),
      params_(std::move(params)),
      sampler_(params_),
      sequence_(std::move(start.sequence)) {
  const auto prompt = static_cast<std::int64_t>(request_.prompt.size());
  stats_.prompt_tokens = prompt;
  stats_.reused_tokens = prompt_done_ = prefetched_ = sequence_->length();
  if (prompt_done_ == prompt) logits_ = std::move(start.logits);
  budget_ = model.config().max_positions - prompt;
  if (request_.max_tokens > 0) budget_ = std::min(budget_, request_.max_tokens);
  if (request_.prompt_only && !in_prompt()) finish_ = Finish::Length;
  device_draw_ = device_draw(model, request_, params_);
}

Result<model::Segment> Generation::rows(model::Runner& runner, std::int64_t most) {
  if (!in_prompt()) return step_rows(runner);
  const std::span<const TokenId> left =
      std::span<const TokenId>(request_.prompt).subspan(static_cast<std::size_t>(prompt_done_));
  const auto size = static_cast<std::int64_t>(left.size());
  if (request_.prompt_logprobs) most = std::min(most, kScoredRows);
  chunk_ = std::min(most, size);
  // The next chunk's table rows are read while this one runs.
  const std::int64_t ahead = std::min(size, chunk_ + most);
  if (prefetched_ < prompt_done_ + ahead) {
    LOCKSTEP_TRY(runner.prefetch(*sequence_, left.first(static_cast<std::size_t>(ahead)),
                                 static_cast<std::size_t>(prefetched_ - prompt_done_)));
    prefetched_ = prompt_done_ + ahead;
  }
  model::LogitsWanted wanted = chunk_ == size ? model::LogitsWanted::Last : model::LogitsWanted::None;
  if (request_.prompt_logprobs) wanted = model::LogitsWanted::All;
  return model::Segment{&*sequence_, left.first(static_cast<std::size_t>(chunk_)), wanted, false};
}

Result<std::int64_t> Generation::prompt_ran(std::span<const float> logits) {
  const auto vocabulary = static_cast<std::size_t>(model_.config().vocab_size);
  if (request_.prompt_logprobs) {
    for (std::int64_t row = 0; row < chunk_; ++row) {
      const auto next = static_cast<std::size_t>(prompt_done_ + row + 1);
      if (next == request_.prompt.size()) break;
      const RowContext context{next, request_.vocab, nullptr, {}};
      LOCKSTEP_TRY(read_logprobs(logits.subspan(static_cast<std::size_t>(row) * vocabulary, vocabulary),
                                 request_.prompt[next], static_cast<std::size_t>(request_.top_logprobs), context,
                                 scratch_, prompt_logprobs_.emplace_back()));
    }
  }
  prompt_done_ += chunk_;
  if (!in_prompt()) {
    const auto last = logits.last(vocabulary);
    logits_.assign(last.begin(), last.end());
    if (request_.prompt_only) finish_ = Finish::Length;
  }
  return chunk_;
}

void Generation::prepare_row(model::Runner& runner, std::span<const TokenId> likely) {
  if (!runner.reserve(*sequence_, 1)) return;
  for (const TokenId& id : likely) {
    if (!runner.prefetch(*sequence_, {&id, 1}, 0)) return;
  }
}

Status Generation::first(model::Runner& runner) {
  LOCKSTEP_TRY(distribution(logits_, next_number(), first_row_));
  const Choice choice = draw(first_row_, next_number());
  LOCKSTEP_TRY(emit(choice, logits_));
  logits_.clear();
  return after_first(runner, choice);
}

void Generation::clear_emitted() {
  emitted_.clear();
  logprobs_.clear();
}

Result<Checkpoint> Generation::checkpoint() const {
  return Checkpoint{LOCKSTEP_TRY(sequence_->fork()), LOCKSTEP_TRY(unfed_copy()), logits_};
}

Result<Checkpoint> Generation::take() {
  backend::BufferPtr hidden = LOCKSTEP_TRY(unfed_copy());
  return Checkpoint{std::move(*sequence_), std::move(hidden), std::move(logits_)};
}

Status Generation::round_trip() {
  model::Sequence restored = LOCKSTEP_TRY(model::Sequence::create(model_));
  LOCKSTEP_TRY(restored.restore(sequence_->save()));
  sequence_ = LOCKSTEP_TRY(restored.fork());
  return {};
}

std::span<const backend::DrawRequest> Generation::draws(std::uint64_t first, std::size_t rows) {
  draws_.clear();
  if (!device_draw_) return {};
  draws_.assign(rows, *device_draw_);
  if (device_draw_->top_k == 0) return draws_;
  for (std::size_t i = 0; i < rows; ++i) draws_[i].uniform = sampler_.uniform(first + i);
  return draws_;
}

Status Generation::distribution(std::span<const float> logits, std::uint64_t number, Distribution& out) {
  ++stats_.host_rows;
  const RowContext row{number, request_.vocab, params_.has_penalties() ? &counts_ : nullptr, {}};
  return make_distribution(logits, params_, row, scratch_, out);
}

bool Generation::is_stop(TokenId id) const {
  return std::binary_search(request_.stop_ids.begin(), request_.stop_ids.end(), id);
}

Result<bool> Generation::emit(const Choice& choice, std::span<const float> logits) {
  if (is_stop(choice.id)) {
    finish_ = Finish::Stop;
    return false;
  }
  if (request_.logprobs) {
    const RowContext row{next_number(), request_.vocab, nullptr, {}};
    LOCKSTEP_TRY(read_logprobs(logits, choice.id, static_cast<std::size_t>(request_.top_logprobs), row, scratch_,
                               logprobs_.emplace_back()));
  }
  emitted_.push_back(choice);
  counts_.add(choice.id);
  ++stats_.tokens;
  if (budget_left() == 0) finish_ = Finish::Length;
  return finish_ == Finish::None;
}

Result<Checkpoint> take_prefix(const model::Model& model, const DecodeRequest& request,
                               std::optional<Checkpoint> prefix) {
  if (!prefix) return Checkpoint{LOCKSTEP_TRY(model::Sequence::create(model)), nullptr, {}};
  const std::vector<TokenId>& have = prefix->sequence.tokens();
  const bool whole = have.size() == request.prompt.size() && !prefix->logits.empty();
  if ((have.size() >= request.prompt.size() && !whole) ||
      !std::equal(have.begin(), have.end(), request.prompt.begin())) {
    return fail(ErrorKind::Internal, "a state of {} tokens is no beginning of a prompt of {}", have.size(),
                request.prompt.size());
  }
  return std::move(*prefix);
}

Status run_need(Generation& generation, model::Runner& runner, std::int64_t most_prompt_rows) {
  switch (generation.need()) {
    case Generation::Need::Nothing:
      return {};
    case Generation::Need::First:
      return generation.first(runner);
    case Generation::Need::Fill: {
      const model::DraftSegment rows = generation.draft_rows();
      LOCKSTEP_TRY(runner.draft_fill({&rows, 1}));
      return generation.ran(runner, 0, {});
    }
    case Generation::Need::Draft: {
      const model::DraftSegment rows = generation.draft_rows();
      LOCKSTEP_TRY(runner.draft({&rows, 1}));
      return generation.ran(runner, 0, runner.results(0));
    }
    case Generation::Need::Rows:
      break;
  }
  const model::Segment rows = LOCKSTEP_TRY(generation.rows(runner, most_prompt_rows));
  LOCKSTEP_TRY(runner.forward({&rows, 1}));
  return generation.ran(runner, 0, runner.results(0));
}

Status run_chain(Generation& generation, model::Runner& runner, const Generation::Chain& chain, bool ahead) {
  if (runner.launched() == 0) LOCKSTEP_TRY(runner.launch(*chain.sequence, chain.token, chain.draw));
  // What fails here fails again when the step is needed.
  if (ahead && chain.most > 1 && runner.launch(*chain.sequence, std::nullopt, chain.draw_after)) {
    ++generation.stats().steps_ahead;
    ++generation.stats().launched_steps;
  }
  LOCKSTEP_TRY(runner.take());
  return generation.ran(runner, 0, runner.results(0));
}

}  // namespace lockstep::decode
