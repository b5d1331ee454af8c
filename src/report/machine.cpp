#include "report/machine.hpp"

#include <dlfcn.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <fstream>
#include <map>
#include <sstream>
#include <vector>

#include "base/printable.hpp"
#include "base/thread_pool.hpp"

namespace lockstep::report {
namespace {

namespace fs = std::filesystem;

/// The first number of a small file.
std::optional<double> number_in(const fs::path& path) {
  std::ifstream file(path);
  double value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

/// Values of NAME in the folders DIRECTORY/PREFIX*, sub-folder `inner` included.
std::vector<double> numbers_in(const fs::path& directory, const std::string& prefix, const fs::path& name) {
  std::vector<double> out;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, ignored)) {
    if (!entry.path().filename().string().starts_with(prefix)) continue;
    if (const auto value = number_in(entry.path() / name)) out.push_back(*value);
  }
  return out;
}

std::optional<double> frequency(const fs::path& root) {
  const std::vector<double> values = numbers_in(root / "sys/devices/system/cpu", "cpu", "cpufreq/scaling_cur_freq");
  if (values.empty()) return std::nullopt;
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size()) / 1000;
}

std::optional<double> temperature(const fs::path& root) {
  const std::vector<double> values = numbers_in(root / "sys/class/thermal", "thermal_zone", "temp");
  if (values.empty()) return std::nullopt;
  return *std::ranges::max_element(values) / 1000;
}

std::string value_after_colon(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t at = line.find_first_not_of(" \t:", key.size());
    return at == std::string::npos ? "" : line.substr(at);
  }
  return "";
}

std::optional<std::uint64_t> kilobytes(const fs::path& path, std::string_view key) {
  const std::string text = value_after_colon(path, key);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value * 1024;
}

}  // namespace

/// The four functions of NVIDIA's management library that a temperature needs (nvml.h).
class MachineReader::Nvml {
 public:
  static std::unique_ptr<Nvml> open() {
    void* library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    std::unique_ptr<Nvml> nvml(new Nvml(library));
    return nvml->usable() ? std::move(nvml) : nullptr;
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (started_ && shutdown_ != nullptr) shutdown_();
    ::dlclose(library_);
  }

  [[nodiscard]] std::optional<double> hottest() const {
    unsigned count = 0;
    if (count_(&count) != 0) return std::nullopt;
    std::optional<double> out;
    for (unsigned i = 0; i < count; ++i) {
      void* device = nullptr;
      unsigned celsius = 0;
      constexpr int kSensorGpu = 0;
      if (handle_(i, &device) != 0 || temperature_(device, kSensorGpu, &celsius) != 0) continue;
      out = std::max(out.value_or(0), static_cast<double>(celsius));
    }
    return out;
  }

 private:
  explicit Nvml(void* library) : library_(library) {
    load("nvmlInit_v2", init_);
    load("nvmlShutdown", shutdown_);
    load("nvmlDeviceGetCount_v2", count_);
    load("nvmlDeviceGetHandleByIndex_v2", handle_);
    load("nvmlDeviceGetTemperature", temperature_);
  }
  template <class Function>
  void load(const char* name, Function& function) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
  }
  bool usable() {
    if (init_ == nullptr || count_ == nullptr || handle_ == nullptr || temperature_ == nullptr) return false;
    started_ = init_() == 0;
    return started_;
  }

  void* library_;
  bool started_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
  int (*count_)(unsigned*) = nullptr;
  int (*handle_)(unsigned, void**) = nullptr;
  int (*temperature_)(void*, int, unsigned*) = nullptr;
};

MachineReader::MachineReader(fs::path root) : root_(std::move(root)) {
  if (root_ == "/") nvml_ = Nvml::open();
}

MachineReader::~MachineReader() = default;

std::optional<double> MachineReader::busy() {
  std::ifstream file(root_ / "proc/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream words(line);
  std::string name;
  words >> name;
  if (name != "cpu") return std::nullopt;
  // user nice system idle iowait irq softirq steal; guest time is inside user time.
  std::uint64_t total = 0;
  std::uint64_t idle = 0;
  std::uint64_t value = 0;
  for (int i = 0; i < 8 && words >> value; ++i) {
    total += value;
    if (i == 3 || i == 4) idle += value;
  }
  const std::uint64_t used = total - idle;
  const bool known = looked_ && total > total_;
  // The kernel's counts of idle time may go back by a little.
  const std::uint64_t more = known && used > used_ ? std::min(used - used_, total - total_) : 0;
  const double share = known ? static_cast<double>(more) / static_cast<double>(total - total_) : 0;
  looked_ = true;
  used_ = used;
  total_ = total;
  return known ? std::optional(share) : std::nullopt;
}

Reading MachineReader::read() {
  Reading reading;
  reading.load = number_in(root_ / "proc/loadavg");
  reading.busy = busy();
  reading.cpu_mhz = frequency(root_);
  reading.cpu_celsius = temperature(root_);
  if (nvml_) reading.gpu_celsius = nvml_->hottest();
  return reading;
}

OrderedJson describe_machine() {
  utsname system{};
  ::uname(&system);
  const std::string processor = value_after_colon("/proc/cpuinfo", "model name");
  OrderedJson out;
  out["processor"] = processor.empty() ? "unknown" : processor;
  out["system"] = fmt::format("{} {}", system.sysname, system.release);
  out["processors"] = usable_processors();
  if (const auto bytes = kilobytes("/proc/meminfo", "MemTotal")) out["memory_bytes"] = *bytes;
  return out;
}

OrderedJson lockstep_environment() {
  std::map<std::string, std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (!text.starts_with("LOCKSTEP_") || equals == std::string_view::npos) continue;
    const std::string_view name = text.substr(0, equals);
    if (name != "LOCKSTEP_API_KEY") found.emplace(printable(name), printable(text.substr(equals + 1)));
  }
  OrderedJson out = OrderedJson::object();
  for (const auto& [name, value] : found) out[name] = value;
  return out;
}

std::string now_utc() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::optional<std::uint64_t> peak_memory(pid_t process) {
  return kilobytes(fmt::format("/proc/{}/status", process), "VmHWM");
}

void reset_peak_memory(pid_t process) {
  constexpr char kResetPeak = '5';  // proc(5)
  std::ofstream(fmt::format("/proc/{}/clear_refs", process)) << kResetPeak;
}

}  // namespace lockstep::report
