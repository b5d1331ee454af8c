// The forward pass, written once over the backend's coarse operations.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "backend/draws_ahead.hpp"
#include "model/sequence.hpp"

namespace lockstep::model {

enum class LogitsWanted : std::uint8_t { None, Last, All };

/// Consecutive new tokens of one sequence, at least one. Several segments share one step; a sequence appears at most
/// once.
struct Segment {
  Sequence* sequence = nullptr;
  std::span<const std::int32_t> tokens;
  LogitsWanted logits = LogitsWanted::Last;
  /// Keep what commit() needs to take rows back, at most raw_key_ring - ratio. Without it the rows are final.
  bool capture = false;
  /// How the backend draws a token from each wanted row, where it can (Backend::draw_vocabulary()): one request a row,
  /// whose `row` is not looked at. Empty: the logits are wanted on the host.
  std::span<const backend::DrawRequest> draws{};
};

/// Rows for the draft head: hidden row i is the wide residual of token t, tokens[i] the id of token t + 1.
struct DraftSegment {
  Sequence* sequence = nullptr;
  std::span<const std::int32_t> tokens;
  const float* hidden = nullptr;  ///< device rows [tokens, wide]
  LogitsWanted logits = LogitsWanted::Last;
  std::span<const backend::DrawRequest> draws{};  ///< as in a Segment; a short head's rows go to the host
};

/// What came of the wanted rows of one segment. Lives until the runner's next forward() or draft().
struct RowResults {
  /// [rows, vocabulary] on the host, unless every row was drawn from.
  std::span<const float> logits{};
  /// Of every row, in order; empty where the host has to draw: nothing was asked for, or some row cannot be drawn from.
  std::span<const backend::Drawn> drawn{};
};

/// The draft logit of tokens that a short head does not know: finite, and so low that their probability is 0.
inline constexpr float kOutsideVocabulary = -1e30F;

/// Bytes of the buffers that a runner of `rows` rows takes when it is made; `draft`: the model has a draft layer.
[[nodiscard]] std::uint64_t runner_bytes(const artifact::ModelConfig& config, std::int64_t rows, bool draft);

/// Runs steps of up to `max_rows` rows. Holds the activations; not thread safe.
class Runner {
 public:
  static Result<Runner> create(const Model& model, std::int64_t max_rows);

  [[nodiscard]] std::int64_t max_rows() const { return max_rows_; }

  /// One step. On success every sequence has grown by its tokens (commit() must follow a captured one). Errors: Invalid
  /// token id, Limit (context or memory), Io of the n-gram table; then the sequences are as they were before, but for
  /// one case: table rows are read while the layers in front of the PLE layer run, and if that read fails, sequences
  /// without capture are broken() (src/model/sequence.hpp). Steps after that fail before they touch anything.
  /// Model::status() is the other case: it is asked last, and when it fails (Io of a mapped file that has changed, or
  /// the device's error) all sequences of the step are broken() and the logits worthless.
  Status forward(std::span<const Segment> segments);
  /// Starts reading the table rows of tokens[first..], where `tokens` are to follow those of the sequence: the next
  /// chunk of a prompt before this one runs, or drafted tokens one by one. Does not wait, changes no sequence and may
  /// be left out. Errors: Invalid token id, Io once a read of the table has failed.
  Status prefetch(const Sequence& sequence, std::span<const std::int32_t> tokens, std::size_t first);
  /// What a step of `rows` more rows of the sequence needs whatever their tokens are: pages, rotation angles, room in
  /// the history. forward() does the same; doing it before, beside other work, may be left out. Changes nothing that
  /// counts. Errors: Limit (context or memory).
  Status reserve(Sequence& sequence, std::int64_t rows);
  /// One step of the draft layer; hidden rows may be rows of wide() or draft_wide().
  Status draft(std::span<const DraftSegment> segments);
  /// From now on draft() projects with the model's short head (Model::has_short_head()); tokens outside its list get
  /// kOutsideVocabulary.
  void use_short_head() { short_head_ = &*model_->weights().draft->short_head; }
  /// Draft rows projected with the short head so far.
  [[nodiscard]] std::int64_t short_head_rows() const { return short_head_rows_; }
  /// Only appends the rows' keys to the draft layer's cache; logits(), results() and draft_wide() stay as they were.
  Status draft_fill(std::span<const DraftSegment> segments);

  // Steps of one token that nobody waits for (runner_ahead.cpp), of one sequence at a time:
  //   launch(token); then, again and again: launch(), behind it, and take(), which waits for the token in front.
  /// Whether the backend runs such steps.
  [[nodiscard]] bool launches() const { return ahead_ != nullptr; }
  /// Hands over a step of one token, from whose logits the device draws. Without a token it is the one that the launch
  /// before draws: then the sequence grows when take() has that token, and holds it whatever comes of the step. Errors
  /// leave everything as it was; else as forward().
  Status launch(Sequence& sequence, std::optional<std::int32_t> token, const backend::DrawRequest& draw);
  /// Waits for what the oldest launch gives: results(0). Errors: Model::status(); the sequence is broken() then.
  Status take();
  /// Launches that have not been taken.
  [[nodiscard]] std::size_t launched() const { return launches_.size(); }
  /// Forgets them: what they draw is not wanted. Their tokens stay in the sequence.
  void drop();

  /// Logits of the wanted rows of the last forward() or draft(), in order: [rows, vocabulary] on the host. Segments
  /// whose tokens were drawn have no rows here.
  [[nodiscard]] std::span<const float> logits() const { return logits_; }
  /// What the last forward() or draft() gave for its segment number `segment`.
  [[nodiscard]] const RowResults& results(std::size_t segment) const { return results_[segment]; }
  /// Wide residual of row i of the last forward() (after the last layer, before the final mixer).
  [[nodiscard]] const float* wide(std::int64_t row) const { return x_->floats() + row * wide_size_; }
  /// Wide output of row i of the last draft().
  [[nodiscard]] const float* draft_wide(std::int64_t row) const { return draft_x_->floats() + row * wide_size_; }

  /// Called after every layer with the wide residual of all rows; for traces.
  std::function<void(std::int64_t layer, const float* wide, std::int64_t rows)> on_layer;

 private:
  Runner(const Model& model, std::int64_t max_rows);
  Result<std::int64_t> begin(std::span<const Segment> segments);
  Status run_step(std::span<const Segment> segments);
  /// How far a step has come.
  struct Place {
    std::size_t layer = 0;
    std::int64_t linear = 0, attention = 0;
  };
  /// Runs the layers of a step up to `end`. Errors: Io of the table.
  Status run_layers(std::span<const Segment> segments, std::int64_t rows, std::size_t end, Place& at);
  void bind_ple(std::span<const Segment> segments);
  void bind_attention(std::span<const Segment> segments, std::int64_t index);
  struct Launch {
    Sequence* sequence = nullptr;
    std::size_t slot = 0;
    backend::DrawRequest draw;
    bool unknown = false;  ///< its token: the sequence has not grown yet
    bool halted = false;   ///< in front of the layer that takes table rows, which the host reads
    Place at{};
  };
  Status run_launch(Sequence& sequence, std::optional<std::int32_t> token, const backend::DrawRequest& draw);
  /// The layers that are left, and the draw.
  Status end_launch(Launch& launch, std::span<const Segment> segment);
  /// past_ of the token behind those of the sequence.
  void find_past(const Sequence& sequence);
  /// The token of a launch is known.
  void settle(Launch& launch, const backend::Drawn& drawn);
  /// Appends the table rows of tokens[first..], which follow those of the sequence.
  void add_row_ids(const Sequence& sequence, std::span<const std::int32_t> tokens, std::size_t first);
  Status ngram_embedding(std::span<const Segment> segments, std::int64_t layers_run, std::int64_t attention_layers_run);
  void layer(const LayerWeights& weights, std::int64_t rows, float* x);
  void bind_linear(std::span<const Segment> segments, std::int64_t index);
  Result<std::int64_t> draft_input(std::span<const DraftSegment> segments, float* x);
  /// Memory for the logits of `rows` rows of the whole vocabulary or a short one, taken before a step changes anything.
  Status reserve_logits(std::size_t rows, const ShortHead* short_head);
  void pick(const backend::HyperWeights& mixer, const float* x, std::span<const std::int64_t> wanted);
  void finish(const backend::HyperWeights& mixer, const float* x, std::span<const std::int64_t> wanted);
  /// Adds the wanted rows of the next segment of a step, which begins with row `first`.
  Status want(LogitsWanted wanted, std::int64_t first, std::size_t rows, std::span<const backend::DrawRequest> draws);
  void begin_wanted();
  /// Draws the tokens of the segments that ask for it from the logits on the device.
  void draw_wanted();
  /// Brings the rows of the segments that were not drawn to the host.
  void read_wanted();
  /// Points results_ to what is there.
  void name_results();
  void finish_short(const backend::HyperWeights& mixer, const float* x, std::span<const std::int64_t> wanted);
  Status run_draft(std::span<const DraftSegment> segments);
  Status run_draft_fill(std::span<const DraftSegment> segments);

  const Model* model_;
  backend::DrawsAhead* ahead_ = nullptr;
  std::vector<Launch> launches_;  ///< the oldest first, at most one a slot
  std::size_t next_slot_ = 0;
  bool row_drawn_ = false;  ///< the table rows of the step are those of a drawn token, in slot drawn_slot_
  std::size_t drawn_slot_ = 0;
  std::vector<std::uint64_t> past_;
  std::int64_t max_rows_, wide_size_;
  backend::BufferPtr x_, draft_x_, draft_fill_x_, hidden_, u_, y_, inject_, embedded_, picked_, logits_device_;
  std::int64_t logits_device_floats_ = 0;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int64_t> row_ids_, wanted_, window_;
  struct WantedRows {
    std::size_t rows = 0;
    std::span<const backend::DrawRequest> draws;
    bool drawn = false;
  };
  std::vector<WantedRows> wanted_segments_;
  std::vector<backend::DrawRequest> draw_requests_;
  std::vector<backend::Drawn> drawn_;
  std::vector<RowResults> results_;
  std::vector<std::uint64_t> window_rows_;
  std::vector<backend::DeltaSlot> delta_slots_;
  std::vector<backend::AttentionSlot> attention_slots_;
  std::vector<backend::PleSlot> ple_slots_;
  std::vector<float> logits_;
  const ShortHead* short_head_ = nullptr;
  std::int64_t short_head_rows_ = 0;
  std::vector<float> short_logits_;
};

}  // namespace lockstep::model
