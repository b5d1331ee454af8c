// Steps of one token that nobody waits for: the device draws a token and has the step over it before the host knows
// which one it is.
//
// A sequence grows by a token when its id is known, so tokens() and length() never speak of one that is not. What is
// handed over behind that (a copy, a page that is saved) sees a device that has run the step over the token.
#include <algorithm>

#include "artifact/ngram_hash.hpp"
#include "model/runner.hpp"

namespace lockstep::model {
namespace {

/// The layer that takes table rows, or the number of layers.
std::size_t table_layer(const Weights& weights) {
  std::size_t layer = 0;
  while (layer < weights.layers.size() && !weights.layers[layer].ple) ++layer;
  return layer;
}

}  // namespace

Status Runner::launch(Sequence& sequence, std::optional<std::int32_t> token, const backend::DrawRequest& draw) {
  Status status = run_launch(sequence, token, draw);
  // Pages made for a row that did not happen are no part of the state.
  if (!status) sequence.kv_.truncate(sequence.length());
  return status;
}

Status Runner::run_launch(Sequence& sequence, std::optional<std::int32_t> token, const backend::DrawRequest& draw) {
  const bool chained = !launches_.empty() && launches_.back().sequence == &sequence && !launches_.back().unknown;
  const bool fits = token ? launches_.empty() : chained;
  if (ahead_ == nullptr || !fits || launches_.size() >= backend::DrawsAhead::kSlots) {
    return fail(ErrorKind::Internal, "a step was launched out of order");
  }
  const std::int32_t id = token.value_or(0);  // stands for one that is not known
  const Segment segment{&sequence, {&id, 1}};
  const std::span<const Segment> one(&segment, 1);
  (void)LOCKSTEP_TRY(begin(one));
  LOCKSTEP_TRY(reserve_logits(backend::DrawsAhead::kSlots, nullptr));
  const Weights& weights = model_->weights();
  const bool table = !model_->config().ple_layers.empty();
  Launch launch{&sequence, next_slot_, draw, !token, !token && table && !ahead_->finds_rows(), {}};
  row_ids_.clear();
  if (table && token) {
    add_row_ids(sequence, segment.tokens, 0);
    LOCKSTEP_TRY(model_->backend().ngram_request(row_ids_));
  }
  row_drawn_ = table && !token && !launch.halted;
  if (row_drawn_) {
    drawn_slot_ = launches_.back().slot;
    find_past(sequence);
  }
  ahead_->begin_step(launch.slot);
  next_slot_ = (next_slot_ + 1) % backend::DrawsAhead::kSlots;
  if (token) {
    model_->backend().embed(*weights.embedding, segment.tokens, x_->floats());
  } else {
    ahead_->embed_drawn(*weights.embedding, launches_.back().slot, x_->floats());
  }
  if (launch.halted) {
    LOCKSTEP_TRY(run_layers(one, 1, table_layer(weights), launch.at));  // none of them fails
    launches_.push_back(launch);
    return model_->backend().status();
  }
  Status status = end_launch(launch, one);
  row_drawn_ = false;
  LOCKSTEP_TRY(std::move(status));
  if (token) {
    sequence.kv_.append(1);
    sequence.history_.append(segment.tokens);
  }
  launches_.push_back(launch);
  return {};
}

Status Runner::end_launch(Launch& launch, std::span<const Segment> segment) {
  const Weights& weights = model_->weights();
  const std::size_t layers = weights.layers.size();
  bind_ple(segment);
  // Where the device has only the layers in front of the rows, it must not wait until many more are collected.
  const bool soon = launch.at.layer > 0;
  for (std::size_t some = soon ? 1 : layers; launch.at.layer < layers; some *= 2) {
    LOCKSTEP_TRY(run_layers(segment, 1, std::min(layers, launch.at.layer + some), launch.at));
    if (soon) LOCKSTEP_TRY(model_->backend().status());
  }
  const std::int64_t vocabulary = model_->config().vocab_size;
  float* logits = logits_device_->floats() + static_cast<std::int64_t>(launch.slot) * vocabulary;
  const std::int64_t row = 0;
  pick(weights.mixer, x_->floats(), {&row, 1});
  model_->backend().project(*weights.head, picked_->floats(), 1, logits);
  launch.draw.row = 0;
  ahead_->draw_soon(logits, vocabulary, launch.draw, launch.slot);
  return {};
}

/// The hash of the token to come, as far as the tokens of the sequence decide it.
void Runner::find_past(const Sequence& sequence) {
  const artifact::ModelConfig& config = model_->config();
  const std::vector<std::int32_t>& tokens = sequence.tokens();
  window_.assign(static_cast<std::size_t>(config.ngram_size), config.ngram_eos);
  for (std::size_t back = 1; back < window_.size() && back <= tokens.size(); ++back) {
    window_[back] = tokens[tokens.size() - back];
  }
  artifact::cut_ngram_window(window_, config.ngram_eos);
  past_.resize(window_.size() - 1);
  artifact::ngram_past(model_->weights().ngram, window_, past_);
}

void Runner::settle(Launch& launch, const backend::Drawn& drawn) {
  Sequence& sequence = *launch.sequence;
  launch.unknown = false;
  if (drawn.id < 0) {
    sequence.broken_ = true;  // the step took another token, as good as any
    return;
  }
  const Segment segment{&sequence, {&drawn.id, 1}};
  if (launch.halted) {
    launch.halted = false;
    row_ids_.clear();
    add_row_ids(sequence, segment.tokens, 0);
    Status status = model_->backend().ngram_request(row_ids_);
    if (status) status = end_launch(launch, {&segment, 1});
    if (!status) {
      sequence.broken_ = true;  // who goes on with it is told why
      return;
    }
  }
  sequence.kv_.append(1);
  sequence.history_.append(segment.tokens);
}

Status Runner::take() {
  if (launches_.empty()) return fail(ErrorKind::Internal, "no step was launched");
  const Launch first = launches_.front();
  launches_.erase(launches_.begin());
  const backend::Drawn drawn = ahead_->drawn(first.slot);
  Status status = model_->status();
  if (!status) {
    first.sequence->broken_ = true;
    launches_.clear();
    return status;
  }
  if (!launches_.empty()) settle(launches_.front(), drawn);
  begin_wanted();
  drawn_.assign(1, drawn);
  draw_requests_.assign(1, first.draw);
  wanted_segments_.push_back({1, draw_requests_, drawn.id >= 0});
  logits_.clear();
  if (drawn.id < 0) {
    const auto vocabulary = static_cast<std::size_t>(model_->config().vocab_size);
    logits_.resize(vocabulary);
    model_->backend().read(logits_.data(), logits_device_->data() + first.slot * vocabulary * sizeof(float),
                           vocabulary * sizeof(float));
  }
  name_results();
  if (!launches_.empty() && launches_.front().sequence->broken()) launches_.clear();
  return {};
}

void Runner::drop() {
  for (const Launch& launch : launches_) {
    if (launch.unknown) launch.sequence->broken_ = true;
  }
  launches_.clear();
}

}  // namespace lockstep::model
