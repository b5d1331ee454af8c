// Queries, keys and index keys of new rows on CUDA: norm, rotation, and the store into pages.
#include "kernels/cuda/attention_store.cuh"

namespace lockstep::kernels::cuda {
namespace {

/// One warp per vector of a row (store_item()).
__global__ void store_kernel(StoreParams p) {
  trigger_next_grid();
  extern __shared__ float lines[];
  const int item = warp_item();
  if (item >= p.rows * items_of_row(p)) {
    wait_previous_grid();
    return;
  }
  const int most = p.shape.dim > p.shape.index_dim ? p.shape.dim : p.shape.index_dim;
  store_item(p, item, lines + static_cast<int>(threadIdx.x) / 32 * most);
}

/// For runs so long that a row of store_kernel would overwrite what another one reads: afterwards, the newest raw keys
/// of every run.
/// Blocks are places of the ring and runs.
__global__ void ring_kernel(StoreParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const AttentionShape& s = p.shape;
  const AttentionRun& run = p.runs[blockIdx.y];
  const int back = static_cast<int>(blockIdx.x);  // 0 is the newest row
  if (back >= run.rows) return;
  const std::int64_t in_run = run.rows - 1 - back;
  const std::int64_t position = *run.position + in_run;
  keep_raw(s, run, raw_of(p, run.first_row + in_run), position, static_cast<int>(threadIdx.x),
           static_cast<int>(blockDim.x));
}

}  // namespace

StoreParams take_store(std::span<const AttentionRun>& runs, const AttentionShape& shape,
                       const AttentionWeightVectors& weights, const AttentionInput& input, float* q, float* index_q) {
  StoreParams p{};
  take_runs(runs, p);
  p.shape = shape;
  p.weights = weights;
  p.input = input;
  p.q = q;
  p.index_q = index_q;
  // Rows read places of at most ratio - 1 positions before the run; later rows reach those again after a whole ring.
  p.with_ring = true;
  for (int i = 0; i < p.count; ++i) p.with_ring = p.with_ring && p.runs[i].rows <= shape.ring - shape.ratio;
  return p;
}

void store_keys(Queue& queue, std::span<const AttentionRun> runs, const AttentionShape& shape,
                const AttentionWeightVectors& weights, const AttentionInput& input, float* q, float* index_q) {
  while (!runs.empty()) {
    const StoreParams p = take_store(runs, shape, weights, input, q, index_q);
    const int per_row =
        shape.kv_heads + 1 + (q == nullptr ? 0 : shape.heads) + (index_q == nullptr ? 0 : shape.index_heads);
    const int line = shape.dim > shape.index_dim ? shape.dim : shape.index_dim;
    launch_warps(queue, store_kernel, static_cast<std::int64_t>(p.rows) * per_row, p,
                 static_cast<std::size_t>(kWarps * line) * sizeof(float));
    if (p.with_ring) continue;
    launch(queue, ring_kernel, {static_cast<unsigned>(shape.ring), static_cast<unsigned>(p.count), 1}, {128, 1, 1}, 0,
           p);
  }
}

}  // namespace lockstep::kernels::cuda
