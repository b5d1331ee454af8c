// Ctrl-C as a flag that long work looks at, so that it can end cleanly.
#pragma once

#include <atomic>

namespace lockstep::cli {

/// While one of these exists, the first SIGINT or SIGTERM only raises the flag; a second one ends the process at once.
/// Work that sees the flag stops and returns ErrorKind::Cancelled (exit code 130). Without a scope the signals end the
/// process as usual. At most one at a time.
class InterruptScope {
 public:
  InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
  ~InterruptScope();

  [[nodiscard]] bool requested() const;
  [[nodiscard]] const std::atomic<bool>& flag() const;
  /// Lowers the flag again, e.g. before the next answer of a chat, and re-arms the first signal.
  void reset();
};

}  // namespace lockstep::cli
