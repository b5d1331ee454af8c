// One step of several generations: what they need next, in shared passes through the model.
#pragma once

#include <optional>
#include <span>
#include <utility>
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
  /// Drafts come from the short head of the model with `short_head`. Error: Usage when it has none. `ahead`: while one
  /// generation decodes alone, plainly and drawn from by the device, its next step begins before its token is known.
  static Result<Stepper> create(const model::Model& model, std::int64_t max_rows, bool short_head = false,
                                bool ahead = false);

  /// Afterwards every part without an error has run one forward pass, or none if it needed none, and no part needs
  /// anything that only the runner still holds.
  void run(std::span<Part> parts);
  /// Must be called before a generation that has been part of a step goes away.
  void forget(const decode::Generation& generation);
  /// Draws first tokens of the parts that need it.
  void first(std::span<Part> parts);
  /// Drafts that the short head has proposed. run() counts those of every generation in its stats().
  [[nodiscard]] std::int64_t short_head_rows() const { return runner_.short_head_rows(); }

 private:
  Stepper(model::Runner runner, bool ahead) : runner_(std::move(runner)), ahead_(ahead && runner_.launches()) {}

  /// The step of a generation alone, where it can begin the next one. False: it has to be run as usual.
  bool run_alone(std::span<Part> parts);
  /// The generation of run_alone() is not alone any more, or left out: what it has begun is its step.
  void collect(std::span<Part> parts);
  void draft_rounds(std::span<Part> parts);
  bool draft_round(std::span<Part> parts, decode::Generation::Need need);
  void run_drafts(std::span<Part* const> batch, std::span<const model::DraftSegment> segments, bool fill);
  void run_rows(std::span<Part* const> batch, std::span<const model::Segment> segments);

  model::Runner runner_;
  bool ahead_;
  decode::Generation* chained_ = nullptr;  ///< whose step the runner has launched
  /// What became of a step that was collected while its generation was left out.
  std::optional<std::pair<const decode::Generation*, Error>> failed_;
};

}  // namespace lockstep::engine
