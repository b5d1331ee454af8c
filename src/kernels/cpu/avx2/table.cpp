// The table for AVX2 and FMA.
#include "kernels/cpu/vector/table.hpp"
#include "kernels/cpu/avx2/isa.hpp"

namespace lockstep::kernels::avx2 {

const Kernels& table() {
  static const Kernels kernels = vector::Table<Isa, scalar_v3::table>::build("avx2");
  return kernels;
}

}  // namespace lockstep::kernels::avx2
