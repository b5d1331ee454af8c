#include "base/thread_pool.hpp"

#include <algorithm>
#include <system_error>

namespace lockstep {
namespace {

// Spin this often before a wait parks on the condition variable (worker) or gives up its processor (caller). A decode
// step has some hundred loops a few microseconds apart; parking in between would cost more than the loops.
constexpr int kSpins = 4000;

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

ThreadPool::ThreadPool(std::size_t threads) {
  if (threads == 0) threads = physical_cores();
  threads = std::min(threads, kMaxThreads);
  workers_.reserve(threads - 1);
  try {
    for (std::size_t index = 1; index < threads; ++index) workers_.emplace_back([this, index] { work(index); });
  } catch (const std::system_error&) {
    // The system's limit on threads: go on with those that started.
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::parallel_for(std::size_t count, std::size_t grain, RangeBody body) {
  if (count == 0) return;
  grain = std::max<std::size_t>(grain, 1);
  const std::size_t blocks = (count - 1) / grain + 1;
  if (workers_.empty() || blocks == 1) return body(0, count);
  body_ = &body;
  count_ = count;
  share_ = ((blocks - 1) / threads() + 1) * grain;
  pending_.store(workers_.size(), std::memory_order_relaxed);
  {
    // The lock orders this with a worker that has just seen the old epoch and is about to wait.
    const std::lock_guard lock(mutex_);
    epoch_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  run_share(0);
  for (int spin = 0; pending_.load(std::memory_order_acquire) != 0; ++spin) {
    relax();
    if (spin < kSpins) continue;
    // With more threads than free processors the one we wait for may need ours.
    std::this_thread::yield();
    spin = 0;
  }
}

void ThreadPool::run_share(std::size_t index) const {
  const std::size_t begin = std::min(count_, index * share_);
  const std::size_t end = std::min(count_, begin + share_);
  if (begin < end) (*body_)(begin, end);
}

void ThreadPool::work(std::size_t index) {
  std::size_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins && epoch_.load(std::memory_order_acquire) == seen; ++spin) relax();
    if (epoch_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return epoch_.load(std::memory_order_acquire) != seen; });
    }
    ++seen;  // the caller starts no new epoch before this worker has finished the present one
    if (stop_.load(std::memory_order_relaxed)) return;
    run_share(index);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace lockstep
