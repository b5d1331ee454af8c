// What Linux and NVML say about the machine. Everything may be absent: containers and virtual machines hide a lot.
#pragma once

#include <sys/types.h>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "base/json.hpp"
#include "report/gate.hpp"

namespace lockstep::report {

/// Readings for the quiet gate.
class MachineReader {
 public:
  /// `root` replaces / in tests. NVML (libnvidia-ml.so.1) is loaded here if it is installed.
  explicit MachineReader(std::filesystem::path root = "/");
  MachineReader(const MachineReader&) = delete;
  MachineReader& operator=(const MachineReader&) = delete;
  ~MachineReader();

  Reading read();

 private:
  class Nvml;
  std::optional<double> busy();
  std::filesystem::path root_;
  std::unique_ptr<Nvml> nvml_;
  std::uint64_t used_ = 0, total_ = 0;  ///< of the last look at /proc/stat
  bool looked_ = false;
};

/// Processor, system, processors that may be used, memory.
[[nodiscard]] OrderedJson describe_machine();

/// The caller's LOCKSTEP_* variables, which all windows get too, by name; without LOCKSTEP_API_KEY.
[[nodiscard]] OrderedJson lockstep_environment();

/// "2026-11-30T01:02:03Z".
[[nodiscard]] std::string now_utc();

/// Highest resident memory of a process since reset_peak_memory(), in bytes.
[[nodiscard]] std::optional<std::uint64_t> peak_memory(pid_t process);
/// Starts a new highest value where the kernel allows it.
void reset_peak_memory(pid_t process);

}  // namespace lockstep::report
