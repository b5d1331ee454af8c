#include "model/runner.hpp"

#include <algorithm>
#include <exception>
#include <set>

#include "artifact/ngram_hash.hpp"

namespace lockstep::model {
namespace {

std::size_t row_bytes(std::int64_t rows, std::int64_t width) {
  return static_cast<std::size_t>(rows * width) * sizeof(float);
}

Status check_tokens(std::span<const std::int32_t> tokens, std::int64_t vocabulary) {
  if (tokens.empty()) return fail(ErrorKind::Internal, "a segment of a step has no tokens");
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= vocabulary) {
      return fail(ErrorKind::Invalid, "token id {} is outside the vocabulary of {}", token, vocabulary);
    }
  }
  return {};
}

/// Pages made for rows that did not happen are no part of the state.
void truncate_drafts(std::span<const DraftSegment> segments) {
  for (const DraftSegment& segment : segments) segment.sequence->truncate_draft(segment.sequence->draft_length());
}

Status check_whole(const Model& model, const Sequence& sequence) {
  if (!sequence.broken()) return {};
  LOCKSTEP_TRY(model.status());  // what broke it, if that is for good
  return fail(ErrorKind::Io, "an earlier step of this sequence failed in the middle: its state is lost; start again");
}

}  // namespace

std::uint64_t runner_bytes(const artifact::ModelConfig& config, std::int64_t rows, bool draft) {
  const std::int64_t wide = config.wide_size();
  std::int64_t width = wide + 3 * config.hidden_size + config.streams;  // x, u, y, picked, inject
  if (!config.ple_layers.empty()) width += config.ple_dim;
  if (draft) width += 3 * wide;
  return row_bytes(rows, width);
}

Runner::Runner(const Model& model, std::int64_t max_rows)
    : model_(&model), max_rows_(max_rows), wide_size_(model.config().wide_size()) {}

Result<Runner> Runner::create(const Model& model, std::int64_t max_rows) {
  Runner runner(model, max_rows);
  backend::Backend& backend = model.backend();
  const artifact::ModelConfig& config = model.config();
  const auto make = [&](std::int64_t width) { return backend.allocate(row_bytes(max_rows, width)); };
  runner.x_ = LOCKSTEP_TRY(make(config.wide_size()));
  runner.u_ = LOCKSTEP_TRY(make(config.hidden_size));
  runner.y_ = LOCKSTEP_TRY(make(config.hidden_size));
  runner.inject_ = LOCKSTEP_TRY(make(config.streams));
  runner.picked_ = LOCKSTEP_TRY(make(config.hidden_size));
  if (!config.ple_layers.empty()) runner.embedded_ = LOCKSTEP_TRY(make(config.ple_dim));
  if (model.has_draft()) {
    runner.draft_x_ = LOCKSTEP_TRY(make(config.wide_size()));
    runner.draft_fill_x_ = LOCKSTEP_TRY(make(config.wide_size()));
    runner.hidden_ = LOCKSTEP_TRY(make(config.wide_size()));
  }
  LOCKSTEP_TRY(backend.reserve_rows(max_rows));
  runner.ahead_ = backend.draws_ahead();
  return runner;
}

Result<std::int64_t> Runner::begin(std::span<const Segment> segments) {
  const artifact::ModelConfig& config = model_->config();
  std::int64_t rows = 0;
  std::int64_t positions = 0;
  const std::int64_t most_captured = backend::raw_key_ring(config.indexer_ratio) - config.indexer_ratio;
  tokens_.clear();
  for (const Segment& segment : segments) {
    const auto count = static_cast<std::int64_t>(segment.tokens.size());
    LOCKSTEP_TRY(check_whole(*model_, *segment.sequence));
    LOCKSTEP_TRY(check_tokens(segment.tokens, config.vocab_size));
    if (segment.capture && count > most_captured) {
      return fail(ErrorKind::Internal, "{} captured rows cannot be taken back, at most {} can", count, most_captured);
    }
    const std::int64_t end = segment.sequence->length() + count;
    if (end > config.max_positions) {
      return fail(ErrorKind::Limit, "{} tokens do not fit the model's context of {}", end, config.max_positions);
    }
    positions = std::max(positions, end);
    rows += count;
    tokens_.insert(tokens_.end(), segment.tokens.begin(), segment.tokens.end());
  }
  if (rows > max_rows_) return fail(ErrorKind::Internal, "a step of {} rows exceeds the runner's {}", rows, max_rows_);
  LOCKSTEP_TRY(model_->backend().prepare_positions(positions));
  for (const Segment& segment : segments) {
    const auto count = static_cast<std::int64_t>(segment.tokens.size());
    Sequence& sequence = *segment.sequence;
    LOCKSTEP_TRY(sequence.kv_.prepare(count));
    LOCKSTEP_TRY(sequence.history_.reserve(segment.tokens.size()));
    if (!segment.capture) continue;
    LOCKSTEP_TRY(sequence.delta_.prepare_capture(count));
    LOCKSTEP_TRY(sequence.conv_.prepare_capture(count));
    if (sequence.ple_conv_) LOCKSTEP_TRY(sequence.ple_conv_->prepare_capture(count));
  }
  return rows;
}

Status Runner::reserve(Sequence& sequence, std::int64_t rows) {
  const std::int64_t end = sequence.length() + rows;
  if (end > model_->config().max_positions) return fail(ErrorKind::Limit, "{} tokens do not fit the context", end);
  LOCKSTEP_TRY(model_->backend().prepare_positions(end));
  LOCKSTEP_TRY(sequence.kv_.prepare(rows));
  return sequence.history_.reserve(static_cast<std::size_t>(rows));
}

void Runner::add_row_ids(const Sequence& sequence, std::span<const std::int32_t> tokens, std::size_t first) {
  const artifact::ModelConfig& config = model_->config();
  std::vector<std::int64_t>& window = window_;
  std::vector<std::uint64_t>& rows = window_rows_;
  window.resize(static_cast<std::size_t>(config.ngram_size));
  rows.resize(static_cast<std::size_t>(config.ngram_heads()));
  const std::vector<std::int32_t>& past = sequence.tokens();
  for (std::size_t t = first; t < tokens.size(); ++t) {
    for (std::size_t back = 0; back < window.size(); ++back) {
      if (back <= t) {
        window[back] = tokens[t - back];
      } else {
        const std::size_t before = back - t;  // 1 is the newest token of the past
        window[back] = before <= past.size() ? past[past.size() - before] : config.ngram_eos;
      }
    }
    artifact::cut_ngram_window(window, config.ngram_eos);
    artifact::ngram_rows(model_->weights().ngram, window, rows);
    for (const std::uint64_t row : rows) row_ids_.push_back(static_cast<std::int64_t>(row));
  }
}

Status Runner::prefetch(const Sequence& sequence, std::span<const std::int32_t> tokens, std::size_t first) {
  if (model_->config().ple_layers.empty()) return {};
  LOCKSTEP_TRY(check_tokens(tokens, model_->config().vocab_size));
  row_ids_.clear();
  add_row_ids(sequence, tokens, first);
  return model_->backend().ngram_request(row_ids_);
}

/// The rows of the step are on their way from begin on; here, just before they are used, they must have arrived.
Status Runner::ngram_embedding(std::span<const Segment> segments, std::int64_t layers_run,
                               std::int64_t attention_layers_run) {
  if (row_drawn_) {
    ahead_->ngram_lookup_drawn(model_->weights().ngram, past_, drawn_slot_, embedded_->floats());
    return {};
  }
  Status status = model_->backend().ngram_lookup(row_ids_, embedded_->floats());
  if (status || layers_run == 0) return status;
  for (const Segment& segment : segments) {
    // Captured rows only touch what commit() would take over, but for the ring of raw index keys.
    if (!segment.capture || attention_layers_run > 0) segment.sequence->broken_ = true;
  }
  return status;
}

void Runner::bind_linear(std::span<const Segment> segments, std::int64_t index) {
  delta_slots_.clear();
  std::int64_t first = 0;
  for (const Segment& segment : segments) {
    const backend::Run run{first, static_cast<std::int64_t>(segment.tokens.size())};
    backend::DeltaSlot slot = segment.sequence->delta_.slot(index, run, segment.capture);
    slot.conv = segment.sequence->conv_.slot(index, segment.capture);
    delta_slots_.push_back(slot);
    first += run.rows;
  }
}

void Runner::bind_ple(std::span<const Segment> segments) {
  ple_slots_.clear();
  std::int64_t first = 0;
  for (const Segment& segment : segments) {
    const backend::Run run{first, static_cast<std::int64_t>(segment.tokens.size())};
    Sequence& sequence = *segment.sequence;
    if (sequence.ple_conv_) ple_slots_.push_back({run, sequence.ple_conv_->slot(0, segment.capture)});
    first += run.rows;
  }
}

void Runner::bind_attention(std::span<const Segment> segments, std::int64_t index) {
  attention_slots_.clear();
  std::int64_t first = 0;
  for (const Segment& segment : segments) {
    const backend::Run run{first, static_cast<std::int64_t>(segment.tokens.size())};
    attention_slots_.push_back(segment.sequence->kv_.slot(index, run));
    first += run.rows;
  }
}

Status Runner::run_layers(std::span<const Segment> segments, std::int64_t rows, std::size_t end, Place& at) {
  const std::vector<LayerWeights>& layers = model_->weights().layers;
  float* x = x_->floats();
  for (; at.layer < end; ++at.layer) {
    const LayerWeights& weights = layers[at.layer];
    if (weights.ple) LOCKSTEP_TRY(ngram_embedding(segments, static_cast<std::int64_t>(at.layer), at.attention));
    if (weights.kind == artifact::LayerKind::Linear) {
      bind_linear(segments, at.linear++);
    } else {
      bind_attention(segments, at.attention++);
    }
    layer(weights, rows, x);
    if (on_layer) on_layer(static_cast<std::int64_t>(at.layer), x, rows);
  }
  return {};
}

void Runner::layer(const LayerWeights& weights, std::int64_t rows, float* x) {
  backend::Backend& backend = model_->backend();
  const backend::BlockRows block{rows, u_->floats(), y_->floats(), inject_->floats()};
  if (weights.ple) backend.ple_inject(*weights.ple, embedded_->floats(), ple_slots_, rows, x);
  if (weights.kind == artifact::LayerKind::Linear) {
    backend.delta_block(weights.attention_site, *weights.linear, delta_slots_, block, x);
  } else {
    backend.attention_block(weights.attention_site, *weights.attention, attention_slots_, block, x);
  }
  backend.experts_block(weights.mlp_site, weights.moe, block, x);
}

Status Runner::reserve_logits(std::size_t rows, const ShortHead* short_head) {
  // Steps that nobody waits for have a row a slot; memory that is there from the first step on need not be exchanged.
  const std::size_t slots = ahead_ != nullptr ? backend::DrawsAhead::kSlots : 0;
  const auto count = static_cast<std::int64_t>(std::max(rows, slots));
  const std::int64_t vocabulary = model_->config().vocab_size;
  const std::int64_t device_floats =
      count * (short_head != nullptr ? static_cast<std::int64_t>(short_head->tokens.size()) : vocabulary);
  if (device_floats > logits_device_floats_) {
    logits_device_ = LOCKSTEP_TRY(model_->backend().allocate(static_cast<std::size_t>(device_floats) * sizeof(float)));
    logits_device_floats_ = device_floats;
  }
  try {
    logits_.reserve(rows * static_cast<std::size_t>(vocabulary));
    if (short_head != nullptr) short_logits_.reserve(rows * short_head->tokens.size());
  } catch (const std::exception&) {  // bad_alloc, length_error
    return fail(ErrorKind::Limit, "cannot allocate memory for the logits of {} rows", rows);
  }
  return {};
}

/// The wanted rows are gathered in front of the mixer: other rows need neither mixer nor head.
void Runner::pick(const backend::HyperWeights& mixer, const float* x, std::span<const std::int64_t> wanted) {
  const auto rows = static_cast<std::int64_t>(wanted.size());
  const bool consecutive = wanted.back() - wanted.front() + 1 == rows;
  const float* source = x + wanted.front() * wide_size_;
  for (std::int64_t i = 0; i < rows; i += consecutive ? rows : 1) {
    const std::int64_t count = consecutive ? rows : 1;
    if (!consecutive) source = x + wanted[static_cast<std::size_t>(i)] * wide_size_;
    model_->backend().hyper_read(mixer, source, count, picked_->floats() + i * model_->config().hidden_size, nullptr);
  }
}

void Runner::begin_wanted() {
  wanted_.clear();
  wanted_segments_.clear();
}

Status Runner::want(LogitsWanted wanted, std::int64_t first, std::size_t rows,
                    std::span<const backend::DrawRequest> draws) {
  const std::size_t count = wanted == LogitsWanted::None ? 0 : (wanted == LogitsWanted::All ? rows : 1);
  if (!draws.empty() && draws.size() != count) {
    return fail(ErrorKind::Internal, "{} tokens to be drawn from {} rows of logits", draws.size(), count);
  }
  for (std::size_t i = rows - count; i < rows; ++i) wanted_.push_back(first + static_cast<std::int64_t>(i));
  wanted_segments_.push_back({count, draws, false});
  return {};
}

void Runner::draw_wanted() {
  draw_requests_.clear();
  std::int32_t row = 0;
  for (const WantedRows& segment : wanted_segments_) {
    for (std::size_t i = 0; i < segment.draws.size(); ++i) {
      draw_requests_.push_back(segment.draws[i]);
      draw_requests_.back().row = row + static_cast<std::int32_t>(i);
    }
    row += static_cast<std::int32_t>(segment.rows);
  }
  drawn_.assign(draw_requests_.size(), {});
  if (draw_requests_.empty()) return;
  model_->backend().draw(logits_device_->floats(), model_->config().vocab_size, draw_requests_, drawn_);
  std::size_t at = 0;
  for (WantedRows& segment : wanted_segments_) {
    const auto drawn = std::span<const backend::Drawn>(drawn_).subspan(at, segment.draws.size());
    segment.drawn =
        !drawn.empty() && std::all_of(drawn.begin(), drawn.end(), [](const backend::Drawn& d) { return d.id >= 0; });
    at += drawn.size();
  }
}

void Runner::read_wanted() {
  const auto vocabulary = static_cast<std::size_t>(model_->config().vocab_size);
  std::size_t rows = 0;
  for (const WantedRows& segment : wanted_segments_) rows += segment.drawn ? 0 : segment.rows;
  logits_.resize(rows * vocabulary);
  std::size_t row = 0;   // of all wanted ones
  std::size_t read = 0;  // on the host
  for (std::size_t i = 0; i < wanted_segments_.size();) {
    std::size_t together = 0;
    for (; i < wanted_segments_.size() && !wanted_segments_[i].drawn; ++i) together += wanted_segments_[i].rows;
    const std::byte* from = logits_device_->data() + row * vocabulary * sizeof(float);
    if (together > 0) {
      model_->backend().read(logits_.data() + read * vocabulary, from, together * vocabulary * sizeof(float));
    }
    read += together;
    row += together;
    for (; i < wanted_segments_.size() && wanted_segments_[i].drawn; ++i) row += wanted_segments_[i].rows;
  }
}

void Runner::name_results() {
  const auto vocabulary = static_cast<std::size_t>(model_->config().vocab_size);
  results_.clear();
  std::size_t read = 0;
  std::size_t drawn = 0;
  for (const WantedRows& segment : wanted_segments_) {
    RowResults& results = results_.emplace_back();
    if (segment.drawn) {
      results.drawn = std::span<const backend::Drawn>(drawn_).subspan(drawn, segment.rows);
    } else {
      results.logits = std::span<const float>(logits_).subspan(read * vocabulary, segment.rows * vocabulary);
      read += segment.rows;
    }
    drawn += segment.draws.size();
  }
}

/// finish() with the short head: its logits are spread over a row of the whole vocabulary.
void Runner::finish_short(const backend::HyperWeights& mixer, const float* x, std::span<const std::int64_t> wanted) {
  backend::Backend& backend = model_->backend();
  const std::vector<std::int32_t>& tokens = short_head_->tokens;
  const auto rows = static_cast<std::int64_t>(wanted.size());
  const auto vocabulary = static_cast<std::size_t>(model_->config().vocab_size);
  logits_.assign(wanted.size() * vocabulary, kOutsideVocabulary);
  name_results();
  if (rows == 0) return;
  short_logits_.resize(wanted.size() * tokens.size());
  pick(mixer, x, wanted);
  backend.project(*short_head_->head, picked_->floats(), rows, logits_device_->floats());
  backend.read(short_logits_.data(), logits_device_->data(), short_logits_.size() * sizeof(float));
  for (std::size_t row = 0; row < wanted.size(); ++row) {
    const float* from = short_logits_.data() + row * tokens.size();
    float* to = logits_.data() + row * vocabulary;
    for (std::size_t i = 0; i < tokens.size(); ++i) to[tokens[i]] = from[i];
  }
  short_head_rows_ += rows;
}

void Runner::finish(const backend::HyperWeights& mixer, const float* x, std::span<const std::int64_t> wanted) {
  if (wanted.empty()) {
    logits_.clear();
  } else {
    pick(mixer, x, wanted);
    const auto rows = static_cast<std::int64_t>(wanted.size());
    model_->backend().project(*model_->weights().head, picked_->floats(), rows, logits_device_->floats());
    draw_wanted();
    read_wanted();
  }
  name_results();
}

Status Runner::forward(std::span<const Segment> segments) {
  Status status = run_step(segments);
  if (!status) {
    // Pages made for rows that did not happen are no part of the state.
    for (const Segment& segment : segments) segment.sequence->kv_.truncate(segment.sequence->length());
  }
  return status;
}

Status Runner::run_step(std::span<const Segment> segments) {
  row_drawn_ = false;  // a launch that memory was refused to may have left it
  backend::Backend& backend = model_->backend();
  const Weights& weights = model_->weights();
  const std::int64_t rows = LOCKSTEP_TRY(begin(segments));
  row_ids_.clear();
  if (!model_->config().ple_layers.empty()) {
    for (const Segment& segment : segments) add_row_ids(*segment.sequence, segment.tokens, 0);
    LOCKSTEP_TRY(backend.ngram_request(row_ids_));
  }
  bind_ple(segments);
  begin_wanted();
  std::int64_t first = 0;
  for (const Segment& segment : segments) {
    LOCKSTEP_TRY(want(segment.logits, first, segment.tokens.size(), segment.draws));
    first += static_cast<std::int64_t>(segment.tokens.size());
  }
  LOCKSTEP_TRY(reserve_logits(wanted_.size(), nullptr));
  float* x = x_->floats();
  // Nothing from here to ngram_embedding() fails, so what is begun is collected.
  for (const LayerWeights& layer : weights.layers) {  // at most one has a PLE part
    if (layer.ple) backend.ple_begin(*layer.ple, row_ids_);
  }
  backend.embed(*weights.embedding, tokens_, x);
  Place at;
  LOCKSTEP_TRY(run_layers(segments, rows, weights.layers.size(), at));
  for (const Segment& segment : segments) {
    segment.sequence->kv_.append(static_cast<std::int64_t>(segment.tokens.size()));
    segment.sequence->history_.append(segment.tokens);
  }
  finish(weights.mixer, x, wanted_);
  Status status = model_->status();
  if (!status) {
    for (const Segment& segment : segments) segment.sequence->broken_ = true;
  }
  return status;
}

Result<std::int64_t> Runner::draft_input(std::span<const DraftSegment> segments, float* x) {
  backend::Backend& backend = model_->backend();
  tokens_.clear();
  attention_slots_.clear();
  std::int64_t rows = 0;
  std::int64_t positions = 0;
  for (const DraftSegment& segment : segments) {
    const auto count = static_cast<std::int64_t>(segment.tokens.size());
    LOCKSTEP_TRY(check_whole(*model_, *segment.sequence));
    LOCKSTEP_TRY(check_tokens(segment.tokens, model_->config().vocab_size));
    LOCKSTEP_TRY(segment.sequence->draft_->prepare(count));
    positions = std::max(positions, segment.sequence->draft_->length() + count);
    tokens_.insert(tokens_.end(), segment.tokens.begin(), segment.tokens.end());
    rows += count;
  }
  if (rows > max_rows_) return fail(ErrorKind::Internal, "a step of {} rows exceeds the runner's {}", rows, max_rows_);
  LOCKSTEP_TRY(backend.prepare_positions(positions));
  std::int64_t first = 0;
  for (const DraftSegment& segment : segments) {
    const backend::Run run{first, static_cast<std::int64_t>(segment.tokens.size())};
    attention_slots_.push_back(segment.sequence->draft_->slot(0, run));
    backend.copy(reinterpret_cast<std::byte*>(hidden_->floats() + first * wide_size_),
                 reinterpret_cast<const std::byte*>(segment.hidden), row_bytes(run.rows, wide_size_));
    first += run.rows;
  }
  backend.draft_input(model_->weights().draft->input, *model_->weights().embedding, tokens_, hidden_->floats(), x);
  return rows;
}

Status Runner::draft(std::span<const DraftSegment> segments) {
  Status status = run_draft(segments);
  if (!status) truncate_drafts(segments);
  return status;
}

Status Runner::draft_fill(std::span<const DraftSegment> segments) {
  Status status = run_draft_fill(segments);
  if (!status) truncate_drafts(segments);
  return status;
}

Status Runner::run_draft(std::span<const DraftSegment> segments) {
  const DraftHead& head = *model_->weights().draft;
  float* x = draft_x_->floats();
  begin_wanted();
  std::int64_t first = 0;
  for (const DraftSegment& segment : segments) {
    LOCKSTEP_TRY(want(segment.logits, first, segment.tokens.size(), segment.draws));
    first += static_cast<std::int64_t>(segment.tokens.size());
  }
  LOCKSTEP_TRY(reserve_logits(wanted_.size(), short_head_));
  const std::int64_t rows = LOCKSTEP_TRY(draft_input(segments, x));
  layer(head.layer, rows, x);
  for (const DraftSegment& segment : segments) {
    segment.sequence->draft_->append(static_cast<std::int64_t>(segment.tokens.size()));
  }
  if (short_head_ != nullptr) {
    finish_short(head.mixer, x, wanted_);
  } else {
    finish(head.mixer, x, wanted_);
  }
  return model_->backend().status();
}

Status Runner::run_draft_fill(std::span<const DraftSegment> segments) {
  backend::Backend& backend = model_->backend();
  const LayerWeights& layer = model_->weights().draft->layer;
  float* x = draft_fill_x_->floats();
  const std::int64_t rows = LOCKSTEP_TRY(draft_input(segments, x));
  backend.hyper_read(layer.attention_site, x, rows, u_->floats(), inject_->floats());
  backend.attention_keys(*layer.attention, u_->floats(), attention_slots_, rows);
  for (const DraftSegment& segment : segments) {
    segment.sequence->draft_->append(static_cast<std::int64_t>(segment.tokens.size()));
  }
  return backend.status();
}

}  // namespace lockstep::model
