// What is wrong with the disks while the server goes on: on the console, in /health and in the metrics.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep::server {

struct DiskFault {
  std::string part;  ///< "bank", "access_log"
  std::uint64_t count = 0;
  std::string last;  ///< the last error; empty when there was none
};

/// Turns growing counts into lines: the first error of a part at once, then at most one line a minute.
class FaultReporter {
 public:
  using Clock = std::chrono::steady_clock;
  [[nodiscard]] std::vector<std::string> look(const std::vector<DiskFault>& faults, Clock::time_point now);

 private:
  struct Reported {
    std::uint64_t count = 0;
    Clock::time_point when;
  };
  std::map<std::string, Reported> reported_;
};

}  // namespace lockstep::server
