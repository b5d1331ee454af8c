// Which kernel tables this machine can run.
#include "kernels/cpu/kernels.hpp"

namespace lockstep::kernels {

namespace scalar {
const Kernels& table();
}
namespace scalar_v3 {
const Kernels& table();
}

const std::vector<const Kernels*>& available_kernels() {
  static const std::vector<const Kernels*> tables = [] {
    std::vector<const Kernels*> found;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(&scalar_v3::table());
    found.push_back(&scalar::table());
    return found;
  }();
  return tables;
}

const Kernels* find_kernels(std::string_view name) {
  for (const Kernels* table : available_kernels()) {
    if (table->name == name) return table;
  }
  return nullptr;
}

}  // namespace lockstep::kernels
