// Requests, and sinks that hold them, for the tests of the engine's scheduling.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/fixture.hpp"

namespace lockstep::engine {

inline const model::Model& toy() {
  return shared_model(kToyPack);
}

inline Request greedy(std::vector<TokenId> prompt, std::int64_t max_tokens) {
  Request request;
  request.prompt = std::move(prompt);
  request.sampler.temperature = 0;
  request.max_tokens = max_tokens;
  return request;
}

/// A sink that holds its request until it is let go, as a full connection does.
struct Gate {
  std::atomic<bool> closed{true};
  std::shared_ptr<Recorder> sink = std::make_shared<Recorder>();
  Gate() {
    sink->hold = [this] { return closed.load(); };
  }
  void open(Engine& engine) {
    closed = false;
    engine.wake();
  }
};

/// Stops the model thread inside a callback until it is let go, so that what is submitted meanwhile stays in the queue.
class Blocker final : public Recorder {
 public:
  void on_start(const Start& start) override {
    Recorder::on_start(start);
    std::unique_lock lock(mutex_);
    let_go_.wait(lock, [&] { return free_; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    free_ = true;
    let_go_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable let_go_;
  bool free_ = false;
};

}  // namespace lockstep::engine
