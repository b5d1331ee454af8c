// The engine's implementation: queue, admission, steps and delivery (docs/engine.md).
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

#include "engine/bank.hpp"
#include "engine/engine.hpp"
#include "engine/job.hpp"
#include "engine/memory_plan.hpp"
#include "engine/stepper.hpp"

namespace lockstep::engine {

class Scheduler final : public Engine {
 public:
  Scheduler(const model::Model& model, Options options, Limits limits, MemoryPlan plan, Bank bank, Stepper stepper);
  ~Scheduler() override;

  Status start();

  tl::expected<Ticket, Refusal> submit(Request request, std::shared_ptr<Sink> sink) override;
  void cancel(Ticket ticket) override;
  void wake() override;
  void drain() override;
  bool wait_idle(double seconds) override;
  void stop() override;
  [[nodiscard]] Statistics stats() const override;
  [[nodiscard]] const Limits& limits() const override { return limits_; }

 private:
  using Jobs = std::list<std::unique_ptr<Job>>;

  // Submission (scheduler_submit.cpp), in the caller's thread.
  tl::expected<decode::DecodeRequest, Refusal> checked(const Request& request) const;
  [[nodiscard]] std::int64_t retry_after() const;

  // The model thread (scheduler.cpp).
  void loop();
  /// False when the thread is to end.
  bool take_messages();
  void end_cancelled(const std::unordered_set<Ticket>& tickets, bool all);
  void step();
  [[nodiscard]] std::vector<Job*> step_members();
  void plan_rows(std::vector<Job*>& members, std::vector<Part>& parts);
  void publish();

  // Admission (scheduler_admission.cpp).
  void admit();
  [[nodiscard]] Jobs::iterator next_in_queue();
  bool make_room(std::uint64_t bytes);
  void reserve(std::uint64_t bytes);
  void release(std::uint64_t bytes);
  Status begin(Job& job);
  Status begin_prompt(Job& job);
  Result<std::unique_ptr<decode::Generation>> make_generation(decode::DecodeRequest request,
                                                              std::optional<decode::Checkpoint> prefix) const;
  void set_captures(Job& job) const;

  // After a step (scheduler_delivery.cpp).
  void settle(std::span<Part> parts, std::span<Job* const> members);
  void prompt_progress(Job& job);
  void prompt_end(Job& job);
  void keep_prompt(Job& job, bool durable);
  void deliver(Job& job);
  [[nodiscard]] std::vector<std::string> lanes_that_ran(const Job& job) const;
  void finish(Job& job);
  void fail_job(Job& job, const Error& error);
  void leave(Job& job);
  void drop_state(Group& group);
  void sweep();
  bool note_poison();
  void fail_the_rest(const Error& error);

  const model::Model& model_;
  const Options options_;
  const Limits limits_;
  const MemoryPlan plan_;
  const bool drafts_;

  // Shared between threads.
  mutable std::mutex mutex_;
  std::condition_variable wake_, idle_;
  std::deque<std::unique_ptr<Job>> incoming_;
  std::unordered_set<Ticket> cancels_;
  Statistics published_;
  Ticket last_ticket_ = 0;
  std::uint64_t order_ = 0;
  std::int64_t pending_ = 0;  ///< choices accepted and not ended
  std::int64_t queued_ = 0;   ///< of these, not started
  std::uint64_t accepted_ = 0, refused_ = 0;
  double mean_seconds_ = 0;  ///< of finished choices, for retry_after()
  bool woken_ = false, draining_ = false, stopping_ = false;
  std::string poisoned_;

  // Of the model thread alone.
  Bank bank_;
  Stepper stepper_;
  Jobs queue_, running_;
  std::uint64_t reserved_ = 0;
  std::int64_t ended_ = 0, ended_queued_ = 0;  ///< since the last publish()
  bool idle_step_ = true;                      ///< the last step had nothing to do
  std::uint64_t turn_ = 0;                     ///< rotates who of the prefilling choices comes first
  Statistics counts_;

  std::mutex join_mutex_;
  std::thread thread_;
};

}  // namespace lockstep::engine
