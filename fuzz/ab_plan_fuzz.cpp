// --arm, --order and --seeds of `lockstep ab`: the first byte decides which.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "report/plan.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace lockstep::report;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0: {
      const auto arm = parse_arm(text);
      if (arm && arm->name.empty()) __builtin_trap();
      break;
    }
    case 1: {
      const std::vector<Arm> arms{{"a", {}, {}}, {"b-x", {}, {}}, {"c", {}, {}}};
      const auto windows = parse_order(text, arms);
      if (!windows) break;
      if (windows->size() > kMaxWindows) __builtin_trap();
      for (const Window& window : *windows) {
        if (window.arm >= arms.size()) __builtin_trap();
      }
      break;
    }
    default: {
      const auto seeds = parse_seeds(text);
      if (seeds && (seeds->empty() || seeds->size() > kMaxSeeds)) __builtin_trap();
    }
  }
  return 0;
}
