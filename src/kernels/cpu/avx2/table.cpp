// The table for AVX2 and FMA: the scalar kernels compiled for it, with the matrix products of this folder.
#include "kernels/cpu/avx2/isa.hpp"
#include "kernels/cpu/tables.hpp"
#include "kernels/cpu/vector/delta_rule.hpp"
#include "kernels/cpu/vector/dense_linear.hpp"
#include "kernels/cpu/vector/integer_peak.hpp"
#include "kernels/cpu/vector/pack_blocks.hpp"
#include "kernels/cpu/vector/packed_linear.hpp"

namespace lockstep::kernels::avx2 {
namespace {

void dense_rows(const DenseMatrix& m, const float* x, std::int64_t x_rows, std::int64_t begin, std::int64_t end,
                float* out, std::int64_t out_stride) {
  if (m.type == ElementType::BF16) return vector::dense_rows_bf16<Isa>(m, x, x_rows, begin, end, out, out_stride);
  scalar_v3::table().dense_rows(m, x, x_rows, begin, end, out, out_stride);
}

void delta_step(const DeltaStep& step) {
  if (vector::delta_shape(step, 16 * Isa::kDeltaRegisters)) return vector::delta_step<Isa>(step);
  scalar_v3::table().delta_step(step);
}

}  // namespace

const Kernels& table() {
  static const Kernels kernels = [] {
    Kernels built = scalar_v3::table();
    built.name = "avx2";
    built.pack_blocks = vector::pack_blocks<Isa>;
    built.packed_rows = vector::packed_rows<Isa>;
    built.integer_peak = vector::integer_peak<Isa>;
    built.dense_rows = dense_rows;
    built.delta_step = delta_step;
    return built;
  }();
  return kernels;
}

}  // namespace lockstep::kernels::avx2
