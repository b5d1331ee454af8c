// A row of logits becomes a token in four launches. The first finds the head of every chunk; the second turns values
// into exponentials; the third finds out what every segment adds to the sum over the row (kernels/draw_sum.hpp). In the
// fourth one warp of each row's block puts the segments together while the others take the candidates out of the
// chunks; the first one then ends the draw.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/draw.hpp"

namespace lockstep::kernels::cuda {
namespace {

using Key = unsigned long long;

/// Greater than every key: the chunk has a logit that is not finite.
constexpr Key kNotFinite = ~Key{0};
constexpr int kChooseThreads = 256;
constexpr int kTakers = kChooseThreads - 32;  ///< that take the candidates
constexpr int kMostCollected = 512;
constexpr int kExpThreads = 256;
constexpr int kPerThread = kDrawChunk / 32;

/// Orders as the canon orders candidates: value descending is key descending, then id ascending. Above 0, never equal.
__device__ __forceinline__ Key key_of(float value, int id) {
  return (Key{ordered_bits(value)} << 32) | (0xffffffffU - static_cast<unsigned>(id));
}
__device__ __forceinline__ int id_of(Key key) {
  return static_cast<int>(0xffffffffU - static_cast<unsigned>(key));
}
/// The value that the key was made from, or +0 for -0.
__device__ __forceinline__ float value_of(Key key) {
  const auto ordered = static_cast<unsigned>(key >> 32);
  return bits_float((ordered & 0x80000000U) != 0 ? ordered & 0x7fffffffU : ~ordered);
}

/// All takers of a block wait for each other.
__device__ __forceinline__ void takers_wait() {
  asm volatile("bar.sync 1, %0;" ::"n"(kTakers) : "memory");
}

__device__ __forceinline__ Key larger(Key a, Key b) {
  return a > b ? a : b;
}
__device__ __forceinline__ Key warp_largest(Key key) {
  const auto high = static_cast<unsigned>(key >> 32);
  const unsigned top = __reduce_max_sync(kAllLanes, high);
  const unsigned low = __reduce_max_sync(kAllLanes, high == top ? static_cast<unsigned>(key) : 0U);
  return (Key{top} << 32) | low;
}

/// The largest key below `bound` of a chunk, and whether all its logits are finite. By one warp.
__device__ __forceinline__ Key chunk_head(const float* logits, const DrawRequest& request, int chunk, Key bound,
                                          int lane, bool& finite) {
  float values[kPerThread];
  const int first = chunk * kDrawChunk + lane;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) values[i] = first + 32 * i < request.vocab ? logits[first + 32 * i] : 0.0F;
  Key best = 0;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    finite = finite && is_finite(values[i]);
    const Key key = key_of(values[i] * request.scale, first + 32 * i);
    if (first + 32 * i < request.vocab && key < bound) best = larger(best, key);
  }
  return warp_largest(best);
}

__global__ void __launch_bounds__(32 * kWarps) find_heads(DrawRows p) {
  trigger_next_grid();
  wait_previous_grid();
  const DrawRequest request = p.requests[blockIdx.y];
  const int chunk = warp_item();
  if (chunk >= draw_chunks(request.vocab)) return;
  const int lane = lane_id();
  bool finite = true;
  const Key head = chunk_head(p.logits + request.row * p.width, request, chunk, kNotFinite, lane, finite);
  const bool all_finite = __all_sync(kAllLanes, finite) != 0;
  if (lane == 0) p.heads[blockIdx.y * draw_chunks(p.vocabulary) + chunk] = all_finite ? head : kNotFinite;
}

__global__ void __launch_bounds__(kExpThreads) exponentials(DrawRows p) {
  __shared__ Key of_warps[kExpThreads / 32];
  __shared__ float values[kDrawSegment];
  trigger_next_grid();
  wait_previous_grid();
  const DrawRequest request = p.requests[blockIdx.y];
  const auto segment = static_cast<int>(blockIdx.x);
  if (request.top_k == 0 || segment >= draw_segments(request.vocab)) return;
  const std::uint64_t* heads = p.heads + blockIdx.y * draw_chunks(p.vocabulary);
  const auto thread = static_cast<int>(threadIdx.x);
  Key best = 0;
  for (int i = thread; i < draw_chunks(request.vocab); i += kExpThreads) best = larger(best, heads[i]);
  best = warp_largest(best);
  if (lane_id() == 0) of_warps[thread / 32] = best;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kExpThreads / 32; ++i) best = larger(best, of_warps[i]);
  const float largest = value_of(best);  // of a row that is not finite, nobody reads what is written here
  const float* logits = p.logits + request.row * p.width;
  float* exps = p.exps + blockIdx.y * draw_padded(p.vocabulary);
#pragma unroll
  for (int i = thread; i < kDrawSegment; i += kExpThreads) {
    const int id = segment * kDrawSegment + i;
    values[i] = id < request.vocab ? canon_exp(logits[id] * request.scale - largest) : 0.0F;
    exps[id] = values[i];
  }
  __syncthreads();
  if (thread >= 32) return;
  double sum = 0;
#pragma unroll 16
  for (int i = thread; i < kDrawSegment; i += 32) sum += static_cast<double>(values[i]);
  p.sums[(blockIdx.y * draw_segments(p.vocabulary) + segment) * 32 + thread] = sum;
}

/// What every segment adds, whatever exactly comes before it. One warp a segment.
__global__ void __launch_bounds__(32) plan_segments(DrawRows p) {
  trigger_next_grid();
  wait_previous_grid();
  const DrawRequest request = p.requests[blockIdx.y];
  const auto segment = static_cast<int>(blockIdx.x);
  if (request.top_k == 0 || segment >= draw_segments(request.vocab)) return;
  const int lane = lane_id();
  const float* exps = p.exps + blockIdx.y * draw_padded(p.vocabulary) + segment * kDrawSegment + lane;
  const std::int64_t first = blockIdx.y * draw_segments(p.vocabulary);
  float values[kSegmentSteps];
#pragma unroll
  for (int i = 0; i < kSegmentSteps; ++i) values[i] = exps[32 * i];
  double about = 0;
  double sure = 0;
#pragma unroll 16
  for (int i = 0; i < segment; ++i) {
    const double sum = p.sums[(first + i) * 32 + lane];
    about += sum;
    sure = sum > sure ? sum : sure;
  }
  p.segments[(first + segment) * 32 + lane] = plan_segment(about, sure, [&](int i) { return values[i]; });
}

/// The fold32 of a row of exponentials in binary64, by one warp; every lane gets the result. What the next segments add
/// is on its way meanwhile.
__device__ double fold_row(const DrawRows& p, const DrawRequest& request, const float* exps, int lane) {
  constexpr int kAtOnce = 8;
  const SumSegment* segments = p.segments + blockIdx.x * draw_segments(p.vocabulary) * 32 + lane;
  const auto count = static_cast<int>(draw_segments(request.vocab));
  const auto load = [&](SumSegment(&to)[kAtOnce], int first) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) to[i] = segments[32 * (first + i < count ? first + i : 0)];
  };
  double sum = 0;
  SumSegment some[kAtOnce];
  load(some, 0);
#pragma unroll 1
  for (int first = 0; first < count; first += kAtOnce) {
    SumSegment next[kAtOnce];
    load(next, first + kAtOnce);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= count) break;
      const float* values = exps + (first + i) * kDrawSegment + lane;
      sum = add_segment(sum, some[i], [&](int step) { return values[32 * step]; });
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) some[i] = next[i];
  }
#pragma unroll
  for (int width = 16; width > 0; width /= 2) sum += __shfl_xor_sync(kAllLanes, sum, width);
  return sum;
}

/// What the takers of a block share.
struct Taken {
  DrawTable table;
  Key largest;
  Key of_warps[kTakers / 32];
  int counts[32];  ///< heads that are not below a threshold, one for each bit
  int chunk_count, key_count;
  int chunks[kMostCollected];
  Key keys[kMostCollected];
};

/// The first `most` candidates of a row, by one warp: again and again the largest head, whose chunk then shows its next
/// one. For rows whose candidates cannot be told from few values.
__device__ void take_in_turn(const float* logits, const DrawRequest& request, Key* heads, Taken& taken, int most,
                             int lane) {
  const auto chunks = static_cast<int>(draw_chunks(request.vocab));
  int count = 0;
  for (Key top = taken.largest; count < most && top != 0;) {
    if (lane == 0) taken.table.ids[count] = id_of(top);
    if (++count == most) break;
    const int chunk = id_of(top) / kDrawChunk;
    bool finite = true;
    const Key next = chunk_head(logits, request, chunk, top, lane, finite);
    if (lane == chunk % 32) heads[chunk] = next;
    __syncwarp();
    Key mine = 0;
#pragma unroll 8
    for (int i = lane; i < chunks; i += 32) mine = larger(mine, heads[i]);
    top = warp_largest(mine);
  }
  if (lane == 0) taken.table.count = count;
}

/// A value that at least `most` heads are not below, so that all candidates are not below it either; not many more
/// heads than that, as far as they differ. 0 when there are fewer heads.
__device__ unsigned find_threshold(const Key* heads, int chunks, int most, Taken& taken, int taker) {
  constexpr int kOwn = static_cast<int>((kMostDrawnVocabulary / kDrawChunk + kTakers - 1) / kTakers);
  unsigned own[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int at = taker + i * kTakers;
    own[i] = at < chunks ? static_cast<unsigned>(heads[at] >> 32) : 0;
  }
  unsigned threshold = 0;
#pragma unroll 1
  for (int bit = 31; bit >= 0; --bit) {
    const unsigned tried = threshold | 1U << bit;
    int above = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) above += own[i] >= tried ? 1 : 0;
    above = __reduce_add_sync(kAllLanes, above);
    if (taker % 32 == 0) atomicAdd(taken.counts + bit, above);
    takers_wait();
    const int count = taken.counts[bit];
    if (count < most) continue;
    threshold = tried;
    if (count <= 2 * most) break;
  }
  return threshold;
}

/// The first `most` candidates of a row, by all takers: what is not below the threshold is collected and put in order
/// by counting what comes before.
__device__ void take_candidates(const DrawRows& p, const DrawRequest& request, Key* heads, Taken& taken, int most,
                                int taker) {
  const float* logits = p.logits + request.row * p.width;
  const std::uint64_t* found = p.heads + blockIdx.x * draw_chunks(p.vocabulary);
  const auto chunks = static_cast<int>(draw_chunks(request.vocab));
  const int lane = taker % 32;
  Key mine = 0;
#pragma unroll 5
  for (int i = taker; i < chunks; i += kTakers) {
    heads[i] = found[i];
    mine = larger(mine, heads[i]);
  }
  mine = warp_largest(mine);
  if (lane == 0) taken.of_warps[taker / 32] = mine;
  if (taker < 32) taken.counts[taker] = 0;
  if (taker == 0) taken.chunk_count = taken.key_count = 0;
  takers_wait();
  for (const Key other : taken.of_warps) mine = larger(mine, other);
  if (taker == 0) {
    taken.largest = mine;
    taken.table.ids[0] = id_of(mine);
    taken.table.count = 1;
  }
  if (mine == kNotFinite || most == 1) return;
  const unsigned threshold = find_threshold(heads, chunks, most, taken, taker);
  for (int i = taker; i < chunks; i += kTakers) {
    if (static_cast<unsigned>(heads[i] >> 32) < threshold) continue;
    const int at = atomicAdd(&taken.chunk_count, 1);
    if (at < kMostCollected) taken.chunks[at] = i;
  }
  takers_wait();
  const int listed = taken.chunk_count < kMostCollected ? taken.chunk_count : kMostCollected;
#pragma unroll 1
  for (int c = taker / 32; c < listed; c += kTakers / 32) {
    const int first = taken.chunks[c] * kDrawChunk + lane;
    float values[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) values[i] = first + 32 * i < request.vocab ? logits[first + 32 * i] : 0.0F;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const Key key = key_of(values[i] * request.scale, first + 32 * i);
      if (first + 32 * i >= request.vocab || static_cast<unsigned>(key >> 32) < threshold) continue;
      const int at = atomicAdd(&taken.key_count, 1);
      if (at < kMostCollected) taken.keys[at] = key;
    }
  }
  takers_wait();
  const int count = taken.key_count;
  if (taken.chunk_count > kMostCollected || count > kMostCollected) {
    if (taker < 32) take_in_turn(logits, request, heads, taken, most, lane);
    return;
  }
#pragma unroll 1
  for (int i = taker; i < count; i += kTakers) {
    const Key key = taken.keys[i];
    int rank = 0;
#pragma unroll 8
    for (int j = 0; j < count; ++j) rank += taken.keys[j] > key ? 1 : 0;
    if (rank < most) taken.table.ids[rank] = id_of(key);
  }
  if (taker == 0) taken.table.count = count < most ? count : most;
}

/// Where a drawn token is wanted. One thread of the row's block.
__device__ __forceinline__ void give(const DrawRows& p, const Drawn& drawn) {
  p.drawn[blockIdx.x] = drawn;
  if (p.told == nullptr) return;
  *p.token = drawn.id < 0 ? 0 : drawn.id;
  __threadfence_system();
  *static_cast<volatile std::uint32_t*>(p.told) = 1;
}

__global__ void __launch_bounds__(kChooseThreads) choose_tokens(DrawRows p) {
  __shared__ Taken taken;
  extern __shared__ Key heads[];
  trigger_next_grid();
  wait_previous_grid();
  const DrawRequest request = p.requests[blockIdx.x];
  const int lane = lane_id();
  const bool argmax = request.top_k == 0;
  const float* exps = argmax ? nullptr : p.exps + blockIdx.x * draw_padded(p.vocabulary);
  double z = 0;
  if (threadIdx.x < 32) {
    if (!argmax) z = fold_row(p, request, exps, lane);
  } else {
    take_candidates(p, request, heads, taken, argmax ? 1 : request.top_k, static_cast<int>(threadIdx.x) - 32);
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const Key largest = taken.largest;
  DrawTable& table = taken.table;
  if (largest == kNotFinite || !is_finite(value_of(largest))) {
    if (lane == 0) give(p, Drawn{});
    return;
  }
  if (argmax) {
    if (lane == 0) give(p, Drawn{1.0, table.ids[0], 0});
    return;
  }
  for (int i = lane; i < table.count; i += 32) table.exps[i] = exps[table.ids[i]];
  __syncwarp();
  table.divide(z, lane);
  __syncwarp();
  if (lane == 0) table.cut(request.top_p, request.min_p);
  __syncwarp();
  table.list(request.min_p, lane);
  __syncwarp();
  if (lane == 0) table.add();
  __syncwarp();
  table.normalise(lane);
  __syncwarp();
  if (lane == 0) table.accumulate();
  __syncwarp();
  const int place = __reduce_min_sync(kAllLanes, table.find(request.uniform, lane));
  if (lane == 0) give(p, Drawn{table.listed_p[place], table.listed_ids[place], 0});
}

}  // namespace

void draw_rows(Queue& queue, const DrawRows& rows) {
  const auto count = static_cast<unsigned>(rows.count);
  const std::int64_t chunks = draw_chunks(rows.vocabulary);
  launch(queue, find_heads, {blocks_for(chunks, kWarps), count, 1}, {32 * kWarps, 1, 1}, 0, rows);
  if (rows.exps != nullptr) {
    const auto segments = static_cast<unsigned>(draw_segments(rows.vocabulary));
    launch(queue, exponentials, {segments, count, 1}, {kExpThreads, 1, 1}, 0, rows);
    launch(queue, plan_segments, {segments, count, 1}, {32, 1, 1}, 0, rows);
  }
  launch(queue, choose_tokens, {count, 1, 1}, {kChooseThreads, 1, 1}, static_cast<std::size_t>(chunks) * sizeof(Key),
         rows);
}

}  // namespace lockstep::kernels::cuda
