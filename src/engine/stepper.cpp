#include "engine/stepper.hpp"

#include <algorithm>
#include <new>
#include <utility>

namespace lockstep::engine {
namespace {

using decode::Generation;
using Need = Generation::Need;

/// The host's memory may run out inside the standard library: an error of the step like any other.
template <class Body>
Status guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail(ErrorKind::Limit, "out of memory in a step");
  }
}

std::int64_t logits_rows(model::LogitsWanted wanted, std::size_t rows) {
  if (wanted == model::LogitsWanted::None) return 0;
  return wanted == model::LogitsWanted::Last ? 1 : static_cast<std::int64_t>(rows);
}

/// Hands every part of a pass its rows and, where there are any, their results.
template <class Segment>
void hand_back(std::span<Part* const> batch, std::span<const Segment> segments, model::Runner& runner,
               bool with_results) {
  std::int64_t row = 0;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const std::size_t rows = segments[i].tokens.size();  // ran() may change what the segment points to
    const model::RowResults results = with_results ? runner.results(i) : model::RowResults{};
    batch[i]->status = guarded([&] { return batch[i]->generation->ran(runner, row, results); });
    row += static_cast<std::int64_t>(rows);
  }
}

void count_short_head(std::span<Part* const> batch, std::span<const model::DraftSegment> segments) {
  for (std::size_t i = 0; i < batch.size(); ++i) {
    batch[i]->generation->stats().short_head_rows += logits_rows(segments[i].logits, segments[i].tokens.size());
  }
}

}  // namespace

Result<Stepper> Stepper::create(const model::Model& model, std::int64_t max_rows, bool short_head, bool ahead) {
  if (short_head && !model.has_short_head()) {
    return fail(ErrorKind::Usage, "drafts from a short head need a model that was loaded with a list of draft tokens");
  }
  model::Runner runner = LOCKSTEP_TRY(model::Runner::create(model, max_rows));
  if (short_head) runner.use_short_head();
  return Stepper(std::move(runner), ahead);
}

void Stepper::run(std::span<Part> parts) {
  for (Part& part : parts) {
    part.rows = 0;
    if (failed_ && failed_->first == part.generation) part.status = tl::unexpected(std::exchange(failed_, {})->second);
  }
  if (run_alone(parts)) return;
  collect(parts);
  draft_rounds(parts);
  std::vector<Part*> batch;
  std::vector<model::Segment> segments;
  for (Part& part : parts) {
    if (!part.status || part.rows > 0 || part.generation->need() != Need::Rows) continue;
    auto rows = part.generation->rows(runner_, part.most_rows);
    if (!rows) {
      part.status = tl::unexpected(rows.error());
      continue;
    }
    part.rows = static_cast<std::int64_t>(rows->tokens.size());
    batch.push_back(&part);
    segments.push_back(*rows);
  }
  if (!batch.empty()) run_rows(batch, segments);
}

bool Stepper::run_alone(std::span<Part> parts) {
  if (!ahead_ || parts.size() != 1 || !parts[0].status) return false;
  Part& part = parts[0];
  if (chained_ != nullptr && chained_ != part.generation) return false;
  const auto chain = part.generation->chain();
  if (!chain) return false;
  part.status = guarded([&] { return decode::run_chain(*part.generation, runner_, *chain, true); });
  if (part.status) part.rows = 1;
  chained_ = part.generation;
  if (!part.status || runner_.launched() == 0 || part.generation->need() == Need::Nothing) forget(*part.generation);
  return true;
}

void Stepper::collect(std::span<Part> parts) {
  if (chained_ == nullptr) return;
  decode::Generation& generation = *std::exchange(chained_, nullptr);
  Status status = guarded([&]() -> Status {
    LOCKSTEP_TRY(runner_.take());
    return generation.ran(runner_, 0, runner_.results(0));
  });
  runner_.drop();
  const auto part =
      std::find_if(parts.begin(), parts.end(), [&](const Part& some) { return some.generation == &generation; });
  if (part != parts.end()) {
    part->status = std::move(status);
    part->rows = 1;
  } else if (!status) {
    failed_ = {&generation, std::move(status).error()};
  }
}

void Stepper::forget(const decode::Generation& generation) {
  if (chained_ == &generation) {
    chained_ = nullptr;
    runner_.drop();
  }
  if (failed_ && failed_->first == &generation) failed_.reset();
}

void Stepper::first(std::span<Part> parts) {
  for (Part& part : parts) {
    if (!part.status || part.generation->need() != Need::First) continue;
    part.status = guarded([&] { return part.generation->first(runner_); });
  }
}

void Stepper::draft_rounds(std::span<Part> parts) {
  while (draft_round(parts, Need::Fill) || draft_round(parts, Need::Draft)) {
  }
}

bool Stepper::draft_round(std::span<Part> parts, Need need) {
  std::vector<Part*> batch;
  std::vector<model::DraftSegment> segments;
  for (Part& part : parts) {
    if (!part.status || part.generation->need() != need) continue;
    batch.push_back(&part);
    segments.push_back(part.generation->draft_rows());
  }
  if (batch.empty()) return false;
  run_drafts(batch, segments, need == Need::Fill);
  return true;
}

void Stepper::run_drafts(std::span<Part* const> batch, std::span<const model::DraftSegment> segments, bool fill) {
  const std::int64_t short_before = runner_.short_head_rows();
  const Status done = guarded([&] { return fill ? runner_.draft_fill(segments) : runner_.draft(segments); });
  if (done) {
    // Nothing or all that a pass proposes comes from the short head.
    if (runner_.short_head_rows() > short_before) count_short_head(batch, segments);
    return hand_back(batch, segments, runner_, !fill);
  }
  if (batch.size() == 1) {
    batch[0]->status = done;
    return;
  }
  for (std::size_t i = 0; i < batch.size(); ++i) run_drafts(batch.subspan(i, 1), segments.subspan(i, 1), fill);
}

void Stepper::run_rows(std::span<Part* const> batch, std::span<const model::Segment> segments) {
  const Status done = guarded([&] { return runner_.forward(segments); });
  if (!done) {
    if (batch.size() == 1) {
      batch[0]->status = done;
      return;
    }
    for (std::size_t i = 0; i < batch.size(); ++i) run_rows(batch.subspan(i, 1), segments.subspan(i, 1));
    return;
  }
  hand_back(batch, segments, runner_, true);
  // What a chunk leaves for the draft layer refers to the runner's rows of this pass.
  std::vector<Part*> fills;
  std::vector<model::DraftSegment> rows;
  for (Part* part : batch) {
    if (!part->status || part->generation->need() != Need::Fill || part->generation->at_rest()) continue;
    fills.push_back(part);
    rows.push_back(part->generation->draft_rows());
  }
  if (!fills.empty()) run_drafts(fills, rows, true);
}

}  // namespace lockstep::engine
