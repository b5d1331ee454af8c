#include "decode/generation.hpp"

namespace lockstep::decode {
namespace {

/// One token a step, through nothing but forward() and draw().
class PlainGeneration final : public Generation {
 public:
  PlainGeneration(const model::Model& model, DecodeRequest request, SamplerParams params, Checkpoint start)
      : Generation(model, std::move(request), std::move(params), std::move(start)) {}

  [[nodiscard]] Need need() const override {
    if (finish() != Finish::None) return Need::Nothing;
    return first_is_next() ? Need::First : Need::Rows;
  }

  [[nodiscard]] model::DraftSegment draft_rows() override { return {}; }
  [[nodiscard]] bool at_rest() const override { return true; }

  [[nodiscard]] std::optional<Chain> chain() override {
    if (in_prompt() || need() != Need::Rows) return std::nullopt;
    const std::span<const backend::DrawRequest> both = draws(next_number(), 2);
    if (both.empty()) return std::nullopt;
    return Chain{&*sequence_, last_.id, budget_left(), both[0], both[1]};
  }

  Status ran(model::Runner& /*runner*/, std::int64_t /*first_row*/, const model::RowResults& results) override {
    if (in_prompt()) {
      LOCKSTEP_TRY(prompt_ran(results.logits));
      return {};
    }
    ++stats_.steps;
    if (results.drawn.empty()) {
      LOCKSTEP_TRY(distribution(results.logits, next_number(), row_));
      last_ = sampler_.draw(row_, next_number());
    } else {
      ++stats_.device_rows;
      last_ = choice_of(results.drawn[0]);
    }
    LOCKSTEP_TRY(emit(last_, results.logits));
    return {};
  }

 private:
  Result<model::Segment> step_rows(model::Runner& /*runner*/) override {
    return model::Segment{&*sequence_, {&last_.id, 1}, model::LogitsWanted::Last, false, draws(next_number(), 1)};
  }

  Status after_first(model::Runner& /*runner*/, const Choice& choice) override {
    last_ = choice;
    return {};
  }

  Distribution row_;
  Choice last_;
};

}  // namespace

Result<std::unique_ptr<Generation>> make_plain_generation(const model::Model& model, DecodeRequest request,
                                                          std::optional<Checkpoint> prefix) {
  SamplerParams params = LOCKSTEP_TRY(check_request(model, request));
  Checkpoint start = LOCKSTEP_TRY(take_prefix(model, request, std::move(prefix)));
  return std::make_unique<PlainGeneration>(model, std::move(request), std::move(params), std::move(start));
}

}  // namespace lockstep::decode
