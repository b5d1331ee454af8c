// Ctrl-C, SIGTERM and SIGHUP as a request that long work looks at, so that it can end cleanly.
#pragma once

#include <atomic>

#include "base/result.hpp"

namespace lockstep::cli {

/// While one of these exists, the first SIGINT, SIGTERM or SIGHUP only raises the request; a second one of the same
/// kind removes the temporary files there are (base/temporary_files.hpp) and ends the process at once. Work that sees
/// the request stops and returns ErrorKind::Cancelled (exit code 128 + signal). Without a scope the signals end the
/// process as usual. Signals that the caller ignores (nohup, a shell's trap '') stay ignored. At most one scope at a
/// time.
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
  /// Readable in poll() from a request on until reset(); -1 while there is no scope.
  [[nodiscard]] static int descriptor();
  /// Forgets a SIGINT that was acted on, e.g. by stopping an answer, and re-arms it. SIGTERM and SIGHUP stay.
  void reset();

  /// Whether a request came in this scope or, where there is none, in the last one: nothing waits for a reader any
  /// more.
  [[nodiscard]] static bool asked();
  /// The signal behind the last request, SIGINT when there was none.
  [[nodiscard]] static int signal();
};

}  // namespace lockstep::cli
