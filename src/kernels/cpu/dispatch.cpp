// Which kernel tables this machine can run.
#include "kernels/cpu/tables.hpp"

namespace lockstep::kernels {
namespace {

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("bmi2");
}

bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

}  // namespace

const std::vector<const Kernels*>& available_kernels() {
  static const std::vector<const Kernels*> tables = [] {
    std::vector<const Kernels*> found;
    if (has_avx2() && has_avx512()) found.push_back(&avx512::table());
    if (has_avx2()) {
      found.push_back(&avx2::table());
      found.push_back(&scalar_v3::table());
    }
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
