// Driving a request to its end, with or without the lane ar_pipeline.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "decode/decoder.hpp"

namespace lockstep::decode {

/// Takes the tokens of one step: turns them into text, prints or sends them. False: no more are wanted (a stop string).
using TokenSink = std::function<Result<bool>(std::span<const Choice>)>;

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

/// The lane: the sink runs on a thread of its own while the calling thread runs the forward pass over the token that
/// the sink has. Errors: Limit when no thread is to be had.
Result<std::unique_ptr<Driver>> make_pipelined_driver();

}  // namespace lockstep::decode
