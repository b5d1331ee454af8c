#include "report/gate.hpp"

#include <fmt/format.h>

namespace lockstep::report {
namespace {

struct Check {
  const char* name;
  std::optional<double> limit, value;
  bool at_least, two_readings = false;
};

std::vector<Check> checks(const GateLimits& limits, const Reading& reading) {
  return {{"load average", limits.max_load, reading.load, false},
          {"share of busy processors", limits.max_busy, reading.busy, false, true},
          {"processor frequency (MHz)", limits.min_cpu_mhz, reading.cpu_mhz, true},
          {"processor temperature (C)", limits.max_cpu_celsius, reading.cpu_celsius, false},
          {"GPU temperature (C)", limits.max_gpu_celsius, reading.gpu_celsius, false}};
}

void judge(const GateLimits& limits, const Reading& reading, GateRecord& record) {
  record.last = reading;
  record.exceeded.clear();
  record.unread.clear();
  record.judged = false;
  for (const Check& check : checks(limits, reading)) {
    if (!check.value) {
      // A share of time needs two readings; without a limit for it nobody waits for the second.
      if (check.limit || !check.two_readings) record.unread.emplace_back(check.name);
      continue;
    }
    if (!check.limit) continue;
    record.judged = true;
    if (check.at_least ? *check.value < *check.limit : *check.value > *check.limit) {
      record.exceeded.push_back(fmt::format("{} {:.2f}, limit {:.2f}", check.name, *check.value, *check.limit));
    }
  }
  record.quiet = record.exceeded.empty();
}

}  // namespace

GateRecord wait_until_quiet(const GateLimits& limits, const GateWorld& world) {
  GateRecord record;
  const double begin = world.now();
  Reading reading = world.read();
  // What happened before the first reading is not this sample's: `busy` wants an interval of its own.
  if (limits.max_busy && world.sleep(limits.interval_seconds)) reading = world.read();
  judge(limits, reading, record);
  if (!record.quiet && limits.timeout_seconds > 0 && world.waits) world.waits(record);
  while (!record.quiet && world.now() - begin < limits.timeout_seconds && world.sleep(limits.interval_seconds)) {
    judge(limits, world.read(), record);
  }
  record.waited_seconds = world.now() - begin;
  return record;
}

}  // namespace lockstep::report
