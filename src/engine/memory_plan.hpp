// What a choice may need at most, before it starts (docs/engine.md "Admission").
#pragma once

#include <cstdint>

#include "engine/options.hpp"
#include "model/model.hpp"

namespace lockstep::engine {

/// Upper bounds, from the geometry. Checked against what is really allocated by tests/engine/memory_plan_test.cpp.
class MemoryPlan {
 public:
  /// `total` bytes for all states together.
  MemoryPlan(const model::Model& model, const Options& options, std::uint64_t total)
      : MemoryPlan(model.config(), model.state_type(), options, total) {}
  /// The same before a model is loaded.
  MemoryPlan(const artifact::ModelConfig& config, backend::StateType state, const Options& options,
             std::uint64_t total);

  [[nodiscard]] std::uint64_t total() const { return total_; }
  /// A running choice of `tokens` tokens, prompt and answer: matrices and columns twice (a verified step writes a
  /// second copy), captured rows, K/V pages, and one page more for a shared one that is about to be written.
  [[nodiscard]] std::uint64_t choice(std::int64_t tokens) const {
    return fixed_ + pages(tokens + kPageSlack) * page_ + static_cast<std::uint64_t>(tokens) * kTokenBytes;
  }
  /// A state of `tokens` tokens that is only kept, if it shares no page.
  [[nodiscard]] std::uint64_t kept(std::int64_t tokens) const {
    return kept_ + pages(tokens) * page_ + static_cast<std::uint64_t>(tokens) * kTokenBytes;
  }
  /// What a choice needs besides when the prompt's log-probabilities are wanted.
  [[nodiscard]] std::uint64_t scored() const { return scored_; }
  /// Refuses a total with no room for the smallest request. Errors: Limit.
  [[nodiscard]] Status check_room() const;
  /// Most tokens of a choice that runs alone; may be negative.
  [[nodiscard]] std::int64_t most_tokens() const;
  [[nodiscard]] std::uint64_t fixed_bytes() const { return fixed_; }
  [[nodiscard]] std::uint64_t bytes_per_token() const;

 private:
  static constexpr std::int64_t kPageSlack = 64;
  static constexpr std::uint64_t kTokenBytes = 16;  ///< ids of prompt and history, with the slack of growing lists
  [[nodiscard]] static std::uint64_t pages(std::int64_t tokens);

  std::uint64_t total_, fixed_ = 0, kept_ = 0, page_ = 0, scored_ = 0;
};

}  // namespace lockstep::engine
