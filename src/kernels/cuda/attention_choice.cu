// Few rows: the scores of their groups and the choice among them, on CUDA. In short contexts one kernel does all
// between the projections and attention itself: a cluster of blocks scores and chooses for a row while other clusters
// store the rows' vectors. In long ones all multiprocessors score, then a cluster chooses.
#include <algorithm>

#include "kernels/cuda/attention_select.cuh"
#include "kernels/cuda/attention_store.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kHeads = 4;  ///< index heads
constexpr int kDim = 128;  ///< of an index key
constexpr int kRatio = 4;  ///< positions of a group
constexpr int kPerPage = kPage / kRatio;
constexpr int kSweep = 8;            ///< groups that a warp scores at once
constexpr int kFusedGroups = 8192;   ///< of a row that one kernel serves
constexpr int kFusedAlone = 4096;    ///< of a single row: more are scored sooner by all multiprocessors
constexpr int kLongKeys = 8192;      ///< of a block
constexpr int kSelectRows = 64;      ///< from so many rows on a block has a row alone
constexpr int kRowKeys = 32 * 1024;  ///< of such a block
constexpr int kNewGroups = 2;        ///< that a run of at most 8 rows completes for one of its rows
constexpr int kMostFused = 16;       ///< rows
constexpr int kStoredDim = 256;      ///< most elements of a vector that choose_kernel stores

/// Index keys of a warp's kSweep groups on their way through shared memory.
using Stage = std::uint16_t[kSweep][kDim];
constexpr int kFusedStages = 3;  ///< of a warp that are under way together
constexpr int kStages = 4;

/// Starts the copies of kSweep groups from `first` on, a multiple of kSweep: they are on one page. Groups from `end` on
/// need not exist. kOnce: not worth a place in the second-level cache.
template <bool kOnce>
__device__ __forceinline__ void fetch_sweep(Stage& stage, const AttentionShape& s, const AttentionRun& run, int first,
                                            int end, int lane) {
  if (first < end) {
    const std::byte* from =
        run.pages[first / kPerPage] + run.layer_offset + s.index_offset + first % kPerPage * (kDim * 2) + lane * 16;
    auto* to = reinterpret_cast<std::byte*>(stage) + lane * 16;
#pragma unroll
    for (int i = 0; i < kSweep / 2; ++i) {
      if constexpr (kOnce) {
        copy_once_soon(to + 512 * i, from + 512 * i, once_policy());
      } else {
        copy_soon(to + 512 * i, from + 512 * i);
      }
    }
  }
  copies_made();
}

/// A lane's elements of a row's index queries: one of every 32, heads in an order of each lane's own (fold_permuted()).
struct QueryPart {
  float q[kHeads][kDim / 32];

  /// `query` [kHeads, kDim].
  __device__ __forceinline__ void load(const float* query, int lane) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) q[h][i] = query[(h ^ (lane % 4)) * kDim + 32 * i + lane];
    }
  }
};

/// The score of group lane / 4 of the stage.
__device__ __forceinline__ float score_sweep(const Stage& stage, const QueryPart& query, float scale, int lane) {
  static_assert(kSweep == 8 && kHeads == 4);
  float sums[32];  // [group][head], permuted
#pragma unroll
  for (int i = 0; i < 32; ++i) sums[i] = 0.0F;
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) {
#pragma unroll
    for (int j = 0; j < kSweep; ++j) {
      const float key = bf16_to_float(stage[j ^ (lane / 4)][32 * i + lane]);
#pragma unroll
      for (int h = 0; h < kHeads; ++h) sums[j * kHeads + h] = canon_fma(query.q[h][i], key, sums[j * kHeads + h]);
    }
  }
  const float dot = fold_permuted(sums);             // of group lane / 4 and head lane % 4
  const float relu = dot > 0.0F ? dot : dot * 0.0F;  // keeps NaN
  float total = 0.0F;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) total += __shfl_sync(kAllLanes, relu, lane / 4 * 4 + h);
  return total * scale;
}

struct ChooseParams {
  StoreParams store;
  AttentionScratch scratch;
  std::int64_t row_blocks;  ///< blocks that choose; the others store
};

struct ChooseShared {
  union {
    Stage stages[kSelectWarps][kFusedStages];
    SelectShared select;  ///< once all scores are there
  };
  float query[kHeads * kDim];
  std::uint16_t new_keys[kNewGroups][kDim];
  float lines[kNewGroups][kDim];
  alignas(16) unsigned keys[kFusedGroups];  ///< of the row, in the cluster's first block
};

struct SelectKeysShared {
  SelectShared select;
  alignas(16) unsigned keys[kLongKeys];
};

struct SelectRowShared {
  SelectShared select;
  alignas(16) unsigned keys[kRowKeys];  ///< as many as the row may have
};

__device__ __forceinline__ void list_group(std::int32_t* list, int ratio, int group, int place) {
  if (ratio == 4) {
    reinterpret_cast<int4*>(list)[place] = make_int4(group * 4, group * 4 + 1, group * 4 + 2, group * 4 + 3);
  } else {
#pragma unroll 1
    for (int i = 0; i < ratio; ++i) list[place * ratio + i] = group * ratio + i;
  }
}

/// What a row attends to: its groups, how many positions follow them, and where they are listed.
struct RowList {
  int groups, tail;
  std::int32_t *list, *count;

  __device__ __forceinline__ RowList(const AttentionShape& s, const AttentionScratch& scratch, int in_piece,
                                     std::int64_t position)
      : groups(static_cast<int>(static_cast<unsigned>(position + 1) / static_cast<unsigned>(s.ratio))),
        tail(static_cast<int>(position + 1 - static_cast<std::int64_t>(groups) * s.ratio)),
        list(scratch.positions + static_cast<std::int64_t>(in_piece) * s.width()),
        count(scratch.counts + in_piece) {}
  /// The list where all groups are attended to; by `blocks` blocks, of which this is number `block`.
  __device__ __forceinline__ void list_all(int ratio, int block, int blocks) const {
    const int all = groups * ratio + tail;
    const int thread = block * kSelectThreads + static_cast<int>(threadIdx.x);
#pragma unroll 1
    for (int i = thread; i < all; i += blocks * kSelectThreads) list[i] = i;
    if (thread == 0) *count = all;
  }
  /// What follows the chosen groups; by one block.
  __device__ __forceinline__ void list_tail(const AttentionShape& s) const {
    const int thread = static_cast<int>(threadIdx.x);
    const int all = s.budget * s.ratio;
    if (thread < tail) list[all + thread] = groups * s.ratio + thread;
    if (thread == 0) *count = all + tail;
  }
};

/// Clusters of the first row_blocks blocks: scores and choice of one row each. The others: vectors of the rows, one a
/// warp.
__global__ void LOCKSTEP_CLUSTER(kCluster) __launch_bounds__(kSelectThreads) choose_kernel(ChooseParams p) {
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<ChooseShared*>(memory);
  trigger_next_grid();
  const StoreParams& store = p.store;
  const AttentionShape& s = store.shape;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  if (blockIdx.x >= p.row_blocks) {
    const int blocks = static_cast<int>(gridDim.x) - static_cast<int>(p.row_blocks);
    const int item = warp * blocks + static_cast<int>(blockIdx.x) - static_cast<int>(p.row_blocks);
    if (item < store.rows * items_of_row(store)) {
      store_item(store, item, reinterpret_cast<float*>(memory) + warp * kStoredDim);
    } else {
      wait_previous_grid();
    }
    return;
  }
  cluster_arrive();
  const int in_piece = static_cast<int>(blockIdx.x) / kCluster;
  const bool of_query = warp < kHeads;
  const NormWeights weights(of_query ? store.weights.index_q_norm : store.weights.index_k_norm,
                            warp < kHeads + kNewGroups ? kDim : 0, lane);
  wait_previous_grid();
  const int row = store.first_row + in_piece;
  const RowPlace place = place_row(store, row);
  float values[kNormedAtOnce];
  if (of_query) {
    load_values(values, store.input.index_qk + (static_cast<std::int64_t>(row) * (kHeads + 1) + warp) * kDim, kDim,
                shared.query + warp * kDim, lane);
  }
  const RowList list(s, p.scratch, in_piece, place.position);
  if (list.groups <= s.budget) {
    cluster_wait();
    list.list_all(kRatio, cluster_rank(), kCluster);
    return;
  }
  // The block's groups, in sweeps of all its warps.
  constexpr int kBlockSweep = kSelectWarps * kSweep;
  const int sweeps = (list.groups + kCluster * kBlockSweep - 1) / (kCluster * kBlockSweep);
  const int begin = cluster_rank() * sweeps * kBlockSweep;
  const int end = begin + sweeps * kBlockSweep < list.groups ? begin + sweeps * kBlockSweep : list.groups;
  const std::int64_t run_start = place.position - place.in_run;
  const auto first_new = static_cast<int>(run_start / kRatio);  // groups that this launch stores
  const int first = begin + warp * kSweep;
  auto& stages = shared.stages[warp];
#pragma unroll 1
  for (int i = 0; i < kFusedStages - 1; ++i)
    fetch_sweep<false>(stages[i], s, *place.run, first + i * kBlockSweep, end, lane);
  const int new_group = first_new + warp - kHeads;
  const bool is_new = !of_query && warp < kHeads + kNewGroups && new_group >= begin && new_group < end;
  if (of_query || is_new) {
    float* line = of_query ? shared.query + warp * kDim : shared.lines[warp - kHeads];
    const std::int64_t position = of_query ? place.position : static_cast<std::int64_t>(new_group) * kRatio;
    if (is_new) load_means(values, store, *place.run, run_start, position, line, lane);
    norm_rope(s, values, weights, kDim, position, line, lane);
    if (is_new) {
      for (int i = lane; i < kDim; i += 32) shared.new_keys[warp - kHeads][i] = float_to_bf16(line[i]);
    }
  }
  __syncthreads();
  const float scale = canon_rsqrt(static_cast<float>(kDim));
  QueryPart query;
  query.load(shared.query, lane);
  cluster_wait();  // the first block has begun
  const unsigned gathered = remote(shared.keys, 0);
#pragma unroll 1
  for (int sweep = 0; sweep < sweeps; ++sweep) {
    const int next = sweep + kFusedStages - 1;
    fetch_sweep<false>(stages[next % kFusedStages], s, *place.run, first + next * kBlockSweep, next < sweeps ? end : 0,
                       lane);
    wait_copies<kFusedStages - 1>();
    __syncwarp();
    Stage& stage = stages[sweep % kFusedStages];
    const int g = first + sweep * kBlockSweep;
    if (g + kSweep > first_new && g < end) {  // the launch's own groups
      for (int n = first_new > g ? first_new : g; n < end && n < g + kSweep; ++n) {
        for (int i = lane; i < kDim; i += 32) stage[n - g][i] = shared.new_keys[n - first_new][i];
      }
      __syncwarp();
    }
    const float score = score_sweep(stage, query, scale, lane);
    const int own = g + lane / 4;
    if (lane % 4 == 0 && own < end) store_remote(gathered + static_cast<unsigned>(own) * 4, ordered_bits(score));
    __syncwarp();
  }
  cluster_arrive();
  cluster_wait();
  if (cluster_rank() != 0) return;
  empty_bins(shared.select.bins[0], thread, kSelectThreads);
  empty_bins(shared.select.bins[1], thread, kSelectThreads);
  const Keys keys(shared.keys, 0, list.groups, list.groups);
  const Choice choice = choose_own(shared.select, shared.keys, list.groups, static_cast<unsigned>(s.budget));
  list.list_tail(s);
  emit_keys<true>(shared.select, keys, choice, [&](int group, int at) { list_group(list.list, kRatio, group, at); });
}

/// The choice of one row a cluster, from its scores.
__global__ void LOCKSTEP_CLUSTER(kCluster) __launch_bounds__(kSelectThreads) select_cluster_kernel(AttendParams p) {
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<SelectKeysShared*>(memory);
  trigger_next_grid();
  const AttentionShape& s = p.shape;
  begin_select(shared.select);
  const int thread = static_cast<int>(threadIdx.x);
  const int in_piece = static_cast<int>(blockIdx.x) / kCluster;
  wait_previous_grid();
  const RowPlace place = place_row(p, p.first_row + in_piece);
  const RowList list(s, p.scratch, in_piece, place.position);
  if (list.groups <= s.budget) {
    cluster_wait();
    list.list_all(s.ratio, cluster_rank(), kCluster);
    return;
  }
  const float* scores = p.scratch.scores + in_piece * p.scratch.most_groups;
  // Four scores a thread at a time.
  constexpr int kWhole = 4 * kSelectThreads;
  const int size = (list.groups + kCluster * kWhole - 1) / (kCluster * kWhole) * kWhole;
  const int begin = cluster_rank() * size;
  const int end = begin + size < list.groups ? begin + size : list.groups;
  const auto* four = reinterpret_cast<const float4*>(scores + begin);
  float4 values[kLongKeys / kWhole];
#pragma unroll
  for (int i = 0; i < kLongKeys / kWhole; ++i) {
    const int at = thread + i * kSelectThreads;
    values[i] = begin + 4 * at < end ? four[at] : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
  }
#pragma unroll
  for (int i = 0; i < kLongKeys / kWhole; ++i) {
    const float4 v = values[i];
    reinterpret_cast<uint4*>(shared.keys)[thread + i * kSelectThreads] =
        make_uint4(ordered_bits(v.x), ordered_bits(v.y), ordered_bits(v.z), ordered_bits(v.w));
  }
  __syncthreads();
  const Keys keys(shared.keys, begin, end, size);
  cluster_wait();
  const Choice choice = choose_keys<false>(shared.select, keys, static_cast<unsigned>(s.budget));
  if (cluster_rank() == 0) list.list_tail(s);
  emit_keys<false>(shared.select, keys, choice, [&](int group, int at) { list_group(list.list, s.ratio, group, at); });
}

/// The choice of one row a block, from its scores: with many rows a cluster for each would have them wait in line.
__global__ void __launch_bounds__(kSelectThreads) select_rows_kernel(AttendParams p) {
  extern __shared__ uint4 memory[];
  auto& shared = reinterpret_cast<SelectRowShared*>(memory)->select;
  unsigned* keys = reinterpret_cast<SelectRowShared*>(memory)->keys;
  trigger_next_grid();
  const AttentionShape& s = p.shape;
  const int thread = static_cast<int>(threadIdx.x);
  const int in_piece = static_cast<int>(blockIdx.x);
  empty_bins(shared.bins[0], thread, kSelectThreads);
  empty_bins(shared.bins[1], thread, kSelectThreads);
  wait_previous_grid();
  const RowPlace place = place_row(p, p.first_row + in_piece);
  const RowList list(s, p.scratch, in_piece, place.position);
  if (list.groups <= s.budget) {
    list.list_all(s.ratio, 0, 1);
    return;
  }
  const auto* scores = reinterpret_cast<const float4*>(p.scratch.scores + in_piece * p.scratch.most_groups);
#pragma unroll 4
  for (int i = thread; i < (list.groups + 3) / 4; i += kSelectThreads) {
    const float4 v = scores[i];
    reinterpret_cast<uint4*>(keys)[i] =
        make_uint4(ordered_bits(v.x), ordered_bits(v.y), ordered_bits(v.z), ordered_bits(v.w));
  }
  __syncthreads();
  const Choice choice = choose_own(shared, keys, list.groups, static_cast<unsigned>(s.budget));
  list.list_tail(s);
  emit_keys<true>(shared, Keys(keys, 0, list.groups, list.groups), choice,
                  [&](int group, int at) { list_group(list.list, s.ratio, group, at); });
}

constexpr int kScoreThreads = 256;
constexpr int kScoreWarps = kScoreThreads / 32;
constexpr int kScoreRows = 16;
constexpr int kScoreBlocks = 2;  ///< of a multiprocessor

/// Scores of few rows: a warp has the keys of kSweep groups at a time and goes through the rows that see them. Blocks
/// share the groups.
__global__ void __launch_bounds__(kScoreThreads, kScoreBlocks) score_few_kernel(AttendParams p) {
  extern __shared__ uint4 memory[];
  trigger_next_grid();
  wait_previous_grid();
  const AttentionShape& s = p.shape;
  const int lane = lane_id();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  auto& stages = reinterpret_cast<Stage(*)[kStages]>(memory)[warp];
  const float scale = canon_rsqrt(static_cast<float>(kDim));
  const int stride = static_cast<int>(gridDim.x) * (kScoreWarps * kSweep);
  const int first = (static_cast<int>(blockIdx.x) * kScoreWarps + warp) * kSweep;
  QueryPart query;
  int loaded = -1;
#pragma unroll 1
  for (int r = 0; r < p.count; ++r) {
    const AttentionRun& run = p.runs[r];
    const int begin_row = run.first_row > p.first_row ? run.first_row : p.first_row;
    const int end_row =
        run.first_row + run.rows < p.first_row + p.rows ? run.first_row + run.rows : p.first_row + p.rows;
    if (begin_row >= end_row) continue;
    const auto run_start = static_cast<int>(*run.position);
    // Groups of the run's last row of the piece; all exist, the store is done.
    const int all = (run_start + end_row - run.first_row) / kRatio;
    if (all <= s.budget) continue;
#pragma unroll 1
    for (int i = 0; i < kStages - 1; ++i) fetch_sweep<true>(stages[i], s, run, first + i * stride, all, lane);
    int at = 0;
#pragma unroll 1
    for (int g = first; g < all; g += stride) {
      fetch_sweep<true>(stages[(at + kStages - 1) % kStages], s, run, g + (kStages - 1) * stride, all, lane);
#pragma unroll 1
      for (int row = begin_row; row < end_row; ++row) {
        const int groups = (run_start + row - run.first_row + 1) / kRatio;
        if (groups <= s.budget) continue;
        if (row != loaded) query.load(p.index_q + static_cast<std::int64_t>(row) * (kHeads * kDim), lane);
        loaded = row;
        wait_copies<kStages - 1>();
        __syncwarp();
        const float score = score_sweep(stages[at], query, scale, lane);
        const int own = g + lane / 4;
        if (lane % 4 == 0 && own < groups) {
          p.scratch.scores[(row - p.first_row) * p.scratch.most_groups + own] = score;
        }
      }
      __syncwarp();
      at = (at + 1) % kStages;
    }
    wait_copies<0>();
  }
}

[[nodiscard]] bool published(const AttentionShape& s) {
  return s.type == ElementType::BF16 && s.index_heads == kHeads && s.index_dim == kDim && s.ratio == kRatio;
}

}  // namespace

bool score_few(Queue& queue, const AttendParams& p) {
  if (!published(p.shape) || p.rows > kScoreRows || p.scratch.most_groups > (1 << 28)) return false;
  const auto blocks = std::min<std::int64_t>(kScoreBlocks * queue.multiprocessors(),
                                             blocks_for(p.scratch.most_groups, kScoreWarps * kSweep));
  launch(queue, score_few_kernel, {static_cast<unsigned>(blocks), 1, 1}, {kScoreThreads, 1, 1},
         kScoreWarps * kStages * sizeof(Stage), p);
  return true;
}

bool select_rows(Queue& queue, const AttendParams& p) {
  if (p.rows < kSelectRows || p.scratch.most_groups > kRowKeys || p.scratch.most_groups % 4 != 0) return false;
  launch(queue, select_rows_kernel, {static_cast<unsigned>(p.rows), 1, 1}, {kSelectThreads, 1, 1},
         sizeof(SelectRowShared) - static_cast<std::size_t>(kRowKeys - p.scratch.most_groups) * sizeof(unsigned), p);
  return true;
}

bool select_cluster(Queue& queue, const AttendParams& p) {
  if (!queue.clusters() || p.scratch.most_groups > kCluster * kLongKeys || p.scratch.most_groups % 4 != 0) return false;
  launch(queue, select_cluster_kernel, {static_cast<unsigned>(p.rows * kCluster), 1, 1}, {kSelectThreads, 1, 1},
         sizeof(SelectKeysShared), p);
  return true;
}

bool choose_fused(Queue& queue, const StoreParams& store, const AttentionScratch& scratch) {
  const AttentionShape& s = store.shape;
  if (!queue.clusters() || !published(s) || !store.with_ring || store.q == nullptr || s.ring - s.ratio > 8)
    return false;
  if (store.rows > kMostFused || store.rows > scratch.rows || s.dim > kStoredDim) return false;
  if (scratch.most_groups <= s.budget || scratch.most_groups > (store.rows == 1 ? kFusedAlone : kFusedGroups))
    return false;
  ChooseParams p{};
  p.store = store;
  p.store.index_q = nullptr;
  p.scratch = scratch;
  p.row_blocks = static_cast<std::int64_t>(store.rows) * kCluster;
  const int items = store.rows * (s.heads + s.kv_heads + 1);
  const unsigned storing = blocks_for(items, kCluster * kSelectWarps) * kCluster;
  launch(queue, choose_kernel, {static_cast<unsigned>(p.row_blocks) + storing, 1, 1}, {kSelectThreads, 1, 1},
         sizeof(ChooseShared), p);
  return true;
}

}  // namespace lockstep::kernels::cuda
