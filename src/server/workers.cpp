#include "server/workers.hpp"

#include <utility>

namespace lockstep::server {

void Workers::Task::abandon() {
  abandoned_.store(true);
  std::function<void(const Unwanted&)> dropped;  // destroyed after the lock is released
  const std::lock_guard lock(mutex_);
  dropped.swap(work_);
}

void Workers::Task::run() {
  std::function<void(const Unwanted&)> work;
  {
    const std::lock_guard lock(mutex_);
    work.swap(work_);
  }
  if (work && !abandoned()) work([self = shared_from_this()] { return self->abandoned(); });
}

Workers::Workers() {
  threads_.emplace_back([this] { loop(short_); });
  threads_.emplace_back([this] { loop(short_); });
  threads_.emplace_back([this] { loop(long_); });
}

Workers::~Workers() {
  stop();
}

void Workers::add(std::size_t bytes, std::shared_ptr<Task> task) {
  {
    const std::lock_guard lock(mutex_);
    if (!stopping_) {
      Lane& lane = bytes > kShortBytes ? long_ : short_;
      lane.waiting.push_back(std::move(task));
      lane.changed.notify_one();
      return;
    }
  }
  task->abandon();
}

void Workers::stop() {
  std::vector<std::shared_ptr<Task>> left;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Lane* lane : {&short_, &long_}) {
      left.insert(left.end(), lane->waiting.begin(), lane->waiting.end());
      left.insert(left.end(), lane->running.begin(), lane->running.end());
      lane->waiting.clear();
      lane->changed.notify_all();
    }
  }
  for (const std::shared_ptr<Task>& task : left) task->abandon();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Workers::loop(Lane& lane) {
  std::unique_lock lock(mutex_);
  for (;;) {
    lane.changed.wait(lock, [&] { return stopping_ || !lane.waiting.empty(); });
    if (stopping_) return;
    std::shared_ptr<Task> task = std::move(lane.waiting.front());
    lane.waiting.pop_front();
    lane.running.push_back(task);
    lock.unlock();
    task->run();
    lock.lock();
    std::erase(lane.running, task);
    lock.unlock();
    task.reset();
    lock.lock();
  }
}

}  // namespace lockstep::server
