// Decoding one request: prompt in, tokens out. Plain and speculative decoding stand behind the same interface and, in
// stream mode, emit the same tokens.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.hpp"
#include "decode/params.hpp"
#include "decode/sampler.hpp"
#include "model/runner.hpp"

namespace lockstep::decode {

struct DecodeRequest {
  std::vector<TokenId> prompt;
  SamplerParams sampler;
  std::vector<TokenId> stop_ids;  ///< ascending; the stop token itself is not emitted
  std::int64_t max_tokens = 0;    ///< emitted at most; 0: as many as the context holds
  std::int64_t vocab = 0;         ///< usable vocabulary: ids from here on are never emitted
  bool prompt_only = false;       ///< nothing is drawn after the prompt
  bool logprobs = false;          ///< keep the log-probabilities of every emitted token
  bool prompt_logprobs = false;   ///< and of the prompt's own tokens
  std::int64_t top_logprobs = 0;  ///< and of that many most probable tokens, at most kMaxTopLogprobs
  /// Verification: go on after the prompt with a fork of a restored copy of the sequence.
  bool round_trip_state = false;
};

enum class Finish : std::uint8_t {
  None,
  Stop,    ///< a stop token was drawn
  Length,  ///< max_tokens or the end of the context
};

inline constexpr std::int64_t kMaxDepth = 4;

/// What ran. Counters are bumped by the code that does the work.
struct DecodeStats {
  std::int64_t prompt_tokens = 0, reused_tokens = 0, tokens = 0;
  std::int64_t steps = 0;              ///< forward passes after the prompt
  std::int64_t recomputed_tokens = 0;  ///< rows that went through the model a second time; 0 with captured states
  std::array<std::int64_t, kMaxDepth> drafted{}, accepted{};  ///< by depth
  std::int64_t draft_failures = 0;   ///< cycles with fewer drafts because the draft head's logits were not finite
  std::int64_t captured_steps = 0;   ///< verify steps whose state was captured
  std::int64_t steps_ahead = 0;      ///< forward passes made or begun by run_ahead(), or before their token was known
  std::int64_t launched_steps = 0;   ///< of those, the latter
  std::int64_t prepared_steps = 0;   ///< of those, prepared while the token before them was drawn
  std::int64_t foreseen_tokens = 0;  ///< drawn tokens whose table rows had been requested before they were drawn
  std::int64_t short_head_rows = 0;  ///< drafts proposed by a short head
  std::int64_t device_rows = 0;      ///< rows of logits that tokens or drafts were drawn from on the device
  std::int64_t host_rows = 0;        ///< and on the host
  backend::LaneCounters backend;     ///< what the backend's optional paths did since start()
  double prefill_seconds = 0, decode_seconds = 0;
};

/// Tokens of the prompt done so far; called between chunks.
using PrefillProgress = std::function<void(std::int64_t done, std::int64_t total)>;

/// A thread of its own for work beside that of the caller, one piece at a time.
class Companion {
 public:
  Companion() = default;
  Companion(const Companion&) = delete;
  Companion& operator=(const Companion&) = delete;
  virtual ~Companion() = default;
  /// Starts the work. wait() must have returned since the last post().
  virtual void post(std::function<void()> work) = 0;
  /// Waits until the work is done.
  virtual void wait() = 0;
};

class Decoder {
 public:
  Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  virtual ~Decoder() = default;

  /// Runs the prompt. What an earlier request of this decoder left in its sequence is reused when the prompt continues
  /// it. Errors: Invalid (empty prompt, token id, parameters), Limit (context), Cancelled.
  virtual Status start(const DecodeRequest& request, const PrefillProgress& progress) = 0;
  /// The next tokens, at least one unless finish() is then set. The span lives until the next call. Errors: Internal
  /// with the token number when logits are not finite; Limit; Io; Cancelled.
  virtual Result<std::span<const Choice>> step() = 0;
  /// Does now what the next step() would do first whatever becomes of the tokens that are out: in plain decoding, the
  /// forward pass over the last token, which sequence() then holds. May be left out. Errors: as step(), which then need
  /// not be called any more.
  /// Where the device draws, and use_companion() has been called, the pass is only handed over, and step() hands over
  /// the one behind it before it waits for the token: sequence() then holds every token that is out, the stop token
  /// too.
  virtual Status run_ahead() = 0;
  /// From now on step() prepares the next run_ahead() on `companion` while it draws from rows that run_ahead() has run;
  /// null: no longer. Changes no token.
  virtual void use_companion(Companion* companion) = 0;
  [[nodiscard]] virtual Finish finish() const = 0;
  [[nodiscard]] virtual const DecodeStats& stats() const = 0;
  /// The sequence as it stands: the prompt and the emitted tokens, at most without the last, or with a stop token
  /// behind them (run_ahead()). Null when there is none.
  [[nodiscard]] virtual const model::Sequence* sequence() const = 0;
  /// Ends start() or step() with Cancelled at the next opportunity. Async-signal safe.
  void cancel() { cancelled_.store(true); }
  [[nodiscard]] bool cancelled() const { return cancelled_.load(); }

 protected:
  std::atomic<bool> cancelled_{false};
};

/// Prompt rows that one forward pass takes.
inline constexpr std::int64_t kPrefillChunk = 256;

/// One token a step, through nothing but forward() and draw(): the oracle of speculative decoding.
Result<std::unique_ptr<Decoder>> make_plain_decoder(const model::Model& model,
                                                    std::int64_t prefill_chunk = kPrefillChunk);

struct SpeculativeOptions {
  std::int64_t depth = 3;  ///< drafts a cycle, 1..kMaxDepth; the verify width is depth + 1
  /// Off: a rejection restores a fork of the sequence and runs the accepted tokens again (the lane gdn_capture).
  bool capture = true;
  bool short_head = false;  ///< draft with the model's short head (the lane frspec)
  std::int64_t prefill_chunk = kPrefillChunk;
  /// Tests replace drafts: called with the number of the token that the draft stands for and the head's own proposal.
  std::function<TokenId(std::uint64_t number, TokenId proposed)> script;
};

/// Drafts with the model's own draft head and verifies all drafts in one forward pass. The request's acceptance rule
/// decides what is kept (decode/acceptance.hpp). Errors: Invalid when the model has no draft layer or no short head
/// where the options ask for one.
Result<std::unique_ptr<Decoder>> make_speculative_decoder(const model::Model& model, SpeculativeOptions options);

}  // namespace lockstep::decode
