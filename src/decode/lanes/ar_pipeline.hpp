// Driving a request to its end, with or without the lane ar_pipeline.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "decode/decoder.hpp"

namespace lockstep::decode {

/// Takes the tokens of one step: turns them into text, prints or sends them. False: no more are wanted (a stop string).
using TokenSink = std::function<Result<bool>(std::span<const Choice>)>;

/// The tokens whose table rows are worth a request before the token is drawn: of one row of logits the best one for a
/// greedy request, else the best kLikelyTokens, the best first, below request.vocab. A guess: penalties and bias are
/// left out.
inline constexpr std::size_t kLikelyTokens = 4;
void likely_tokens(std::span<const float> logits, const DecodeRequest& request, std::vector<TokenId>& likely);

/// What runs a started request to its end.
class Driver {
 public:
  Driver() = default;
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  virtual ~Driver() = default;

  /// Steps until the request ends or the sink has enough. `before_step` is called on the calling thread before every
  /// step, to look for interrupts. Errors: those of step() and of the sink.
  virtual Status run(Decoder& decoder, const TokenSink& sink, const std::function<void()>& before_step) = 0;
};

/// The plain loop: step, sink, step, sink.
[[nodiscard]] std::unique_ptr<Driver> make_plain_driver();

/// The lane: a second thread prepares the next forward pass while the calling thread draws a token, and runs the sink
/// on that token while the calling thread runs the pass. Errors: Limit when no thread is to be had.
Result<std::unique_ptr<Driver>> make_pipelined_driver();

}  // namespace lockstep::decode
