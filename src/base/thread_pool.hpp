// A fixed team of threads that runs one loop at a time with a static partition.
//
// The partition decides only who computes an element, never in which order numbers are added, so results do not depend
// on the number of threads (docs/numerics.md E7).
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep {

class ThreadPool {
 public:
  /// `threads` >= 1 counts the calling thread; 0 means the machine's physical cores.
  explicit ThreadPool(std::size_t threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  [[nodiscard]] std::size_t threads() const { return workers_.size() + 1; }

  /// Calls body(begin, end) on disjoint ranges that cover [0, count), at most one a thread, each a multiple of `grain`
  /// but the last. Returns when all are done. One caller at a time; the body must not throw or call parallel_for.
  void parallel_for(std::size_t count, std::size_t grain, const std::function<void(std::size_t, std::size_t)>& body);

 private:
  void work(std::size_t index);
  void run_share(std::size_t index) const;

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<std::size_t> epoch_{0}, pending_{0};
  std::atomic<bool> stop_{false};
  const std::function<void(std::size_t, std::size_t)>* body_ = nullptr;
  std::size_t count_ = 0, share_ = 0;
};

/// Physical cores that this process may run on (affinity mask and hyper-threads respected), at least 1.
[[nodiscard]] std::size_t physical_cores();

}  // namespace lockstep
