// One request's decoding as a machine of steps. It says which rows it needs next; whoever drives it runs them, alone or
// together with the rows of other requests, and hands the results back. So decoding exists once, for the loop of one
// request (decoder.hpp) and for batches.
//
//   while (need() is not Nothing):
//     Fill, Draft: run draft_rows() through Runner::draft_fill() or Runner::draft(), then ran()
//     Rows:        run rows() through Runner::forward(), then ran()
//     First:       first(), no rows
//
// After ran() for Rows, a need of Fill refers to rows that the runner still holds: it has to be run before the runner's
// next forward pass. Everything else may wait as long as the driver likes.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "decode/decoder.hpp"
#include "decode/distribution.hpp"
#include "decode/sampler_logprobs.hpp"
#include "model/runner.hpp"

namespace lockstep::decode {

/// A sequence between two steps, and what its tokens alone do not give back: another request that starts with the same
/// tokens can go on from it.
struct Checkpoint {
  model::Sequence sequence;
  /// Wide residuals of the positions from sequence.draft_length() on, which the draft layer has not seen:
  /// [length - draft_length, wide]. Null where drafting does not happen.
  backend::BufferPtr hidden;
  /// The logits after the last token; empty when they are not known. With them a prompt that is these tokens needs no
  /// row at all.
  std::vector<float> logits;

  [[nodiscard]] std::int64_t unfed() const { return hidden ? sequence.length() - sequence.draft_length() : 0; }
  /// An independent copy; K/V pages are shared until one side writes. Errors: Limit.
  [[nodiscard]] Result<Checkpoint> fork(const model::Model& model) const;
};

/// Prompt rows of a step whose logits are all wanted: a row of logits is as wide as the vocabulary.
inline constexpr std::int64_t kScoredRows = 32;

[[nodiscard]] inline Choice choice_of(const backend::Drawn& drawn) {
  return {drawn.id, drawn.probability};
}

class Generation {
 public:
  enum class Need : std::uint8_t { Nothing, Fill, Draft, Rows, First };

  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;
  virtual ~Generation() = default;

  [[nodiscard]] virtual Need need() const = 0;
  /// The rows of a forward pass: of the prompt at most `most` (>= 1), else of one decoding step, at most kMaxDepth + 1.
  /// Asks `runner` for the table rows that come after them. The segment lives until ran(). Errors: those of prefetch().
  Result<model::Segment> rows(model::Runner& runner, std::int64_t most);
  [[nodiscard]] virtual model::DraftSegment draft_rows() = 0;
  /// The rows have run: they are those of `runner` from `first_row` on, and `results` came of the wanted ones. An error
  /// ends the request; the object can then only be destroyed.
  virtual Status ran(model::Runner& runner, std::int64_t first_row, const model::RowResults& results) = 0;
  /// While the token of one row is drawn: what the row after it needs whatever that token is, and the table rows of the
  /// `likely` ones on their way. Touches nothing that drawing touches. What fails here fails again when it is needed.
  void prepare_row(model::Runner& runner, std::span<const TokenId> likely);
  /// A generation whose next steps are one row each, drawn from by the device: rows() and ran(), for a driver that has
  /// the device begin a step before its token is known (Runner::launch()).
  struct Chain {
    model::Sequence* sequence = nullptr;
    TokenId token = 0;                      ///< of the next row
    std::int64_t most = 0;                  ///< tokens that may still be emitted
    backend::DrawRequest draw, draw_after;  ///< of the next token and of the one behind it
  };
  /// Nothing where there is no such step to be made now.
  [[nodiscard]] virtual std::optional<Chain> chain() { return std::nullopt; }
  /// Draws the first token from the logits after the prompt.
  Status first(model::Runner& runner);

  /// Most drafts of the cycles that begin from now on. Changes no token.
  void set_depth(std::int64_t most) { depth_cap_ = most; }

  [[nodiscard]] bool in_prompt() const { return prompt_done_ < static_cast<std::int64_t>(request_.prompt.size()); }
  /// Tokens of the prompt that are in the sequence.
  [[nodiscard]] std::int64_t prompt_done() const { return prompt_done_; }
  /// No cycle is half done: the sequence is exactly its tokens and checkpoint() may be called.
  [[nodiscard]] virtual bool at_rest() const = 0;
  [[nodiscard]] Finish finish() const { return finish_; }

  /// What has been emitted since the last clear_emitted(), and with DecodeRequest::logprobs their log-probabilities.
  [[nodiscard]] std::span<const Choice> emitted() const { return emitted_; }
  [[nodiscard]] std::span<const Logprobs> logprobs() const { return logprobs_; }
  void clear_emitted();
  /// With DecodeRequest::prompt_logprobs: of the prompt's tokens 1, 2, ... as far as they are known.
  [[nodiscard]] std::span<const Logprobs> prompt_logprobs() const { return prompt_logprobs_; }

  [[nodiscard]] const DecodeRequest& request() const { return request_; }
  [[nodiscard]] DecodeStats& stats() { return stats_; }
  [[nodiscard]] const DecodeStats& stats() const { return stats_; }
  [[nodiscard]] const model::Sequence& sequence() const { return *sequence_; }
  /// A copy of the present state, at rest. Errors: Limit.
  [[nodiscard]] Result<Checkpoint> checkpoint() const;
  /// The present state itself, at rest; the object can then only be destroyed. Errors: Limit.
  [[nodiscard]] Result<Checkpoint> take();
  /// Verification: go on with a fork of a restored copy of the sequence. At rest.
  Status round_trip();

 protected:
  /// `start` holds a beginning of the prompt, possibly nothing of it.
  Generation(const model::Model& model, DecodeRequest request, SamplerParams params, Checkpoint start);

  /// The rows of a decoding step.
  virtual Result<model::Segment> step_rows(model::Runner& runner) = 0;
  /// The prompt has run, or the first token has been drawn: what comes next.
  virtual Status after_first(model::Runner& /*runner*/, const Choice& /*choice*/) { return {}; }
  virtual Choice draw(const Distribution& row, std::uint64_t number) { return sampler_.draw(row, number); }

  /// The logits part of ran() for rows of the prompt, and their count.
  Result<std::int64_t> prompt_ran(std::span<const float> logits);
  /// The prompt has run and no token has been drawn.
  [[nodiscard]] bool first_is_next() const {
    return !in_prompt() && stats_.tokens == 0 && finish_ == Finish::None && !logits_.empty();
  }

  /// For a segment of rows whose tokens have the numbers `first`, ...: how the device draws them. Empty when the host
  /// has to, because of the request or the device. Lives until the next call.
  [[nodiscard]] std::span<const backend::DrawRequest> draws(std::uint64_t first, std::size_t rows);
  /// The distribution of the token with this number, from one row of target or draft logits.
  Status distribution(std::span<const float> logits, std::uint64_t number, Distribution& out);
  /// Emits a token drawn from the target's `logits`, which only log-probabilities need, or ends the request when it is
  /// a stop token or the budget is used up. False when it has ended.
  Result<bool> emit(const Choice& choice, std::span<const float> logits);
  [[nodiscard]] bool is_stop(TokenId id) const;
  [[nodiscard]] std::int64_t budget_left() const { return budget_ - stats_.tokens; }
  [[nodiscard]] std::uint64_t next_number() const { return static_cast<std::uint64_t>(stats_.tokens); }

  const model::Model& model_;
  DecodeRequest request_;
  SamplerParams params_;
  Sampler sampler_;
  std::optional<model::Sequence> sequence_;
  std::vector<float> logits_;  ///< after the prompt, until the first token is drawn
  TokenCounts counts_;
  DecodeStats stats_;
  std::int64_t depth_cap_ = kMaxDepth;

 private:
  /// Wide residuals that checkpoint() and take() hand on. Null where there are none.
  [[nodiscard]] virtual Result<backend::BufferPtr> unfed_copy() const { return backend::BufferPtr(); }

  std::optional<backend::DrawRequest> device_draw_;  ///< of every token, but for the random number
  std::vector<backend::DrawRequest> draws_;
  RowScratch scratch_;
  Distribution first_row_;
  std::vector<Choice> emitted_;
  std::vector<Logprobs> logprobs_, prompt_logprobs_;
  Finish finish_ = Finish::None;
  std::int64_t prompt_done_ = 0, chunk_ = 0, prefetched_ = 0, budget_ = 0;
};

/// The beginning of a request. `prefix`, where given, is a proper prefix of the prompt, or all of it with logits; a
/// speculative generation wants one with hidden rows. Errors: Invalid (empty prompt, token id, parameters), Limit
/// (context, memory).
Result<std::unique_ptr<Generation>> make_plain_generation(const model::Model& model, DecodeRequest request,
                                                          std::optional<Checkpoint> prefix);
Result<std::unique_ptr<Generation>> make_speculative_generation(const model::Model& model, SpeculativeOptions options,
                                                                DecodeRequest request,
                                                                std::optional<Checkpoint> prefix);

/// The prefix after a check that it is one, or an empty sequence. For the two functions above.
Result<Checkpoint> take_prefix(const model::Model& model, const DecodeRequest& request,
                               std::optional<Checkpoint> prefix);

/// Runs what one generation needs next, alone. For loops over one request.
Status run_need(Generation& generation, model::Runner& runner, std::int64_t most_prompt_rows);

/// One step of a chain: has the device begin the step over the token that it is about to draw, if `ahead` and if that
/// token is not known to be the last one, then waits for it. Needs a runner that has launched nothing but this chain.
Status run_chain(Generation& generation, model::Runner& runner, const Generation::Chain& chain, bool ahead);

/// How the model's device draws every token of the request, but for the random number; nothing where the host has to:
/// another draw rule, rejection, penalties, bias, log-probabilities, too many candidates, a device that does not draw.
[[nodiscard]] std::optional<backend::DrawRequest> device_draw(const model::Model& model, const DecodeRequest& request,
                                                              const SamplerParams& params);

/// What can be said about a request before it runs: the checked parameters. Errors: Invalid, Limit (context).
Result<SamplerParams> check_request(const model::Model& model, const DecodeRequest& request);

}  // namespace lockstep::decode
