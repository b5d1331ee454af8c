#include "base/thread_pool.hpp"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>

namespace lockstep {
namespace {

// Spin this often before a wait parks on the condition variable. A decode step has some hundred loops a few
// microseconds apart; parking in between would cost more than the loops.
constexpr int kSpins = 4000;

inline void pause() { __builtin_ia32_pause(); }

}  // namespace

std::size_t physical_cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return std::max(1U, std::thread::hardware_concurrency());
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::string siblings;
    std::ifstream("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list") >> siblings;
    cores.insert(siblings.empty() ? "cpu" + std::to_string(cpu) : siblings);
  }
  return std::max<std::size_t>(1, cores.size());
}

ThreadPool::ThreadPool(std::size_t threads) {
  if (threads == 0) threads = physical_cores();
  for (std::size_t index = 1; index < threads; ++index) workers_.emplace_back([this, index] { work(index); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true);
    epoch_.fetch_add(1);
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::parallel_for(std::size_t count, std::size_t grain,
                              const std::function<void(std::size_t, std::size_t)>& body) {
  if (count == 0) return;
  const std::size_t blocks = (count + grain - 1) / grain;
  if (workers_.empty() || blocks == 1) return body(0, count);
  body_ = &body;
  count_ = count;
  share_ = (blocks + threads() - 1) / threads() * grain;
  pending_.store(workers_.size(), std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    epoch_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  run_share(0);
  while (pending_.load(std::memory_order_acquire) != 0) pause();
}

void ThreadPool::run_share(std::size_t index) const {
  const std::size_t begin = std::min(count_, index * share_);
  const std::size_t end = std::min(count_, begin + share_);
  if (begin < end) (*body_)(begin, end);
}

void ThreadPool::work(std::size_t index) {
  std::size_t seen = 0;
  for (;;) {
    for (int spin = 0; spin < kSpins && epoch_.load(std::memory_order_acquire) == seen; ++spin) pause();
    if (epoch_.load(std::memory_order_acquire) == seen) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return epoch_.load(std::memory_order_acquire) != seen; });
    }
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    run_share(index);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace lockstep
