// The engine's side of a request: tokens become events. Included by generation*.cpp only.
#pragma once

#include <chrono>

#include "server/generation.hpp"
#include "server/wire/assembler.hpp"

namespace lockstep::server {

struct Generation::Delivery {
  enum class Kind : std::uint8_t { Start, Progress, Events, Result, Error };
  Kind kind = Kind::Events;
  std::size_t choice = 0;  ///< of the whole request
  engine::Start start;
  std::int64_t done = 0, total = 0;
  std::vector<AnswerEvent> events;
  std::vector<TokenRecord> records;
  std::unique_ptr<ChoiceResult> result;
  ApiError error;
};

class Generation::PromptSink final : public engine::Sink {
 public:
  PromptSink(std::shared_ptr<Generation> owner, std::size_t prompt, const text::StopMatcher& stop);

  bool writable() override { return owner_->has_room(); }
  void on_start(const engine::Start& start) override;
  void on_prefill(std::int64_t done, std::int64_t total) override;
  void on_prompt_token(const engine::PromptToken& token) override;
  Flow on_token(std::int64_t choice, const engine::Token& token) override;
  void on_finish(std::int64_t choice, const engine::Summary& summary) override;
  void on_error(std::int64_t choice, const Error& error) override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Choice {
    explicit Choice(AnswerAssembler made) : assembler(std::move(made)) {}
    AnswerAssembler assembler;
    std::vector<decode::TokenId> ids;
    std::vector<AnswerPart> parts;
    std::vector<TokenRecord> records;
    std::int64_t reasoning_tokens = 0;
    std::optional<Clock::time_point> last;
    bool echoed = false;
  };

  [[nodiscard]] std::string_view bytes_of(decode::TokenId id) const;
  [[nodiscard]] TokenRecord record(decode::TokenId id, const decode::Logprobs& logprobs) const;
  /// Sends the prompt back first, when the request wants that.
  void echo(Choice& choice, std::size_t index);
  [[nodiscard]] static Ending ending(const Choice& choice, engine::FinishReason reason);
  /// Adds events to the choice, and to the stream if there is one.
  void send(Choice& choice, Delivery delivery);

  std::shared_ptr<Generation> owner_;
  std::size_t prompt_;
  engine::Start start_;
  std::vector<Choice> choices_;
  std::vector<TokenRecord> prompt_records_;
};

}  // namespace lockstep::server
