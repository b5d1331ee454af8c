#include "backend/ngram/row_queue.hpp"

#include <algorithm>
#include <new>

namespace lockstep::backend {
namespace {

template <class Duration>
std::uint64_t nanoseconds(Duration duration) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count());
}

}  // namespace

Result<std::unique_ptr<RowQueue>> RowQueue::create(std::uint32_t capacity) {
  std::unique_ptr<RowQueue> queue(new RowQueue(capacity));
  queue->ring_ = LOCKSTEP_TRY(zeroed_block<std::uint32_t>(capacity));
  queue->ready_.reset(new (std::nothrow) std::atomic<std::uint8_t>[capacity]());
  if (queue->ready_ == nullptr) return fail(ErrorKind::Limit, "cannot allocate {} bytes of memory", capacity);
  return queue;
}

void RowQueue::push(std::span<const std::uint32_t> slots) {
  if (slots.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    if (pushed_ == completed_) busy_since_ = Clock::now();
    for (const std::uint32_t slot : slots) {
      ready_[slot].store(0, std::memory_order_relaxed);
      ring_[pushed_++ % capacity_] = slot;
    }
    counters_.rows += slots.size();
  }
  work_.notify_all();
}

Status RowQueue::wait(std::uint32_t slot) {
  if (ready(slot)) return {};
  const auto begin = Clock::now();
  std::unique_lock lock(mutex_);
  arrived_.wait(lock, [&] { return ready(slot) || !status_; });
  counters_.wait_nanoseconds += nanoseconds(Clock::now() - begin);
  return status_;
}

Status RowQueue::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

RowQueue::Counters RowQueue::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void RowQueue::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  work_.notify_all();
}

std::size_t RowQueue::take(std::span<std::uint32_t> slots, bool block) {
  std::unique_lock lock(mutex_);
  const auto over = [&] { return closed_ || !status_; };
  if (block) work_.wait(lock, [&] { return over() || pushed_ != taken_; });
  if (over()) return 0;
  const std::size_t count = std::min<std::uint64_t>(slots.size(), pushed_ - taken_);
  for (std::size_t i = 0; i < count; ++i) slots[i] = ring_[taken_++ % capacity_];
  return count;
}

void RowQueue::complete(std::span<const std::uint32_t> slots, std::uint64_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    for (const std::uint32_t slot : slots) ready_[slot].store(1, std::memory_order_release);
    completed_ += slots.size();
    counters_.bytes += bytes;
    if (!slots.empty() && pushed_ == completed_) counters_.read_nanoseconds += nanoseconds(Clock::now() - busy_since_);
  }
  if (!slots.empty()) arrived_.notify_all();
}

void RowQueue::fail_with(const Error& error) {
  {
    const std::lock_guard lock(mutex_);
    if (status_) status_ = tl::unexpected(error);
  }
  arrived_.notify_all();
  work_.notify_all();
}

}  // namespace lockstep::backend
