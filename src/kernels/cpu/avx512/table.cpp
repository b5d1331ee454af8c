// The table for AVX-512 with VNNI.
#include "kernels/cpu/vector/table.hpp"
#include "kernels/cpu/avx512/isa.hpp"

namespace lockstep::kernels::avx512 {

const Kernels& table() {
  static const Kernels kernels = vector::Table<Isa, scalar_v4::table>::build("avx512");
  return kernels;
}

}  // namespace lockstep::kernels::avx512
