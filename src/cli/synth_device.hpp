// Synthetic weights in a device's memory, checked against the processor's.
#pragma once

#include <cstdint>
#include <string>

#include "backend/device.hpp"
#include "cli/in_memory.hpp"

namespace lockstep::cli {

struct DeviceSynth {
  std::string device_name;
  std::size_t matrices = 0;
  std::uint64_t stored_bytes = 0, device_bytes = 0;  ///< as files hold them, and in the layout of the kernels
  double seconds = 0;                                ///< for all matrices, allocation and layout included
  std::size_t rows_checked = 0;
  double check_seconds = 0;
};

/// Makes every matrix of the model on a CUDA device, the draft layer's too, then reads rows of each back, picked by the
/// model's seed, and compares them with what the processor makes of the same numbers. The n-gram table, which the
/// processor keeps, is not made. Errors: Usage, those of opening the device, Limit when it does not fit (unless
/// `force`), Cancelled, Internal naming the first row that differs.
Result<DeviceSynth> synth_on_device(const InMemoryModel& model, const backend::DeviceChoice& device,
                                    std::size_t threads, bool force);

}  // namespace lockstep::cli
