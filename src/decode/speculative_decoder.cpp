// Speculative decoding with the model's own draft head (docs/speculation.md).
//
// Between cycles: `sequence_` holds everything but the last emitted token, which is `pending`. `unfed` are the wide
// residuals of the newest positions that the draft layer has not seen, each with the token that follows it; the last
// one is followed by the pending token. The draft layer's cache holds rows made from verified residuals only.
#include <algorithm>

#include "decode/acceptance.hpp"
#include "decode/decoder_core.hpp"

namespace lockstep::decode {
namespace {

class SpeculativeDecoder final : public DecoderCore {
 public:
  SpeculativeDecoder(const model::Model& model, model::Runner runner, SpeculativeOptions options,
                     backend::BufferPtr hidden)
      : DecoderCore(model, std::move(runner)),
        options_(std::move(options)),
        hidden_(std::move(hidden)),
        wide_(model.config().wide_size()),
        vocabulary_(static_cast<std::size_t>(model.config().vocab_size)),
        targets_(static_cast<std::size_t>(kMaxDepth) + 1),
        proposals_(static_cast<std::size_t>(kMaxDepth)) {}

 private:
  // The prompt fills the draft layer's cache with the token shifted left by one.
  Status before_chunk(std::size_t first) override {
    if (first == 0) unfed_tokens_.clear();
    if (stats_.reused_tokens == 0 || first != static_cast<std::size_t>(stats_.reused_tokens)) return {};
    generator_.emplace(params_.seed);
    unfed_tokens_.back() = request_.prompt[first];  // the token that followed last time may have been another one
    return feed(model::LogitsWanted::None);
  }

  Status after_chunk(std::size_t first, std::size_t count) override {
    generator_.emplace(params_.seed);
    const bool last = first + count == request_.prompt.size();
    const std::size_t known = last ? count - 1 : count;
    if (known > 0) {
      const std::span<const TokenId> next = std::span(request_.prompt).subspan(first + 1, known);
      // Drafting must not touch the logits of the prompt's last row.
      const model::DraftSegment rows{&*sequence_, next, runner_.wide(0), model::LogitsWanted::None};
      LOCKSTEP_TRY(runner_.draft_fill({&rows, 1}));
    }
    unfed_tokens_.clear();
    if (last) keep_unfed(static_cast<std::int64_t>(count) - 1, 1, {});
    return {};
  }

  Status advance() override {
    if (stats_.tokens == 0) return first_token();
    return cycle();
  }

  Status first_token() {
    LOCKSTEP_TRY(distribution(runner_.logits(), next_number(), targets_[0]));
    const Choice choice = draw(targets_[0], next_number());
    unfed_tokens_ = {choice.id};
    pending_ = choice.id;
    emit(choice);
    return {};
  }

  Choice draw(const Distribution& row, std::uint64_t number) {
    if (params_.acceptance == AcceptanceRule::Stream) return sampler_->draw(row, number);
    const TokenId id = draw_next(row, *generator_);
    return {id, row.probability_of(id)};
  }

  /// Rows [first, first + count) of the last forward pass become the unfed residuals.
  void keep_unfed(std::int64_t first, std::int64_t count, std::span<const TokenId> next) {
    model_.backend().copy(hidden_->data(), reinterpret_cast<const std::byte*>(runner_.wide(first)), row_bytes(count));
    unfed_tokens_.assign(next.begin(), next.end());
    if (next.empty()) unfed_tokens_.resize(static_cast<std::size_t>(count));
  }

  [[nodiscard]] std::size_t row_bytes(std::int64_t rows) const {
    return static_cast<std::size_t>(rows * wide_) * sizeof(float);
  }

  Status feed(model::LogitsWanted wanted) {
    const model::DraftSegment rows{&*sequence_, unfed_tokens_, hidden_->floats(), wanted};
    return wanted == model::LogitsWanted::None ? runner_.draft_fill({&rows, 1}) : runner_.draft({&rows, 1});
  }

  /// Drafts up to `depth` tokens after the pending one; proposals_[i] is what draft i was drawn from. The table rows of
  /// each verify row are on their way as soon as its token is known.
  Status make_drafts(std::int64_t depth) {
    drafts_.clear();
    rows_.assign(1, pending_);
    LOCKSTEP_TRY(runner_.prefetch(*sequence_, rows_, 0));
    const auto first_row = static_cast<std::int64_t>(unfed_tokens_.size()) - 1;
    LOCKSTEP_TRY(feed(depth > 0 ? model::LogitsWanted::Last : model::LogitsWanted::None));
    const std::int64_t committed = sequence_->draft_length();
    for (std::int64_t i = 0; i < depth; ++i) {
      if (i > 0) {  // the layer's own output is its next input
        const model::DraftSegment row{
            &*sequence_, {&drafts_.back(), 1}, runner_.draft_wide(i == 1 ? first_row : 0), model::LogitsWanted::Last};
        LOCKSTEP_TRY(runner_.draft({&row, 1}));
      }
      const std::uint64_t number = next_number() + static_cast<std::uint64_t>(i);
      Distribution& proposal = proposals_[static_cast<std::size_t>(i)];
      LOCKSTEP_TRY(distribution(runner_.logits(), number, proposal));
      TokenId draft = draw(proposal, number).id;
      if (options_.script) draft = options_.script(number, draft);
      drafts_.push_back(draft);
      rows_.push_back(draft);
      LOCKSTEP_TRY(runner_.prefetch(*sequence_, rows_, rows_.size() - 1));
      counts_.add(draft);  // for the penalties of the drafts after it
      ++stats_.drafted[static_cast<std::size_t>(i)];
    }
    for (const TokenId draft : drafts_) counts_.remove(draft);
    sequence_->truncate_draft(committed);
    return {};
  }

  Status cycle() {
    const std::int64_t room = model_.config().max_positions - sequence_->length() - 1;
    const std::int64_t depth = std::max<std::int64_t>(0, std::min({options_.depth, budget_left() - 1, room}));
    LOCKSTEP_TRY(make_drafts(depth));
    std::optional<model::Sequence> before;
    if (depth > 0 && !options_.capture) before.emplace(LOCKSTEP_TRY(sequence_->fork()));
    const model::Segment verify{&*sequence_, rows_, model::LogitsWanted::All, depth > 0 && options_.capture};
    LOCKSTEP_TRY(runner_.forward({&verify, 1}));
    ++stats_.steps;
    const bool stream = params_.acceptance == AcceptanceRule::Stream;
    const std::size_t kept = LOCKSTEP_TRY(stream ? judge_stream() : judge_rejection());
    keep_unfed(0, static_cast<std::int64_t>(kept), next_tokens_);
    pending_ = next_tokens_.back();
    return take_back(rows_.size(), kept, verify.capture, std::move(before));
  }

  /// Only the first `kept` rows happened.
  Status take_back(std::size_t rows, std::size_t kept, bool captured, std::optional<model::Sequence> before) {
    if (captured) {
      sequence_->commit(static_cast<std::int64_t>(rows), static_cast<std::int64_t>(kept));
      return {};
    }
    if (kept == rows) return {};
    sequence_ = std::move(before);
    const model::Segment again{&*sequence_, std::span<const TokenId>(rows_).first(kept), model::LogitsWanted::None,
                               false};
    stats_.recomputed_tokens += static_cast<std::int64_t>(kept);
    return runner_.forward({&again, 1});
  }

  [[nodiscard]] std::span<const float> target_row(std::size_t row) const {
    return runner_.logits().subspan(row * vocabulary_, vocabulary_);
  }

  /// Emits the target's own draw of row after row for as long as the draft guessed it. Returns the rows that happened;
  /// next_tokens_[i] follows row i.
  Result<std::size_t> judge_stream() {
    next_tokens_.clear();
    for (std::size_t row = 0;; ++row) {
      LOCKSTEP_TRY(distribution(target_row(row), next_number(), targets_[0]));
      const Choice choice = draw(targets_[0], next_number());
      next_tokens_.push_back(choice.id);
      const bool guessed = row < drafts_.size() && drafts_[row] == choice.id;
      if (guessed) ++stats_.accepted[row];
      if (!emit(choice) || !guessed) return row + 1;
    }
  }

  /// The p/q test of docs/sampling.md. All rows' distributions are needed before the first coin.
  Result<std::size_t> judge_rejection() {
    const std::size_t depth = drafts_.size();
    std::size_t judged = depth;  // drafts after a stop token stand for nothing
    for (std::size_t i = 0; i < depth; ++i) {
      if (is_stop(drafts_[i])) {
        judged = i + 1;
        break;
      }
    }
    const bool stops = judged > 0 && is_stop(drafts_[judged - 1]);
    for (std::size_t row = 0; row <= judged; ++row) {
      LOCKSTEP_TRY(distribution(target_row(row), next_number() + row, targets_[row]));
      if (row < judged) counts_.add(drafts_[row]);  // for the penalties of the rows after it
    }
    for (std::size_t i = 0; i < judged; ++i) counts_.remove(drafts_[i]);
    const RejectionOutcome outcome =
        rejection_accepted(std::span<const TokenId>(drafts_).first(judged), std::span(proposals_).first(judged),
                           std::span(targets_).first(judged + 1), !stops, *generator_, residual_);
    next_tokens_.assign(drafts_.begin(), drafts_.begin() + static_cast<std::ptrdiff_t>(outcome.accepted));
    if (outcome.next) next_tokens_.push_back(*outcome.next);
    for (std::size_t row = 0; row < next_tokens_.size(); ++row) {
      if (row < outcome.accepted) ++stats_.accepted[row];
      const TokenId id = next_tokens_[row];
      if (!emit({id, targets_[row].probability_of(id)})) next_tokens_.resize(row + 1);
    }
    return next_tokens_.size();
  }

  SpeculativeOptions options_;
  backend::BufferPtr hidden_;  ///< [kMaxDepth + 1, wide]
  std::int64_t wide_;
  std::size_t vocabulary_;
  std::vector<TokenId> unfed_tokens_, drafts_, rows_, next_tokens_;
  std::vector<Distribution> targets_, proposals_;
  Distribution residual_;
  std::optional<numerics::Pcg64> generator_;  ///< of rejection mode, in sequential use
  TokenId pending_ = 0;
};

}  // namespace

Result<std::unique_ptr<Decoder>> make_speculative_decoder(const model::Model& model, SpeculativeOptions options) {
  if (!model.has_draft())
    return fail(ErrorKind::Invalid, "speculative decoding needs a draft layer; the model has none");
  if (options.depth < 1 || options.depth > kMaxDepth) {
    return fail(ErrorKind::Usage, "depth {} is outside 1..{}", options.depth, kMaxDepth);
  }
  const std::int64_t rows = std::max(options.prefill_chunk, kMaxDepth + 1);
  model::Runner runner = LOCKSTEP_TRY(model::Runner::create(model, rows));
  const std::size_t row_bytes = static_cast<std::size_t>(model.config().wide_size()) * sizeof(float);
  backend::BufferPtr hidden = LOCKSTEP_TRY(model.backend().allocate(row_bytes * (kMaxDepth + 1)));
  return std::make_unique<SpeculativeDecoder>(model, std::move(runner), std::move(options), std::move(hidden));
}

}  // namespace lockstep::decode
