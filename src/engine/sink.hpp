// What the engine tells a request's owner. All calls come from the model thread, one at a time, and must return
// quickly: they hold up every running request. They must not throw, and must not call stop().
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "decode/decoder.hpp"
#include "decode/sampler_logprobs.hpp"

namespace lockstep::engine {

using decode::TokenId;

/// Why no more of a prompt came from the bank.
enum class Miss : std::uint8_t {
  None,      ///< all that the bank knew of this prompt was used
  Disabled,  ///< the engine has no bank
  Bypass,    ///< the request asked for a cold run, or for the prompt's log-probabilities
  Empty,     ///< nothing in the bank starts like this prompt
  Diverged,  ///< the prompt leaves what the bank knows after `common` tokens; states are kept only at certain points
  Evicted,   ///< a longer prefix was in the bank and had to make room
  Damaged,   ///< a state on disk failed its checks; it was removed
};
/// "none", "disabled", "bypass", ... for responses.
[[nodiscard]] std::string_view miss_name(Miss miss);

struct Start {
  std::int64_t prompt_tokens = 0, cached_tokens = 0;
  std::int64_t common_tokens = 0;  ///< longest beginning that the prompt shares with anything in the bank
  Miss miss = Miss::Empty;
  bool from_disk = false;
  double queued_seconds = 0;
};

struct Token {
  TokenId id = 0;
  double probability = 0;     ///< in the distribution it was drawn from
  bool has_logprobs = false;  ///< the request asked for them
  decode::Logprobs logprobs;  ///< of the model's own distribution
};

struct PromptToken {
  std::int64_t position = 0;
  TokenId id = 0;
  bool has_logprobs = false;  ///< false for the first token, which nothing predicts
  decode::Logprobs logprobs;
};

enum class FinishReason : std::uint8_t {
  Stop,    ///< a stop token was drawn
  Length,  ///< max_tokens or the end of the context
  Sink,    ///< on_token() said so, for example at a stop string
};

/// What a choice used and what ran for it. Times are wall clock.
struct Summary {
  FinishReason reason = FinishReason::Stop;
  std::uint64_t seed = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;   ///< of the request's prompt, from the bank
  std::int64_t prefill_tokens = 0;  ///< run for this choice; 0 when another choice of the request ran the prompt
  std::int64_t tokens = 0;          ///< delivered by on_token()
  std::int64_t steps = 0;           ///< forward passes after the prompt
  std::array<std::int64_t, decode::kMaxDepth> drafted{}, accepted{};  ///< by depth
  double queued_seconds = 0, prefill_seconds = 0, decode_seconds = 0;
  double first_token_seconds = 0;  ///< from submit() to the first on_token(); 0 without one
  /// This choice's share of the n-gram rows of its steps, by the rows it had in them. Those of all choices together are
  /// Statistics::ple_hits and ple_misses.
  std::uint64_t ple_hits = 0, ple_misses = 0;
  std::vector<std::string> lanes;  ///< names of the lanes whose code ran for this choice
};

class Sink {
 public:
  enum class Flow : std::uint8_t {
    Continue,
    Finish,  ///< enough: no further token of this choice is delivered, and it ends with FinishReason::Sink
  };

  Sink() = default;
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;
  virtual ~Sink() = default;

  /// False while the owner cannot take more: the engine then leaves out this request, and only this one, until wake()
  /// was called and this says true again. Asked before every step; a step may deliver decode::kMaxDepth + 1 tokens of
  /// every choice.
  virtual bool writable() { return true; }

  /// The request leaves the queue. Once per request.
  virtual void on_start(const Start& /*start*/) {}
  /// Tokens of the prompt done so far, cached ones included. Once per step that ran rows of it.
  virtual void on_prefill(std::int64_t /*done*/, std::int64_t /*total*/) {}
  /// With Request::prompt_logprobs: every token of the prompt, in order.
  virtual void on_prompt_token(const PromptToken& /*token*/) {}
  virtual Flow on_token(std::int64_t choice, const Token& token) = 0;
  /// The end of a choice: exactly one of these two.
  virtual void on_finish(std::int64_t choice, const Summary& summary) = 0;
  /// Cancelled; Limit when memory ran out in a step; Io or Internal when the model failed.
  virtual void on_error(std::int64_t choice, const Error& error) = 0;
};

}  // namespace lockstep::engine
