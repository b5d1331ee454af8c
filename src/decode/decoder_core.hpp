// What plain and speculative decoding share: request, prompt, budget, counts and statistics.
#pragma once

#include <chrono>
#include <optional>

#include "decode/decoder.hpp"
#include "decode/distribution.hpp"

namespace lockstep::decode {

class DecoderCore : public Decoder {
 public:
  Status start(const DecodeRequest& request, const PrefillProgress& progress) override;
  Result<std::span<const Choice>> step() override;
  [[nodiscard]] Finish finish() const override { return finish_; }
  [[nodiscard]] const DecodeStats& stats() const override { return stats_; }
  [[nodiscard]] const model::Sequence* sequence() const override { return sequence_ ? &*sequence_ : nullptr; }

 protected:
  DecoderCore(const model::Model& model, model::Runner runner) : model_(model), runner_(std::move(runner)) {}

  /// Draws the tokens after the last emitted one and emits them. The logits of the prompt's last row are in the runner
  /// when nothing has been emitted yet.
  virtual Status advance() = 0;
  /// The prompt's rows [first, first + count) are about to run, or have run.
  virtual Status before_chunk(std::size_t /*first*/) { return {}; }
  virtual Status after_chunk(std::size_t /*first*/, std::size_t /*count*/) { return {}; }

  /// The distribution of the token with this number, from one row of target or draft logits.
  Status distribution(std::span<const float> logits, std::uint64_t number, Distribution& out);
  /// Emits a token, or ends the request when it is a stop token or the budget is used up. False when it has ended.
  bool emit(const Choice& choice);
  [[nodiscard]] bool is_stop(TokenId id) const;
  [[nodiscard]] std::int64_t budget_left() const { return budget_ - stats_.tokens; }
  [[nodiscard]] std::uint64_t next_number() const { return static_cast<std::uint64_t>(stats_.tokens); }

  const model::Model& model_;
  model::Runner runner_;
  std::optional<model::Sequence> sequence_;
  DecodeRequest request_;
  SamplerParams params_;
  std::optional<Sampler> sampler_;
  TokenCounts counts_;
  DecodeStats stats_;
  std::vector<Choice> emitted_;  ///< of the present step

 private:
  Status check(const DecodeRequest& request) const;
  Status reuse_or_create();
  Status prefill(const PrefillProgress& progress);
  Status round_trip();

  RowScratch scratch_;
  Finish finish_ = Finish::None;
  std::int64_t budget_ = 0;
};

}  // namespace lockstep::decode
