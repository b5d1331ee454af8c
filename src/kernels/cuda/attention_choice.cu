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
constexpr int kSweep = 8;           ///< groups that a warp scores at once
constexpr int kFusedGroups = 8192;  ///< of a row that one kernel serves
constexpr int kLongKeys = 8192;     ///< of a block
constexpr int kNewGroups = 2;       ///< that a run of at most 8 rows completes for one of its rows
constexpr int kMostFused = 16;      ///< rows
constexpr int kStoredDim = 256;     ///< most elements of a vector that choose_kernel stores

/// Sets of four groups, of which a lane has an eighth of one key: of every 32 elements the four from 4 * (lane % 8) on.
constexpr int kSets = kSweep / 4;

/// The same elements of the index queries. The heads lie in an order of each lane's own, so that what a lane keeps and
/// what it gives in the folds have the same places in all lanes.
struct QueryPart {
  float4 q[kHeads][kDim / 32];

  /// `query` [kHeads, kDim] in shared memory.
  __device__ __forceinline__ void load(const float* query, int lane) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) {
        q[h][i] = *reinterpret_cast<const float4*>(query + (h ^ (lane % 8 / 2)) * kDim + 32 * i + 4 * (lane % 8));
      }
    }
  }
};

/// The score of a group, in all eight lanes of its key. A lane has the sums of four of fold32's lanes: widths 16, 8 and
/// 4 are between lanes, the others inside one.
__device__ __forceinline__ float score_key(const uint2 (&words)[kDim / 32], const QueryPart& query, float scale,
                                           int lane) {
  float sums[kHeads][4];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int e = 0; e < 4; ++e) sums[h][e] = 0.0F;
  }
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) {
    const float key[4] = {bits_float(words[i].x << 16), bits_float(words[i].x & 0xffff0000U),
                          bits_float(words[i].y << 16), bits_float(words[i].y & 0xffff0000U)};
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      sums[h][0] = canon_fma(query.q[h][i].x, key[0], sums[h][0]);
      sums[h][1] = canon_fma(query.q[h][i].y, key[1], sums[h][1]);
      sums[h][2] = canon_fma(query.q[h][i].z, key[2], sums[h][2]);
      sums[h][3] = canon_fma(query.q[h][i].w, key[3], sums[h][3]);
    }
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    sums[0][e] += __shfl_xor_sync(kAllLanes, sums[2][e], 4);
    sums[1][e] += __shfl_xor_sync(kAllLanes, sums[3][e], 4);
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) sums[0][e] += __shfl_xor_sync(kAllLanes, sums[1][e], 2);
#pragma unroll
  for (int e = 0; e < 4; ++e) sums[0][e] += __shfl_xor_sync(kAllLanes, sums[0][e], 1);
  const float dot = (sums[0][0] + sums[0][2]) + (sums[0][1] + sums[0][3]);  // of head lane % 8 / 2
  const float relu = dot > 0.0F ? dot : dot * 0.0F;                         // keeps NaN
  float total = 0.0F;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) total += __shfl_sync(kAllLanes, relu, lane / 8 * 8 + 2 * h);
  return total * scale;
}

struct ChooseParams {
  StoreParams store;
  AttentionScratch scratch;
  std::int64_t row_blocks;  ///< blocks that choose; the others store
};

struct ChooseShared {
  SelectShared select;
  float query[kHeads * kDim];
  std::uint16_t new_keys[kNewGroups][kDim];
  float lines[kNewGroups][kDim];
  unsigned keys[kFusedGroups];  ///< of the row, in the cluster's first block
};

struct SelectKeysShared {
  SelectShared select;
  unsigned keys[kLongKeys];
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
  /// The list where all groups are attended to; by all threads of the cluster.
  __device__ __forceinline__ void list_all(int ratio) const {
    const int all = groups * ratio + tail;
    const int thread = cluster_rank() * kSelectThreads + static_cast<int>(threadIdx.x);
#pragma unroll 1
    for (int i = thread; i < all; i += kCluster * kSelectThreads) list[i] = i;
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
__global__ void LOCKSTEP_CLUSTER __launch_bounds__(kSelectThreads) choose_kernel(ChooseParams p) {
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
  begin_select(shared.select);
  const int in_piece = static_cast<int>(blockIdx.x) / kCluster;
  const bool of_query = warp < kHeads;
  const NormWeights weights(of_query ? store.weights.index_q_norm : store.weights.index_k_norm,
                            warp < kHeads + kNewGroups ? kDim : 0, lane);
  wait_previous_grid();
  const int row = store.first_row + in_piece;
  const RowPlace place = place_row(store, row);
  const RowList list(s, p.scratch, in_piece, place.position);
  if (list.groups <= s.budget) {
    cluster_wait();
    list.list_all(kRatio);
    return;
  }
  // The block's groups, in sweeps of all its warps.
  constexpr int kBlockSweep = kSelectWarps * kSweep;
  const int sweeps = (list.groups + kCluster * kBlockSweep - 1) / (kCluster * kBlockSweep);
  const int begin = cluster_rank() * sweeps * kBlockSweep;
  const int end = begin + sweeps * kBlockSweep < list.groups ? begin + sweeps * kBlockSweep : list.groups;
  const std::int64_t run_start = place.position - place.in_run;
  const auto first_new = static_cast<int>(run_start / kRatio);  // groups that this launch stores
  uint2 words[kSets][kDim / 32];
  const auto fetch = [&](uint2(&to)[kDim / 32], int g) {
    const int there = g < end ? g : (end > begin ? end - 1 : 0);
    const std::byte* key = place.run->pages[there / kPerPage] + place.run->layer_offset + s.index_offset +
                           there % kPerPage * (kDim * 2) + lane % 8 * 8;
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) to[i] = *reinterpret_cast<const uint2*>(key + 64 * i);
  };
  const int first = begin + warp * kSweep + lane / 8;  // and four further
#pragma unroll
  for (int k = 0; k < kSets; ++k) fetch(words[k], first + 4 * k);
  const int new_group = first_new + warp - kHeads;
  const bool is_new = !of_query && warp < kHeads + kNewGroups && new_group >= begin && new_group < end;
  if (of_query || is_new) {
    float* line = of_query ? shared.query + warp * kDim : shared.lines[warp - kHeads];
    const std::int64_t position = of_query ? place.position : static_cast<std::int64_t>(new_group) * kRatio;
    float values[kNormedAtOnce];
    if (of_query) {
      load_values(values, store.input.index_qk + (static_cast<std::int64_t>(row) * (kHeads + 1) + warp) * kDim, kDim,
                  line, lane);
    } else {
      load_means(values, store, *place.run, run_start, position, line, lane);
    }
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
#pragma unroll
    for (int k = 0; k < kSets; ++k) {
      const int g = first + sweep * kBlockSweep + 4 * k;
      if (g >= first_new && g < end) {
        const auto* key = reinterpret_cast<const uint2*>(shared.new_keys[g - first_new]);
#pragma unroll
        for (int i = 0; i < kDim / 32; ++i) words[k][i] = key[8 * i + lane % 8];
      }
      __syncwarp();
      const float score = score_key(words[k], query, scale, lane);
      if (lane % 8 == 0 && g < end) store_remote(gathered + static_cast<unsigned>(g) * 4, ordered_bits(score));
      if (sweep + 1 < sweeps) fetch(words[k], g + kBlockSweep);  // while the other sets are scored
    }
  }
  cluster_arrive();
  cluster_wait();
  if (cluster_rank() != 0) return;
  const Keys keys(shared.keys, 0, list.groups, list.groups);
  const Choice choice = choose_keys<true>(shared.select, keys, static_cast<unsigned>(s.budget));
  list.list_tail(s);
  emit_keys<true>(shared.select, keys, choice, [&](int group, int at) { list_group(list.list, kRatio, group, at); });
}

/// The choice of one row a cluster, from its scores.
__global__ void LOCKSTEP_CLUSTER __launch_bounds__(kSelectThreads) select_cluster_kernel(AttendParams p) {
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
    list.list_all(s.ratio);
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

constexpr int kScoreThreads = 256;
constexpr int kScoreWarps = kScoreThreads / 32;
constexpr int kScoreRows = 16;

/// A lane's quarter of an index key: of every 32 elements the eight from 8 * (lane % 4) on. Four lanes have a key.
struct KeyPart {
  uint4 words[kDim / 32];
};

/// score_key() by four lanes, with the queries in shared memory: what it reads of the keys is 16 bytes at a time.
__device__ __forceinline__ float score_quarters(const KeyPart& part, const float* query, float scale, int lane) {
  const int quarter = lane % 4;
  float sums[kHeads][8];
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
#pragma unroll
    for (int e = 0; e < 8; ++e) sums[h][e] = 0.0F;
  }
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) {
    const unsigned words[4] = {part.words[i].x, part.words[i].y, part.words[i].z, part.words[i].w};
    float key[8];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      key[2 * w] = bits_float(words[w] << 16);
      key[2 * w + 1] = bits_float(words[w] & 0xffff0000U);
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const auto* q = reinterpret_cast<const float4*>(query + (h ^ quarter) * kDim + 32 * i + 8 * quarter);
      const float4 a = q[0];
      const float4 b = q[1];
      sums[h][0] = canon_fma(a.x, key[0], sums[h][0]);
      sums[h][1] = canon_fma(a.y, key[1], sums[h][1]);
      sums[h][2] = canon_fma(a.z, key[2], sums[h][2]);
      sums[h][3] = canon_fma(a.w, key[3], sums[h][3]);
      sums[h][4] = canon_fma(b.x, key[4], sums[h][4]);
      sums[h][5] = canon_fma(b.y, key[5], sums[h][5]);
      sums[h][6] = canon_fma(b.z, key[6], sums[h][6]);
      sums[h][7] = canon_fma(b.w, key[7], sums[h][7]);
    }
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    sums[0][e] += __shfl_xor_sync(kAllLanes, sums[2][e], 2);
    sums[1][e] += __shfl_xor_sync(kAllLanes, sums[3][e], 2);
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) sums[0][e] += __shfl_xor_sync(kAllLanes, sums[1][e], 1);
#pragma unroll
  for (int width = 4; width > 0; width /= 2) {
#pragma unroll
    for (int e = 0; e < width; ++e) sums[0][e] += sums[0][e + width];
  }
  const float dot = sums[0][0];                      // of head `quarter`
  const float relu = dot > 0.0F ? dot : dot * 0.0F;  // keeps NaN
  float total = 0.0F;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) total += __shfl_sync(kAllLanes, relu, lane / 4 * 4 + h);
  return total * scale;
}

/// Scores of few rows: a warp keeps the keys of kSweep groups while it goes through the rows that see them, and fetches
/// the next ones meanwhile. Blocks share the groups.
__global__ void __launch_bounds__(kScoreThreads, 2) score_few_kernel(AttendParams p) {
  __shared__ float query[kScoreRows][kHeads * kDim];
  trigger_next_grid();
  wait_previous_grid();
  const AttentionShape& s = p.shape;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const float scale = canon_rsqrt(static_cast<float>(kDim));
  const int stride = static_cast<int>(gridDim.x) * (kScoreWarps * kSweep);
  const int first = (static_cast<int>(blockIdx.x) * kScoreWarps + thread / 32) * kSweep + lane / 4;
  const std::int64_t start = *p.runs[0].position;
  const float4* from =
      reinterpret_cast<const float4*>(p.index_q + static_cast<std::int64_t>(p.first_row) * (kHeads * kDim));
  for (int i = thread; i < p.rows * kHeads * kDim / 4; i += kScoreThreads) {
    reinterpret_cast<float4*>(query)[i] = from[i];
  }
  const std::uint64_t policy = once_policy();
#pragma unroll 1
  for (int r = 0; r < p.count; ++r) {
    const AttentionRun& run = p.runs[r];
    const std::int64_t run_start = r == 0 ? start : *run.position;
    const int begin_row = run.first_row > p.first_row ? run.first_row : p.first_row;
    const int end_row =
        run.first_row + run.rows < p.first_row + p.rows ? run.first_row + run.rows : p.first_row + p.rows;
    if (begin_row >= end_row) continue;
    // Groups of the run's last row of the piece; all exist, the store is done.
    const auto all = static_cast<int>((run_start + end_row - run.first_row) / kRatio);
    if (all <= s.budget) {
      __syncthreads();
      continue;
    }
    const auto fetch = [&](int g) {
      const int there = g < all ? g : all - 1;
      const std::byte* key = run.pages[there / kPerPage] + run.layer_offset + s.index_offset +
                             there % kPerPage * (kDim * 2) + lane % 4 * 16;
      KeyPart part;
#pragma unroll
      for (int i = 0; i < kDim / 32; ++i) {
        asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                     : "=r"(part.words[i].x), "=r"(part.words[i].y), "=r"(part.words[i].z), "=r"(part.words[i].w)
                     : "l"(key + 64 * i), "l"(policy));
      }
      return part;
    };
    KeyPart part = fetch(first);
    __syncthreads();
    // A warp's groups go together.
#pragma unroll 1
    for (int g = first; g - lane / 4 < all; g += stride) {
      const KeyPart next = fetch(g + stride);
#pragma unroll 1
      for (int row = begin_row; row < end_row; ++row) {
        const auto groups = static_cast<int>((run_start + row - run.first_row + 1) / kRatio);
        if (groups <= s.budget) continue;
        const float score = score_quarters(part, query[row - p.first_row], scale, lane);
        if (lane % 4 == 0 && g < groups) {
          p.scratch.scores[(row - p.first_row) * p.scratch.most_groups + g] = score;
        }
      }
      part = next;
    }
  }
}

[[nodiscard]] bool published(const AttentionShape& s) {
  return s.type == ElementType::BF16 && s.index_heads == kHeads && s.index_dim == kDim && s.ratio == kRatio;
}

}  // namespace

bool score_few(Queue& queue, const AttendParams& p) {
  if (!published(p.shape) || p.rows > kScoreRows || p.scratch.most_groups > (1 << 28)) return false;
  const auto blocks =
      std::min<std::int64_t>(2 * queue.multiprocessors(), blocks_for(p.scratch.most_groups, kScoreWarps * kSweep));
  launch(queue, score_few_kernel, {static_cast<unsigned>(blocks), 1, 1}, {kScoreThreads, 1, 1}, 0, p);
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
  if (scratch.most_groups <= s.budget || scratch.most_groups > kFusedGroups) return false;
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
