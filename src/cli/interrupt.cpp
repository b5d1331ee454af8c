#include "cli/interrupt.hpp"

#include <csignal>

namespace lockstep::cli {
namespace {

std::atomic<bool> raised{false};
static_assert(std::atomic<bool>::is_always_lock_free, "the handler may only touch lock-free atomics");

void install() {
  struct sigaction action = {};
  action.sa_handler = [](int) { raised.store(true); };
  // One shot: the second signal finds the default action and ends the process. Without SA_RESTART a blocking read
  // returns EINTR, so that a prompt waiting for input notices as well.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

InterruptScope::InterruptScope() {
  reset();
}

InterruptScope::~InterruptScope() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool InterruptScope::requested() const {
  return raised.load();
}

const std::atomic<bool>& InterruptScope::flag() const {
  return raised;
}

void InterruptScope::reset() {
  raised.store(false);
  install();
}

}  // namespace lockstep::cli
