// The quiet gate: a sample begins only when the machine is quiet, or after a time-out that is kept in the record.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::report {

/// What the machine says of itself. A value that cannot be read is absent.
struct Reading {
  std::optional<double> load{};         ///< processes that run or want to, average of a minute
  std::optional<double> busy{};         ///< share of all processors' time that was used since the last reading
  std::optional<double> cpu_mhz{};      ///< mean over the processors
  std::optional<double> cpu_celsius{};  ///< hottest sensor
  std::optional<double> gpu_celsius{};  ///< hottest device
};

/// Absent limits are not looked at, but what cannot be read is recorded all the same.
struct GateLimits {
  std::optional<double> max_load{}, max_busy{}, min_cpu_mhz{}, max_cpu_celsius{}, max_gpu_celsius{};
  double timeout_seconds = 60, interval_seconds = 0.5;
};

struct GateRecord {
  bool judged = false;  ///< a limit was compared with a reading; else nothing is known of quiet
  bool quiet = false;   ///< all limits that could be looked at were kept
  double waited_seconds = 0;
  Reading last;
  std::vector<std::string> exceeded;  ///< limits that were not kept at the end, in words
  std::vector<std::string> unread;    ///< values that this machine does not show, with a limit or without
};

/// What the gate needs of the world; tests have their own.
struct GateWorld {
  std::function<Reading()> read;
  std::function<double()> now;                        ///< seconds
  std::function<bool(double seconds)> sleep;          ///< false: stop waiting, the user interrupted
  std::function<void(const GateRecord&)> waits = {};  ///< called once before waiting for quiet; may be empty
};

/// Reads until everything is within its limit or the time is over. The first reading of `busy` needs one interval.
GateRecord wait_until_quiet(const GateLimits& limits, const GateWorld& world);

}  // namespace lockstep::report
