// What is asked of the engine, and how it refuses.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.hpp"
#include "decode/params.hpp"

namespace lockstep::engine {

using decode::TokenId;

/// Names a request for cancel(). Never used twice.
using Ticket = std::uint64_t;

struct Request {
  std::vector<TokenId> prompt;
  /// Token counts after each chat message, ascending: where the conversation may be continued or edited later. States
  /// are kept at the newest of them. May be empty.
  std::vector<std::int64_t> boundaries;
  /// Temperature, filters, penalties, logit bias, draw and acceptance rule, and the seed of choice 0.
  decode::SamplerParams sampler;
  std::int64_t n = 1;             ///< choices; choice i draws with choice_seed(sampler.seed, i)
  std::vector<TokenId> stop_ids;  ///< the stop token itself is not emitted
  /// Emitted at most; 0 evaluates the prompt only (with prompt_logprobs). Unset: Options::default_max_tokens.
  std::optional<std::int64_t> max_tokens;
  bool logprobs = false;          ///< report the log-probability of every emitted token
  std::int64_t top_logprobs = 0;  ///< and of the most probable tokens, 0..decode::kMaxTopLogprobs
  bool prompt_logprobs = false;   ///< the same for the prompt's tokens ("echo"); the bank is then not read
  bool bypass_bank = false;       ///< neither read nor write the bank: a cold run
  std::int32_t priority = 0;      ///< in the queue: higher first, then first come, first served
};

/// The seed of choice `i`: the request's own for i = 0, else the first 16 hexadecimal digits of the SHA-256 of the text
/// "lockstep choice SEED I", both numbers in decimal (docs/sampling.md).
[[nodiscard]] std::uint64_t choice_seed(std::uint64_t seed, std::uint64_t i);

/// Why a request was not taken.
enum class RefusalReason : std::uint8_t {
  Invalid,    ///< malformed: empty prompt, token id, parameter; HTTP 400
  TooLarge,   ///< can never run here: context or memory plan; HTTP 413
  QueueFull,  ///< HTTP 429
  Draining,   ///< the engine is about to end, or has ended; HTTP 503
  Poisoned,   ///< the model has failed for good and must be loaded again; HTTP 503
};

struct Refusal {
  RefusalReason reason = RefusalReason::Invalid;
  std::string message;  ///< one line with the numbers below
  /// TooLarge: bytes or tokens; QueueFull: choices.
  std::uint64_t needed = 0, available = 0;
  std::int64_t retry_after_seconds = 0;  ///< 0: trying again does not help
};

/// What a request may ask for.
struct Limits {
  std::int64_t context = 0;      ///< prompt and answer together, by the model
  std::int64_t plan_tokens = 0;  ///< the same by the memory plan, for one choice that runs alone
  std::int64_t parallel = 0, queue = 0;
  std::int64_t max_choices = 0;  ///< largest n
  std::int64_t default_max_tokens = 0;
  std::int64_t vocab = 0;
  std::uint64_t memory_bytes = 0;                           ///< the memory plan
  std::uint64_t bytes_per_choice = 0, bytes_per_token = 0;  ///< what a choice costs in the plan
};

}  // namespace lockstep::engine
