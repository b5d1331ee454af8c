// The table of a vector instruction set: scalar kernels compiled for it, with the kernels of this folder in place of
// those that the compiler does not vectorise well.
#pragma once

#include "kernels/cpu/tables.hpp"
#include "kernels/cpu/vector/attention.hpp"
#include "kernels/cpu/vector/delta_rule.hpp"
#include "kernels/cpu/vector/dense_linear.hpp"
#include "kernels/cpu/vector/index_scores.hpp"
#include "kernels/cpu/vector/integer_peak.hpp"
#include "kernels/cpu/vector/pack_blocks.hpp"
#include "kernels/cpu/vector/packed_linear.hpp"

namespace lockstep::kernels::vector {

/// `Isa` is the instruction set (isa.hpp beside the table), `kScalar` the table of scalar kernels compiled for it,
/// which serves what has no vector kernel.
template <class Isa, const Kernels& (*kScalar)()>
struct Table {
  static void dense_rows(const DenseMatrix& m, const float* x, std::int64_t x_rows, std::int64_t begin,
                         std::int64_t end, float* out, std::int64_t out_stride) {
    if (m.type == ElementType::BF16) return dense_rows_bf16<Isa>(m, x, x_rows, begin, end, out, out_stride);
    kScalar().dense_rows(m, x, x_rows, begin, end, out, out_stride);
  }

  static void delta_step(const DeltaStep& step) {
    if (delta_shape(step, 16 * Isa::kDeltaRegisters)) return vector::delta_step<Isa>(step);
    kScalar().delta_step(step);
  }

  static void index_scores(const PagedKeys& keys, const float* q, std::int64_t heads, std::int64_t begin,
                           std::int64_t end, float* scores) {
    if (scored_shape(keys)) return vector::index_scores<Isa>(keys, q, heads, begin, end, scores);
    kScalar().index_scores(keys, q, heads, begin, end, scores);
  }

  static void attend(const PagedKeys& keys, std::int64_t kv_head, const float* q, std::int64_t heads,
                     const std::int32_t* positions, std::int64_t count, float* out, float* scratch) {
    if (attended_shape(keys)) return vector::attend<Isa>(keys, kv_head, q, heads, positions, count, out, scratch);
    kScalar().attend(keys, kv_head, q, heads, positions, count, out, scratch);
  }

  static Kernels build(const char* name) {
    Kernels built = kScalar();
    built.name = name;
    built.share_work = 1 << 19;
    built.pack_blocks = vector::pack_blocks<Isa>;
    built.packed_rows = vector::packed_rows<Isa>;
    built.integer_peak = vector::integer_peak<Isa>;
    built.dense_rows = dense_rows;
    built.delta_step = delta_step;
    built.index_scores = index_scores;
    built.attend = attend;
    return built;
  }
};

}  // namespace lockstep::kernels::vector
