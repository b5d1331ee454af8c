// Speculative decoding with the model's own draft head (docs/speculation.md).
//
// Between cycles: the sequence holds everything but the last emitted token, which is `pending`. `hidden_` has the wide
// residuals of the newest positions that the draft layer has not seen, the unfed rows, each with the token that follows
// it; the last one is followed by the pending token. The draft layer's cache holds rows made from verified residuals
// only, so sequence.draft_length() + unfed == sequence.length().
#include <algorithm>

#include "decode/acceptance.hpp"
#include "decode/generation.hpp"

namespace lockstep::decode {
namespace {

/// Where the draft layer's own output waits to be its next input, behind the unfed rows.
constexpr std::int64_t kDraftRow = kMaxDepth + 1;

class SpeculativeGeneration final : public Generation {
 public:
  SpeculativeGeneration(const model::Model& model, SpeculativeOptions options, DecodeRequest request,
                        SamplerParams params, Checkpoint start, backend::BufferPtr hidden)
      : Generation(model, std::move(request), std::move(params), std::move(start)),
        options_(std::move(options)),
        hidden_(std::move(hidden)),
        wide_(model.config().wide_size()),
        vocabulary_(static_cast<std::size_t>(model.config().vocab_size)),
        targets_(static_cast<std::size_t>(kMaxDepth) + 1),
        proposals_(static_cast<std::size_t>(kMaxDepth)),
        generator_(params_.seed) {
    const std::vector<TokenId>& tokens = sequence_->tokens();
    if (tokens.empty()) return;
    unfed_tokens_.assign(tokens.begin() + sequence_->draft_length() + 1, tokens.end());
    unfed_tokens_.push_back(0);  // not known yet
  }

  [[nodiscard]] Need need() const override {
    if (fill_after_) return Need::Fill;
    if (repeat_ > 0) return Need::Rows;
    if (finish() != Finish::None) return Need::Nothing;
    if (in_prompt()) return unfed_tokens_.empty() ? Need::Rows : Need::Fill;
    if (first_is_next()) return Need::First;
    if (!fed_) return depth_ > 0 ? Need::Draft : Need::Fill;
    return drafted() < depth_ ? Need::Draft : Need::Rows;
  }

  [[nodiscard]] bool at_rest() const override {
    if (fill_after_ || repeat_ > 0 || fed_) return false;
    return !unfed_tokens_.empty() || sequence_->length() == 0;
  }

  [[nodiscard]] model::DraftSegment draft_rows() override {
    if (fill_after_) return {&*sequence_, fill_tokens_, fill_hidden_, model::LogitsWanted::None};
    if (fed_) {
      return {&*sequence_,
              {&drafts_.back(), 1},
              hidden_row(kDraftRow),
              model::LogitsWanted::Last,
              draws(next_number() + drafts_.size(), 1)};
    }
    // The token that followed when the row was made may have been another one.
    unfed_tokens_.back() = in_prompt() ? request_.prompt[static_cast<std::size_t>(prompt_done())] : pending_;
    const bool drafting = !in_prompt() && depth_ > 0;
    if (!drafting) return {&*sequence_, unfed_tokens_, hidden_row(0), model::LogitsWanted::None};
    return {&*sequence_, unfed_tokens_, hidden_row(0), model::LogitsWanted::Last, draws(next_number(), 1)};
  }

  Status ran(model::Runner& runner, std::int64_t first_row, const model::RowResults& results) override {
    switch (need()) {
      case Need::Fill:
        return filled();
      case Need::Draft:
        return drafted_row(runner, first_row, results);
      default:
        break;
    }
    if (repeat_ > 0) {
      repeat_ = 0;
      return begin_cycle(runner);
    }
    return in_prompt() ? chunk_ran(runner, first_row, results.logits) : verified(runner, first_row, results);
  }

 private:
  /// The prompt fills the draft layer's cache with the token shifted left by one. The last row of a chunk stays unfed:
  /// another prompt may go on with another token.
  Status chunk_ran(model::Runner& runner, std::int64_t first_row, std::span<const float> logits) {
    const auto first = static_cast<std::size_t>(prompt_done());
    const std::int64_t count = LOCKSTEP_TRY(prompt_ran(logits));
    fill_after_ = count > 1;
    fill_tokens_ = std::span<const TokenId>(request_.prompt).subspan(first + 1, static_cast<std::size_t>(count) - 1);
    fill_hidden_ = runner.wide(first_row);
    keep_unfed(runner, first_row + count - 1, 1);
    unfed_tokens_.assign(1, 0);
    return {};
  }

  Status filled() {
    if (fill_after_) {
      fill_after_ = false;
    } else if (in_prompt()) {
      unfed_tokens_.clear();
    } else {
      fed_ = true;
    }
    return {};
  }

  Status after_first(model::Runner& runner, const Choice& choice) override {
    pending_ = choice.id;
    return begin_cycle(runner);
  }

  Choice draw(const Distribution& row, std::uint64_t number) override {
    if (params_.acceptance == AcceptanceRule::Stream) return sampler_.draw(row, number);
    const TokenId id = draw_next(row, generator_);
    return {id, row.probability_of(id)};
  }

  [[nodiscard]] float* hidden_row(std::int64_t row) const { return hidden_->floats() + row * wide_; }
  [[nodiscard]] std::size_t row_bytes(std::int64_t rows) const {
    return static_cast<std::size_t>(rows * wide_) * sizeof(float);
  }
  [[nodiscard]] std::int64_t drafted() const { return static_cast<std::int64_t>(drafts_.size()); }

  /// Rows [first, first + count) of the last forward pass become the unfed residuals.
  void keep_unfed(const model::Runner& runner, std::int64_t first, std::int64_t count) {
    model_.backend().copy(hidden_->data(), reinterpret_cast<const std::byte*>(runner.wide(first)), row_bytes(count));
  }

  [[nodiscard]] Result<backend::BufferPtr> unfed_copy() const override {
    if (unfed_tokens_.empty()) return backend::BufferPtr();
    const std::size_t bytes = row_bytes(static_cast<std::int64_t>(unfed_tokens_.size()));
    backend::BufferPtr copy = LOCKSTEP_TRY(model_.backend().allocate(bytes));
    model_.backend().copy(copy->data(), hidden_->data(), bytes);
    return copy;
  }

  /// Rest, and how many drafts come after the pending token. The table rows of each verify row are on their way as soon
  /// as its token is known.
  Status begin_cycle(model::Runner& runner) {
    drafts_.clear();
    fed_ = false;
    if (finish() != Finish::None) return {};
    const std::int64_t room = model_.config().max_positions - sequence_->length() - 1;
    depth_ = std::max<std::int64_t>(0, std::min({options_.depth, depth_cap_, budget_left() - 1, room}));
    rows_.assign(1, pending_);
    return runner.prefetch(*sequence_, rows_, 0);
  }

  /// One more draft; proposals_[i] is what the host has drawn draft i from. Where the draft head gives nothing to draw
  /// from (logits that are not finite) the cycle has no further draft: the target's rows decide, as in plain decoding.
  Status drafted_row(model::Runner& runner, std::int64_t first_row, const model::RowResults& results) {
    std::int64_t row = first_row;
    if (!fed_) {
      fed_ = true;
      row += static_cast<std::int64_t>(unfed_tokens_.size()) - 1;
      committed_ = sequence_->draft_length();
    }
    const auto i = drafts_.size();
    const std::uint64_t number = next_number() + i;
    TokenId draft = 0;
    if (!results.drawn.empty()) {
      ++stats_.device_rows;
      draft = results.drawn[0].id;
    } else if (distribution(results.logits, number, proposals_[i])) {
      draft = draw(proposals_[i], number).id;
    } else {
      ++stats_.draft_failures;
      depth_ = drafted();
      end_drafts();
      return {};
    }
    if (options_.script) draft = options_.script(number, draft);
    drafts_.push_back(draft);
    rows_.push_back(draft);
    LOCKSTEP_TRY(runner.prefetch(*sequence_, rows_, rows_.size() - 1));
    counts_.add(draft);  // for the penalties of the drafts after it
    ++stats_.drafted[i];
    if (drafted() < depth_) {  // the layer's own output is its next input
      model_.backend().copy(reinterpret_cast<std::byte*>(hidden_row(kDraftRow)),
                            reinterpret_cast<const std::byte*>(runner.draft_wide(row)), row_bytes(1));
      return {};
    }
    end_drafts();
    return {};
  }

  /// What was only guessed leaves the counts and the draft layer's cache again.
  void end_drafts() {
    for (const TokenId made : drafts_) counts_.remove(made);
    sequence_->truncate_draft(committed_);
  }

  Result<model::Segment> step_rows(model::Runner& /*runner*/) override {
    if (repeat_ > 0) {
      stats_.recomputed_tokens += repeat_;
      return model::Segment{&*sequence_, std::span<const TokenId>(rows_).first(static_cast<std::size_t>(repeat_)),
                            model::LogitsWanted::None, false};
    }
    if (!drafts_.empty() && !options_.capture) before_.emplace(LOCKSTEP_TRY(sequence_->fork()));
    return model::Segment{&*sequence_, rows_, model::LogitsWanted::All, !drafts_.empty() && options_.capture,
                          draws(next_number(), rows_.size())};
  }

  Status verified(model::Runner& runner, std::int64_t first_row, const model::RowResults& results) {
    ++stats_.steps;
    const bool stream = params_.acceptance == AcceptanceRule::Stream;
    const std::size_t kept = LOCKSTEP_TRY(stream ? judge_stream(results) : judge_rejection(results.logits));
    keep_unfed(runner, first_row, static_cast<std::int64_t>(kept));
    unfed_tokens_ = next_tokens_;
    pending_ = next_tokens_.back();
    if (!drafts_.empty() && options_.capture) {
      ++stats_.captured_steps;
      sequence_->commit(static_cast<std::int64_t>(rows_.size()), static_cast<std::int64_t>(kept));
    } else if (kept < rows_.size()) {
      sequence_ = std::move(before_);
      repeat_ = static_cast<std::int64_t>(kept);
    }
    before_.reset();
    return repeat_ > 0 ? Status{} : begin_cycle(runner);
  }

  [[nodiscard]] std::span<const float> target_row(std::span<const float> logits, std::size_t row) const {
    return logits.subspan(row * vocabulary_, vocabulary_);
  }

  /// Emits the target's own draw of row after row for as long as the draft guessed it. Returns the rows that happened;
  /// next_tokens_[i] follows row i. A row behind a kept draft that is not finite ends the cycle before it: what came
  /// first is emitted as in plain decoding, and the next cycle begins with that row and fails.
  Result<std::size_t> judge_stream(const model::RowResults& results) {
    next_tokens_.clear();
    for (std::size_t row = 0;; ++row) {
      Choice choice;
      std::span<const float> target;
      if (!results.drawn.empty()) {
        ++stats_.device_rows;
        choice = choice_of(results.drawn[row]);
      } else {
        target = target_row(results.logits, row);
        const Status finite = distribution(target, next_number(), targets_[0]);
        if (!finite && row > 0) return row;
        LOCKSTEP_TRY(Status(finite));
        choice = draw(targets_[0], next_number());
      }
      next_tokens_.push_back(choice.id);
      const bool guessed = row < drafts_.size() && drafts_[row] == choice.id;
      if (guessed) ++stats_.accepted[row];
      const bool on = LOCKSTEP_TRY(emit(choice, target));
      if (!on || !guessed) return row + 1;
    }
  }

  /// The p/q test of docs/speculation.md. All rows' distributions are needed before the first coin. Where one behind
  /// the first row is not finite, only the drafts before it are judged, and there is no bonus token.
  Result<std::size_t> judge_rejection(std::span<const float> logits) {
    const std::size_t depth = drafts_.size();
    std::size_t judged = depth;  // drafts after a stop token stand for nothing
    for (std::size_t i = 0; i < depth; ++i) {
      if (is_stop(drafts_[i])) {
        judged = i + 1;
        break;
      }
    }
    bool bonus = judged == 0 || !is_stop(drafts_[judged - 1]);
    for (std::size_t row = 0; row <= judged; ++row) {
      const Status finite = distribution(target_row(logits, row), next_number() + row, targets_[row]);
      if (!finite && row > 0) {
        judged = row;
        bonus = false;
        break;
      }
      LOCKSTEP_TRY(Status(finite));
      if (row < judged) counts_.add(drafts_[row]);  // for the penalties of the rows after it
    }
    for (std::size_t i = 0; i < judged; ++i) counts_.remove(drafts_[i]);
    const RejectionOutcome outcome =
        rejection_accepted(std::span<const TokenId>(drafts_).first(judged), std::span(proposals_).first(judged),
                           std::span(targets_).first(judged + 1), bonus, generator_, residual_);
    next_tokens_.assign(drafts_.begin(), drafts_.begin() + static_cast<std::ptrdiff_t>(outcome.accepted));
    if (outcome.next) next_tokens_.push_back(*outcome.next);
    for (std::size_t row = 0; row < next_tokens_.size(); ++row) {
      if (row < outcome.accepted) ++stats_.accepted[row];
      const TokenId id = next_tokens_[row];
      const bool on = LOCKSTEP_TRY(emit({id, targets_[row].probability_of(id)}, target_row(logits, row)));
      if (!on) next_tokens_.resize(row + 1);
    }
    return next_tokens_.size();
  }

  SpeculativeOptions options_;
  backend::BufferPtr hidden_;  ///< [kMaxDepth + 2, wide]
  std::int64_t wide_;
  std::size_t vocabulary_;
  std::vector<TokenId> unfed_tokens_, drafts_, rows_, next_tokens_;
  std::vector<Distribution> targets_, proposals_;
  Distribution residual_;
  numerics::Pcg64 generator_;  ///< of rejection mode, in sequential use
  std::optional<model::Sequence> before_;
  std::span<const TokenId> fill_tokens_;  ///< of the fill right after a chunk of the prompt
  const float* fill_hidden_ = nullptr;
  bool fill_after_ = false;
  bool fed_ = false;         ///< the unfed rows have gone through the draft layer in this cycle
  std::int64_t depth_ = 0;   ///< drafts of this cycle
  std::int64_t repeat_ = 0;  ///< rows to run again because a rejection went back to a fork
  std::int64_t committed_ = 0;
  TokenId pending_ = 0;
};

}  // namespace

Result<std::unique_ptr<Generation>> make_speculative_generation(const model::Model& model, SpeculativeOptions options,
                                                                DecodeRequest request,
                                                                std::optional<Checkpoint> prefix) {
  SamplerParams params = LOCKSTEP_TRY(check_request(model, request));
  Checkpoint start = LOCKSTEP_TRY(take_prefix(model, request, std::move(prefix)));
  const std::size_t row_bytes = static_cast<std::size_t>(model.config().wide_size()) * sizeof(float);
  const std::size_t unfed = start.hidden ? start.hidden->size() : 0;
  const auto expected = static_cast<std::size_t>(start.sequence.length() - start.sequence.draft_length()) * row_bytes;
  if (unfed != expected || unfed > row_bytes * (kMaxDepth + 1) || (unfed == 0 && start.sequence.length() > 0)) {
    return fail(ErrorKind::Internal, "a state of {} tokens does not say what the draft layer has not seen",
                start.sequence.length());
  }
  backend::BufferPtr hidden = LOCKSTEP_TRY(model.backend().allocate(row_bytes * (kMaxDepth + 2)));
  if (unfed > 0) model.backend().copy(hidden->data(), start.hidden->data(), unfed);
  return std::make_unique<SpeculativeGeneration>(model, std::move(options), std::move(request), std::move(params),
                                                 std::move(start), std::move(hidden));
}

}  // namespace lockstep::decode
