// How many threads are worth starting.
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "base/thread_pool.hpp"

namespace lockstep {
namespace {

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

bool affinity(cpu_set_t& allowed) {
  CPU_ZERO(&allowed);
  return ::sched_getaffinity(0, sizeof(allowed), &allowed) == 0;
}

/// `count`, but at least 1 and at most what the control group grants.
std::size_t within_quota(std::size_t count) {
  count = std::max<std::size_t>(1, count);
  const std::size_t quota = quota_processors(first_line("/sys/fs/cgroup/cpu.max"));
  return quota != 0 ? std::min(count, quota) : count;
}

/// Physical cores in the affinity mask: processors with the same list of siblings are hyper-threads of one core.
std::size_t cores_in_mask() {
  cpu_set_t allowed;
  if (!affinity(allowed)) return std::thread::hardware_concurrency();
  std::set<std::string> cores;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(static_cast<unsigned>(cpu), &allowed)) continue;
    const std::string number = std::to_string(cpu);
    const std::string siblings = first_line("/sys/devices/system/cpu/cpu" + number + "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? "cpu" + number : siblings);
  }
  return cores.size();
}

}  // namespace

std::size_t quota_processors(const std::string& text) {
  std::istringstream fields(text);
  long long quota = 0;
  long long period = 0;
  if (!(fields >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return static_cast<std::size_t>((quota - 1) / period + 1);
}

std::size_t physical_cores() {
  return within_quota(cores_in_mask());
}

std::size_t usable_processors() {
  cpu_set_t allowed;
  return within_quota(affinity(allowed) ? static_cast<std::size_t>(CPU_COUNT(&allowed))
                                        : std::thread::hardware_concurrency());
}

}  // namespace lockstep
