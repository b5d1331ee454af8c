// Norms, hyper-connections, the n-gram gate and the mixture of experts on CUDA. Shapes are those of the scalar kernels
// (kernels/cpu/kernels.hpp), with a row dimension in front.
#pragma once

#include <cstdint>

#include "kernels/cuda/few.hpp"
#include "kernels/cuda/linear.hpp"
#include "kernels/cuda/queue.hpp"

namespace lockstep::kernels::cuda {

/// Every row [groups * size] gets the same weight [groups * size]. `out` may be `x`.
void rms_norm(Queue& queue, const float* x, const float* weight, std::int64_t rows, std::int64_t groups,
              std::int64_t size, float eps, float* out);
/// Also turns raw injection values, where given, into weights, the divisor being the number of streams.
void silu_divided(Queue& queue, float* x, std::int64_t n, float divisor, float* inject, std::int64_t injections);
/// u [rows, hidden].
void gated_mean(Queue& queue, const float* gate, const float* n, std::int64_t rows, std::int64_t streams,
                std::int64_t hidden, float* u);
void inject(Queue& queue, float* x, const float* weights, const float* y, std::int64_t rows, std::int64_t streams,
            std::int64_t hidden);
/// When the last thing submitted is inject() or combine() into these rows x: one kernel does that and the norm of its
/// result, which x is then not read for. False when there is nothing to join.
bool norm_written(Queue& queue, const float* x, const float* weight, std::int64_t rows, std::int64_t groups,
                  std::int64_t size, float eps, float* out);
void ple_gate(Queue& queue, const float* key, const float* query, const float* value, std::int64_t rows,
              std::int64_t streams, std::int64_t hidden, float* gated);
/// x += a + b.
void add_sum(Queue& queue, float* x, const float* a, const float* b, std::int64_t n);
/// x [rows, streams, hidden] += y [rows, hidden].
void add_streams(Queue& queue, float* x, const float* y, std::int64_t rows, std::int64_t streams, std::int64_t hidden);

/// Pairs (row, rank) sorted by expert: order[i] is the pair at place i, rows_of[i] its row. `runs` holds at most
/// min(experts, pairs) entries.
struct PairLists {
  std::int32_t *order = nullptr, *rows_of = nullptr;
  ExpertRun* runs = nullptr;
  std::int32_t* run_count = nullptr;
};

/// Softmax, selection and renormalisation of router logits [rows, n]: chosen and weights [rows, ranks], and their
/// lists.
void route(Queue& queue, const float* logits, std::int64_t rows, std::int64_t n, std::int64_t ranks,
           std::int32_t* chosen, float* weights, const PairLists& lists, const SideProduct* side);
void silu_product(Queue& queue, const float* gate, const float* up, std::int64_t n, float* out);
/// The lists of chosen experts [pairs], of which `ranks` belong to a row.
void sort_pairs(Queue& queue, const std::int32_t* chosen, std::int64_t pairs, std::int64_t ranks, std::int64_t experts,
                const PairLists& lists);
/// outputs [rows, ranks, hidden], shared [rows, hidden], shared_logit [rows]. The sum goes to the tail's x where it has
/// one, else to its y.
void combine(Queue& queue, const float* outputs, const float* weights, const float* shared, const float* shared_logit,
             std::int64_t rows, std::int64_t ranks, std::int64_t hidden, const Tail& tail);

}  // namespace lockstep::kernels::cuda
