// The engine: many requests on one model. Requests come in from any thread; one model thread of the engine runs steps
// in which prompt chunks, decoding rows and drafted rows of all running requests share forward passes. What a request
// emits never depends on its neighbours (docs/engine.md).
#pragma once

#include <memory>

#include "engine/options.hpp"
#include "engine/request.hpp"
#include "engine/sink.hpp"
#include "engine/statistics.hpp"
#include "model/model.hpp"

namespace lockstep::engine {

class Engine {
 public:
  Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  /// As stop().
  virtual ~Engine() = default;

  /// Queues a request. Thread safe, does not wait for the model. On success the sink gets exactly one on_finish() or
  /// on_error() per choice, whatever happens; on failure it gets no call at all. The sink may be called before submit()
  /// has returned.
  virtual tl::expected<Ticket, Refusal> submit(Request request, std::shared_ptr<Sink> sink) = 0;

  /// Ends all choices of a request with Cancelled at the next step, in whatever phase it is. Thread safe, does not
  /// wait, may be called by a sink, and does nothing for a request that has ended.
  virtual void cancel(Ticket ticket) = 0;

  /// A sink that was full has room again: paused requests are looked at once more. Thread safe, cheap, any thread.
  virtual void wake() = 0;

  /// Refuses new requests from now on; what was taken in is finished. Returns at once.
  virtual void drain() = 0;
  /// Waits until nothing is queued or running, at most `seconds`. True when that is so.
  virtual bool wait_idle(double seconds) = 0;
  /// Refuses new requests, ends all others with Cancelled within one step, writes what the bank's disk tier still has
  /// to write, and joins the model thread. May be called again. Not from a sink.
  virtual void stop() = 0;

  /// A consistent copy, at most one step old. Thread safe.
  [[nodiscard]] virtual Statistics stats() const = 0;
  /// What a request may ask for. Constant.
  [[nodiscard]] virtual const Limits& limits() const = 0;
};

/// Starts the model thread. `model` must outlive the engine and must not be used by anyone else meanwhile; it must
/// have been loaded with its draft layer for options.depth > 0. Errors: Usage (an option out of range), Limit (the
/// memory plan has no room for the smallest request), Io (the bank's directory).
Result<std::unique_ptr<Engine>> make_engine(const model::Model& model, Options options);

}  // namespace lockstep::engine
