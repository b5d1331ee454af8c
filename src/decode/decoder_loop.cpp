// The loop over one request: a generation, a runner, and nothing else.
#include <algorithm>
#include <chrono>

#include "decode/generation.hpp"
#include "decode/lanes/ar_pipeline.hpp"

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

using MakeGeneration =
    std::function<Result<std::unique_ptr<Generation>>(DecodeRequest request, std::optional<Checkpoint> prefix)>;

class LoopDecoder final : public Decoder {
 public:
  LoopDecoder(const model::Model& model, model::Runner runner, std::int64_t chunk, MakeGeneration make)
      : model_(model), runner_(std::move(runner)), chunk_(chunk), make_(std::move(make)) {}

  Status start(const DecodeRequest& request, const PrefillProgress& progress) override {
    LOCKSTEP_TRY(check_request(model_, request));
    cancelled_.store(false);
    runner_.drop();
    ahead_ = prepared_ = false;
    lanes_before_ = model_.backend().lane_counters();
    short_head_rows_before_ = runner_.short_head_rows();
    double seconds = 0;
    Status done;
    {
      const Stopwatch watch(seconds);
      done = begin(request, progress);
    }
    if (!done) {
      generation_.reset();  // part of a prompt is nothing that a later request could continue
      return done;
    }
    generation_->stats().prefill_seconds = seconds;
    count_lanes();
    return done;
  }

  Result<std::span<const Choice>> step() override {
    if (!generation_) return fail(ErrorKind::Internal, "no request is running: start() must succeed first");
    generation_->clear_emitted();
    if (finish() != Finish::None) return std::span<const Choice>{};
    if (cancelled()) return fail(ErrorKind::Cancelled, "interrupted");
    double seconds = 0;
    Status done;
    {
      const Stopwatch watch(seconds);
      do {
        done = ahead_ ? draw_ahead() : next_step();
      } while (done && !(generation_->at_rest() && (finish() != Finish::None || !generation_->emitted().empty())));
    }
    if (!done) {
      end();
      return tl::unexpected(done.error());
    }
    if (finish() != Finish::None) runner_.drop();  // the step over the last token: nobody wants what it draws
    generation_->stats().decode_seconds += seconds;
    count_lanes();
    return generation_->emitted();
  }

  Status run_ahead() override {
    // At rest only plain decoding needs the rows of a forward pass. To a cancelled request step() says so.
    if (!generation_ || ahead_ || cancelled() || generation_->in_prompt() || !generation_->at_rest()) return {};
    if (generation_->need() != Generation::Need::Rows || runner_.launched() > 0) return {};
    double seconds = 0;
    Status done;
    const std::optional<Generation::Chain> chain = chained();
    {
      const Stopwatch watch(seconds);
      done = chain ? runner_.launch(*chain->sequence, chain->token, chain->draw) : forward_ahead();
    }
    if (!done) {
      end();
      return done;
    }
    ahead_ = !chain;
    DecodeStats& stats = generation_->stats();
    ++stats.steps_ahead;
    if (prepared_) {
      prepared_ = false;
      ++stats.prepared_steps;
      const TokenId drawn = generation_->sequence().tokens().back();
      if (std::find(likely_.begin(), likely_.end(), drawn) != likely_.end()) ++stats.foreseen_tokens;
    }
    generation_->stats().decode_seconds += seconds;
    return {};
  }

  void use_companion(Companion* companion) override { companion_ = companion; }
  [[nodiscard]] Finish finish() const override { return generation_ ? generation_->finish() : Finish::None; }
  [[nodiscard]] const DecodeStats& stats() const override { return generation_ ? generation_->stats() : none_; }
  [[nodiscard]] const model::Sequence* sequence() const override {
    return generation_ ? &generation_->sequence() : nullptr;
  }

 private:
  void end() {
    runner_.drop();
    generation_.reset();
  }

  /// What the next step can be launched from, where the lane runs and the device draws.
  [[nodiscard]] std::optional<Generation::Chain> chained() {
    const bool wanted = companion_ != nullptr && runner_.launches();
    return wanted || runner_.launched() > 0 ? generation_->chain() : std::nullopt;
  }

  Status next_step() {
    const std::optional<Generation::Chain> chain = chained();
    if (!chain) return run_need(*generation_, runner_, chunk_);
    return run_chain(*generation_, runner_, *chain, companion_ != nullptr);
  }

  /// Draws from the row that run_ahead() has run; the companion prepares the next one meanwhile. Drawing reads the
  /// logits and writes the generation's counts; preparing reads the logits and writes sequence, runner and table.
  Status draw_ahead() {
    ahead_ = false;
    const model::RowResults& results = runner_.results(0);
    // Where the device has drawn there is nothing left to prepare beside.
    if (companion_ == nullptr || !results.drawn.empty() ||
        generation_->sequence().length() >= model_.config().max_positions) {
      return generation_->ran(runner_, 0, results);
    }
    prepared_ = true;
    companion_->post([this, &results] {
      likely_tokens(results.logits, generation_->request(), likely_);
      generation_->prepare_row(runner_, likely_);
    });
    Status drawn = generation_->ran(runner_, 0, results);
    companion_->wait();
    return drawn;
  }

  Status forward_ahead() {
    const model::Segment rows = LOCKSTEP_TRY(generation_->rows(runner_, chunk_));
    return runner_.forward({&rows, 1});
  }

  /// Takes over the counters of the layers below.
  void count_lanes() {
    DecodeStats& stats = generation_->stats();
    stats.backend = model_.backend().lane_counters() - lanes_before_;
    stats.short_head_rows = runner_.short_head_rows() - short_head_rows_before_;
  }

  Status begin(const DecodeRequest& request, const PrefillProgress& progress) {
    std::optional<Checkpoint> prefix;
    if (generation_) {
      const std::vector<TokenId>& have = generation_->sequence().tokens();
      if (have.size() < request.prompt.size() && std::equal(have.begin(), have.end(), request.prompt.begin())) {
        prefix = LOCKSTEP_TRY(generation_->take());
      }
      generation_.reset();
    }
    generation_ = LOCKSTEP_TRY(make_(request, std::move(prefix)));
    while (generation_->in_prompt()) {
      if (cancelled()) return fail(ErrorKind::Cancelled, "interrupted");
      const std::int64_t before = generation_->prompt_done();
      LOCKSTEP_TRY(run_need(*generation_, runner_, chunk_));
      const std::int64_t done = generation_->prompt_done();
      if (progress && done > before) progress(done, generation_->stats().prompt_tokens);
    }
    while (!generation_->at_rest()) LOCKSTEP_TRY(run_need(*generation_, runner_, chunk_));
    return request.round_trip_state ? generation_->round_trip() : Status{};
  }

  const model::Model& model_;
  model::Runner runner_;
  std::int64_t chunk_;
  MakeGeneration make_;
  std::unique_ptr<Generation> generation_;
  DecodeStats none_;
  bool ahead_ = false;  ///< the rows that generation_ needs have run, but it has not been told
  Companion* companion_ = nullptr;
  bool prepared_ = false;        ///< the next run_ahead() has been prepared
  std::vector<TokenId> likely_;  ///< for which tokens
  backend::LaneCounters lanes_before_;
  std::int64_t short_head_rows_before_ = 0;
};

}  // namespace

Result<std::unique_ptr<Decoder>> make_plain_decoder(const model::Model& model, std::int64_t prefill_chunk) {
  model::Runner runner = LOCKSTEP_TRY(model::Runner::create(model, prefill_chunk));
  return std::make_unique<LoopDecoder>(model, std::move(runner), prefill_chunk,
                                       [&model](DecodeRequest request, std::optional<Checkpoint> prefix) {
                                         return make_plain_generation(model, std::move(request), std::move(prefix));
                                       });
}

Result<std::unique_ptr<Decoder>> make_speculative_decoder(const model::Model& model, SpeculativeOptions options) {
  if (!model.has_draft())
    return fail(ErrorKind::Invalid, "speculative decoding needs a draft layer; the model has none");
  if (options.depth < 1 || options.depth > kMaxDepth) {
    return fail(ErrorKind::Usage, "depth {} is outside 1..{}", options.depth, kMaxDepth);
  }
  if (options.short_head && !model.has_short_head()) {
    return fail(ErrorKind::Invalid, "the model was loaded without a list of draft tokens");
  }
  const std::int64_t chunk = options.prefill_chunk;
  model::Runner runner = LOCKSTEP_TRY(model::Runner::create(model, std::max(chunk, kMaxDepth + 1)));
  if (options.short_head) runner.use_short_head();
  return std::make_unique<LoopDecoder>(
      model, std::move(runner), chunk,
      [&model, options = std::move(options)](DecodeRequest request, std::optional<Checkpoint> prefix) {
        return make_speculative_generation(model, options, std::move(request), std::move(prefix));
      });
}

}  // namespace lockstep::decode
