// An engine without a model: it answers every request with a text that the test sets, token by token, from a thread of
// its own, and keeps to the interface's rules about pausing, cancelling and ending.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "engine/engine.hpp"
#include "text/tokenizer.hpp"

namespace lockstep::test {

class FakeEngine final : public engine::Engine {
 public:
  /// `answer` is encoded with the tokenizer, tags like </think> included. `endless` repeats it until something ends it.
  FakeEngine(const text::Tokenizer& tokenizer, std::string answer, bool endless = false);
  ~FakeEngine() override;

  tl::expected<engine::Ticket, engine::Refusal> submit(engine::Request request,
                                                       std::shared_ptr<engine::Sink> sink) override;
  void cancel(engine::Ticket ticket) override;
  void wake() override;
  void drain() override;
  bool wait_idle(double seconds) override;
  void stop() override;
  [[nodiscard]] engine::Statistics stats() const override;
  [[nodiscard]] const engine::Limits& limits() const override { return limits_; }

  // For tests.
  void hold(bool on);                         ///< requests wait in the queue
  void refuse_with(engine::Refusal refusal);  ///< from now on
  void fail_after(std::int64_t tokens);       ///< choices end with an error of kind Limit
  void poison(std::string error);
  void fail_disk(std::string error);                          ///< one write of the bank has failed
  void set_queue(std::int64_t queue, std::int64_t parallel);  ///< before any request
  [[nodiscard]] engine::Request last_request() const;
  [[nodiscard]] std::int64_t tokens_sent() const { return tokens_.load(); }
  [[nodiscard]] std::uint64_t cancelled() const { return cancelled_.load(); }
  /// Waits until a request pauses because its sink is full, at most 20 s.
  bool wait_paused();

 private:
  struct Job {
    engine::Ticket ticket = 0;
    engine::Request request;
    std::shared_ptr<engine::Sink> sink;
  };
  void loop();
  void run(const Job& job);
  void run_choice(const Job& job, std::int64_t choice);
  [[nodiscard]] bool wait_writable(const Job& job);
  [[nodiscard]] bool is_cancelled(engine::Ticket ticket) const;

  const std::vector<std::int32_t> answer_;
  const bool endless_;
  engine::Limits limits_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> queue_;
  std::set<engine::Ticket> cancels_;
  engine::Ticket next_ = 1;
  bool busy_ = false, held_ = false, draining_ = false, stopping_ = false, paused_ = false;
  std::optional<engine::Refusal> refusal_;
  std::int64_t fail_after_ = -1;
  std::string poisoned_, disk_error_;
  engine::Request last_;
  std::atomic<std::int64_t> tokens_{0};
  std::atomic<std::uint64_t> cancelled_{0};
  std::thread thread_;
};

}  // namespace lockstep::test
