#include "server/faults.hpp"

#include <fmt/format.h>

namespace lockstep::server {

std::vector<std::string> FaultReporter::look(const std::vector<DiskFault>& faults, Clock::time_point now) {
  constexpr std::chrono::seconds kBetween{60};
  std::vector<std::string> lines;
  for (const DiskFault& fault : faults) {
    if (fault.count == 0) continue;
    auto [entry, first] = reported_.try_emplace(fault.part);
    Reported& reported = entry->second;
    if (fault.count == reported.count || (!first && now - reported.when < kBetween)) continue;
    const std::uint64_t more = fault.count - reported.count;
    lines.push_back(more == 1 ? fault.last : fmt::format("{} ({} errors since the last such line)", fault.last, more));
    reported = {fault.count, now};
  }
  return lines;
}

}  // namespace lockstep::server
