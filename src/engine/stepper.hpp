// One step of several generations: what they need next, in shared passes through the model.
#pragma once

#include <span>
#include <vector>

#include "decode/generation.hpp"

namespace lockstep::engine {

/// A generation's part in a step.
struct Part {
  decode::Generation* generation = nullptr;
  std::int64_t most_rows = 1;  ///< of the prompt in this step
  Status status{};             ///< an error ends this generation alone
  std::int64_t rows = 0;       ///< run by this step's forward pass
};

/// Runs draft rounds and one forward pass. When a pass over several generations fails, each of them runs alone, so that
/// only those fail that cannot run: a failed pass leaves the sequences as they were (model/runner.hpp).
class Stepper {
 public:
  /// `max_rows`: of all parts of a step together.
  /// Drafts come from the short head of the model with `short_head`. Error: Usage when it has none.
  static Result<Stepper> create(const model::Model& model, std::int64_t max_rows, bool short_head = false);

  /// Afterwards every part without an error has run one forward pass, or none if it needed none, and no part needs
  /// anything that only the runner still holds.
  void run(std::span<Part> parts);
  /// Draws first tokens of the parts that need it.
  void first(std::span<Part> parts);
  /// Drafts that the short head has proposed. run() counts those of every generation in its stats().
  [[nodiscard]] std::int64_t short_head_rows() const { return runner_.short_head_rows(); }

 private:
  explicit Stepper(model::Runner runner) : runner_(std::move(runner)) {}

  void draft_rounds(std::span<Part> parts);
  bool draft_round(std::span<Part> parts, decode::Generation::Need need);
  void run_drafts(std::span<Part* const> batch, std::span<const model::DraftSegment> segments, bool fill);
  void run_rows(std::span<Part* const> batch, std::span<const model::Segment> segments);

  model::Runner runner_;
};

}  // namespace lockstep::engine
