#include "cli/interrupt.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>

namespace lockstep::cli {
namespace {

// All that the handler touches. `wake` is an eventfd: a flag alone could be raised between a look at it and poll().
std::atomic<bool> raised{false};
std::atomic<int> last{0}, fatal{0};
std::atomic<int> wake{-1};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "the handler may only touch lock-free atomics");

void handle(int signal) {
  const int error = errno;
  last.store(signal);
  if (signal != SIGINT) fatal.store(signal);
  raised.store(true);
  const std::uint64_t one = 1;
  static_cast<void>(::write(wake.load(), &one, sizeof(one)));
  errno = error;
}

void install(int signal) {
  struct sigaction action = {};
  action.sa_handler = handle;
  // One shot: the second signal finds the default action and ends the process. Without SA_RESTART a blocking read
  // returns EINTR.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

bool ignored(int signal) {
  struct sigaction action = {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

InterruptScope::InterruptScope() : hangup_ignored_(ignored(SIGHUP)) {
  raised.store(false);
  last.store(0);
  fatal.store(0);
  wake.store(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  install(SIGINT);
  install(SIGTERM);
  if (!hangup_ignored_) install(SIGHUP);
}

InterruptScope::~InterruptScope() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
  if (!hangup_ignored_) std::signal(SIGHUP, SIG_DFL);
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

int InterruptScope::descriptor() const {
  return wake.load();
}

void InterruptScope::reset() {
  std::uint64_t count = 0;
  static_cast<void>(::read(wake.load(), &count, sizeof(count)));
  raised.store(false);
  install(SIGINT);
  if (ending()) raised.store(true);
}

int InterruptScope::signal() {
  const int ended = fatal.load() != 0 ? fatal.load() : last.load();
  return ended == 0 ? SIGINT : ended;
}

}  // namespace lockstep::cli
