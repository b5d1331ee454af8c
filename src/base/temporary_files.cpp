#include "base/temporary_files.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <utility>

namespace lockstep {
namespace {

constexpr std::size_t kSlots = 64;
constexpr std::size_t kMaxPath = 4096;

/// A handler may interrupt every other use of a slot: only who has taken the slot out of `Named` or `Free` touches its
/// path.
enum class State : int { Free, Taken, Named };

struct Slot {
  std::atomic<State> state{State::Free};
  std::array<char, kMaxPath> path;
};
static_assert(std::atomic<State>::is_always_lock_free, "a signal handler may only touch lock-free atomics");

std::array<Slot, kSlots> slots;

bool take(Slot& slot, State from) {
  return slot.state.compare_exchange_strong(from, State::Taken);
}

}  // namespace

TemporaryName::TemporaryName(const std::string& path) {
  if (path.size() >= kMaxPath) return;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Slot& slot = slots.at(i);
    if (!take(slot, State::Free)) continue;
    std::copy_n(path.c_str(), path.size() + 1, slot.path.data());
    slot.state.store(State::Named);
    slot_ = static_cast<int>(i);
    return;
  }
}

TemporaryName::TemporaryName(TemporaryName&& other) noexcept : slot_(std::exchange(other.slot_, -1)) {}

TemporaryName& TemporaryName::operator=(TemporaryName&& other) noexcept {
  if (this == &other) return *this;
  forget();
  slot_ = std::exchange(other.slot_, -1);
  return *this;
}

TemporaryName::~TemporaryName() {
  forget();
}

void TemporaryName::forget() noexcept {
  if (slot_ < 0) return;
  Slot& slot = slots[static_cast<std::size_t>(std::exchange(slot_, -1))];
  // Where it cannot be taken, a handler is removing the file, and the process ends.
  if (take(slot, State::Named)) slot.state.store(State::Free);
}

void remove_temporary_files() noexcept {
  const int error = errno;
  for (Slot& slot : slots) {
    if (!take(slot, State::Named)) continue;
    ::unlink(slot.path.data());
    slot.state.store(State::Named);
  }
  errno = error;
}

}  // namespace lockstep
