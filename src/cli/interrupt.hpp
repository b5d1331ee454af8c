// Ctrl-C, SIGTERM and SIGHUP as a request that long work looks at, so that it can end cleanly.
#pragma once

#include <atomic>

#include "base/result.hpp"

namespace lockstep::cli {

/// While one of these exists, the first SIGINT, SIGTERM or SIGHUP only raises the request; a second one of the same
/// kind ends the process at once. Work that sees the request stops and returns ErrorKind::Cancelled (exit code 128 +
/// signal). Without a scope the signals end the process as usual. A SIGHUP that the caller ignores (nohup) stays
/// ignored. At most one scope at a time.
class InterruptScope {
 public:
  InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  ~InterruptScope();

  /// Any of the signals came.
  [[nodiscard]] bool requested() const;
  /// SIGTERM or SIGHUP came: the program is to end, not only what it does at the moment.
  [[nodiscard]] bool ending() const;
  /// Cancelled once any of the signals came.
  [[nodiscard]] Status check() const;
  /// requested() as a flag; false while there is no scope.
  [[nodiscard]] static const std::atomic<bool>& flag();
  /// Readable in poll() from a request on until reset().
  [[nodiscard]] int descriptor() const;
  /// Forgets a SIGINT that was acted on, e.g. by stopping an answer, and re-arms it. SIGTERM and SIGHUP stay.
  void reset();

  /// The signal behind the last request, SIGINT when there was none.
  [[nodiscard]] static int signal();

 private:
  bool hangup_ignored_ = false;
};

}  // namespace lockstep::cli
