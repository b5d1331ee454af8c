// Threads for what takes long and is not the model's: reading large bodies, chat templates, tokenising.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep::server {

/// Asked now and then by long work: true when nobody wants the result any more.
using Unwanted = std::function<bool()>;

/// Two lanes: long work waits for long work only, so that a request of many megabytes holds up no small one.
class Workers {
 public:
  /// Up to this many bytes of a body the lane of short work does.
  static constexpr std::size_t kShortBytes = std::size_t{256} << 10;

  /// One piece of work.
  class Task : public std::enable_shared_from_this<Task> {
   public:
    explicit Task(std::function<void(const Unwanted&)> work) : work_(std::move(work)) {}
    /// Nobody wants the result: work that has not begun is dropped, with what it holds. Any thread.
    void abandon();
    [[nodiscard]] bool abandoned() const { return abandoned_.load(); }

   private:
    friend class Workers;
    void run();
    std::mutex mutex_;
    std::function<void(const Unwanted&)> work_;
    std::atomic<bool> abandoned_{false};
  };

  Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;
  ~Workers();

  /// Queues a task by the size of what it works on. After stop() it is abandoned at once. Any thread.
  void add(std::size_t bytes, std::shared_ptr<Task> task);
  /// Abandons everything and joins the threads. May be called again; not from a task.
  void stop();

 private:
  struct Lane {
    std::deque<std::shared_ptr<Task>> waiting;
    std::vector<std::shared_ptr<Task>> running;
    std::condition_variable changed;
  };
  void loop(Lane& lane);

  std::mutex mutex_;
  Lane short_, long_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::server
