// A fixed team of threads that runs one loop at a time with a static partition.
//
// The partition decides only who computes an element, never in which order numbers are added, so results do not depend
// on the number of threads (docs/numerics.md E7).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace lockstep {

/// A loop body by reference: what std::function would be without its copy and allocation, which a loop of a few
/// microseconds would notice. The callable must outlive the call it is passed to.
class RangeBody {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, RangeBody> && std::is_invocable_v<F&, std::size_t, std::size_t>)
      // NOLINTNEXTLINE(google-explicit-constructor,bugprone-forwarding-reference-overload): lambdas are passed directly
      RangeBody(F&& body)
      : object_(const_cast<void*>(static_cast<const volatile void*>(std::addressof(body)))),
        call_([](void* object, std::size_t begin, std::size_t end) {
          (*static_cast<std::add_pointer_t<std::remove_reference_t<F>>>(object))(begin, end);
        }) {}

  void operator()(std::size_t begin, std::size_t end) const { call_(object_, begin, end); }

 private:
  void* object_;
  void (*call_)(void*, std::size_t, std::size_t);
};

class ThreadPool {
 public:
  static constexpr std::size_t kMaxThreads = 1024;

  /// `threads` counts the calling thread; 0 means physical_cores(). More than kMaxThreads, or more than the system
  /// lets the process start, gives a smaller team: results do not depend on its size.
  explicit ThreadPool(std::size_t threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  [[nodiscard]] std::size_t threads() const { return workers_.size() + 1; }

  /// Calls body(begin, end) on disjoint ranges that cover [0, count), at most one a thread, each a multiple of `grain`
  /// (0 counts as 1) but the last. Returns when all are done, and everything the body wrote is visible to the caller.
  /// One caller at a time; the body must not throw or call parallel_for.
  void parallel_for(std::size_t count, std::size_t grain, RangeBody body);

 private:
  void work(std::size_t index);
  void run_share(std::size_t index) const;

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  // Each parallel_for is an epoch. The plain members below it are written before epoch_ is released and read after it
  // is acquired; pending_ counts the workers that have not finished the epoch, so they stay unchanged until it is 0.
  std::atomic<std::size_t> epoch_{0}, pending_{0};
  std::atomic<bool> stop_{false};
  const RangeBody* body_ = nullptr;
  std::size_t count_ = 0, share_ = 0;
};

/// Cores to compute on, at least 1: the physical cores that this process may run on (affinity mask and hyper-threads
/// respected), and not more than the processor time that its control group grants (a container's CPU limit).
[[nodiscard]] std::size_t physical_cores();

/// Processors that this process may run on, hyper-threads counted, and not more than its control group's limit; at
/// least
/// 1. More threads than that in one pool only wait for one another.
[[nodiscard]] std::size_t usable_processors();

/// The processors that a control group's limit amounts to, rounded up, or 0 for none. `text` is the content of cpu.max:
/// "QUOTA PERIOD" in microseconds, QUOTA "max" for no limit.
[[nodiscard]] std::size_t quota_processors(const std::string& text);

}  // namespace lockstep
