// Which kernel tables this machine can run.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

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

/// Whether the processor has 8-bit matrix tiles and the system lets this process use them: it has to be asked, before
/// any thread does.
bool has_amx() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  constexpr unsigned kTiles = 1U << 24;
  constexpr unsigned kInt8 = 1U << 25;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kTiles) == 0 || (d & kInt8) == 0) return false;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return ::syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

const std::vector<const Kernels*>& available_kernels() {
  static const std::vector<const Kernels*> tables = [] {
    std::vector<const Kernels*> found;
    if (has_avx2() && has_avx512() && has_amx()) found.push_back(&amx::table());
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
