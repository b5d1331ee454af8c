// The device that a command runs on, as the user names it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "backend/cpu/cpu_backend.hpp"

namespace lockstep::backend {

struct DeviceChoice {
  bool cuda = false;
  int index = 0;  ///< of CUDA devices

  [[nodiscard]] std::string text() const { return cuda ? fmt::format("cuda:{}", index) : "cpu"; }
};

/// "cpu", "cuda" (the first device) or "cuda:N". Error: Usage.
Result<DeviceChoice> parse_device(std::string_view text);

/// Refuses a place of the n-gram table that the device does not have. Error: Usage.
Status check_table_place(const DeviceChoice& choice, NgramMode mode);

/// Prompt rows of a step when nothing else is asked for: a device reads its weights once for so many more.
[[nodiscard]] constexpr std::int64_t prompt_chunk(const DeviceChoice& choice) {
  return choice.cuda ? 4096 : 256;
}

/// The backend of the choice. `cpu` also holds what both use (the n-gram table) and what only the processor can do.
/// Errors: those of the backends; Usage for unquantised activations on CUDA.
Result<std::unique_ptr<Backend>> create_backend(const DeviceChoice& choice, const CpuOptions& cpu);

}  // namespace lockstep::backend
