#include "backend/device.hpp"

#include <charconv>

#include "backend/cuda/cuda_backend.hpp"

namespace lockstep::backend {

Result<DeviceChoice> parse_device(std::string_view text) {
  if (text == "cpu") return DeviceChoice{};
  if (text == "cuda") return DeviceChoice{true, 0};
  constexpr std::string_view kPrefix = "cuda:";
  if (text.starts_with(kPrefix)) {
    const std::string_view number = text.substr(kPrefix.size());
    int index = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
    if (error == std::errc() && end == number.data() + number.size() && index >= 0) return DeviceChoice{true, index};
  }
  return fail(ErrorKind::Usage, "unknown device '{}': use cpu, cuda or cuda:N", text);
}

Status check_table_place(const DeviceChoice& choice, NgramMode mode) {
  if (choice.cuda || !device_only(mode)) return {};
  return fail(ErrorKind::Usage, "--ple {}: the processor has no such memory; use --device cuda, or --ple resident",
              ngram_mode_name(mode));
}

Result<std::unique_ptr<Backend>> create_backend(const DeviceChoice& choice, const CpuOptions& cpu) {
  if (!choice.cuda) return LOCKSTEP_TRY(CpuBackend::create(cpu));
  if (cpu.unquantised_activations) {
    return fail(ErrorKind::Usage, "unquantised activations are an oracle of the processor: use --device cpu");
  }
  CudaOptions options;
  options.device = choice.index;
  options.ngram = cpu.ngram;
  return create_cuda_backend(options);
}

}  // namespace lockstep::backend
