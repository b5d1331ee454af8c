#include "cli/interrupt.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>

#include "base/temporary_files.hpp"

namespace lockstep::cli {
namespace {

constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};

// All that the handler touches. `wake` is an eventfd: a flag alone could be raised between a look at it and poll().
std::atomic<bool> raised{false}, past{false};
std::atomic<int> last{0}, fatal{0};
std::atomic<int> wake{-1};
std::array<std::atomic<bool>, kSignals.size()> came{};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "the handler may only touch lock-free atomics");

std::atomic<bool>& came_before(int signal) {
  return came[static_cast<std::size_t>(std::find(kSignals.begin(), kSignals.end() - 1, signal) - kSignals.begin())];
}

void act(int signal, void (*action_of)(int)) {
  struct sigaction action = {};
  action.sa_handler = action_of;  // without SA_RESTART a blocking read or write returns EINTR
  ::sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

void handle(int signal) {
  const int error = errno;
  if (came_before(signal).exchange(true)) {
    remove_temporary_files();
    act(signal, SIG_DFL);
    ::raise(signal);  // takes effect when this handler returns
    return;
  }
  last.store(signal);
  if (signal != SIGINT) fatal.store(signal);
  raised.store(true);
  const std::uint64_t one = 1;
  static_cast<void>(::write(wake.load(), &one, sizeof(one)));
  errno = error;
}

bool ignored(int signal) {
  struct sigaction action = {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

InterruptScope::InterruptScope() {
  raised.store(false);
  past.store(false);
  last.store(0);
  fatal.store(0);
  for (std::atomic<bool>& one : came) one.store(false);
  wake.store(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  for (const int signal : kSignals) {
    if (!ignored(signal)) act(signal, handle);
  }
}

InterruptScope::~InterruptScope() {
  for (const int signal : kSignals) {
    if (!ignored(signal)) act(signal, SIG_DFL);
  }
  past.store(raised.load());
  ::close(wake.exchange(-1));
  raised.store(false);
}

bool InterruptScope::requested() const {
  return raised.load();
}

bool InterruptScope::ending() const {
  return fatal.load() != 0;
}

Status InterruptScope::check() const {
  if (requested()) return fail(ErrorKind::Cancelled, "interrupted");
  return {};
}

const std::atomic<bool>& InterruptScope::flag() {
  return raised;
}

int InterruptScope::descriptor() {
  return wake.load();
}

bool InterruptScope::asked() {
  return raised.load() || past.load();
}

void InterruptScope::reset() {
  std::uint64_t count = 0;
  static_cast<void>(::read(wake.load(), &count, sizeof(count)));
  raised.store(false);
  came_before(SIGINT).store(false);
  if (ending()) raised.store(true);
}

int InterruptScope::signal() {
  const int ended = fatal.load() != 0 ? fatal.load() : last.load();
  return ended == 0 ? SIGINT : ended;
}

}  // namespace lockstep::cli
