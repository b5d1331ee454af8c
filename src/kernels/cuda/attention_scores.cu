// The positions that a row attends to, on CUDA: scores of pooled index keys and their deterministic choice.
#include <algorithm>

#include "kernels/cuda/attention.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kGroupsPerWarp = 8;
constexpr int kHeadsAtOnce = 4;

/// One warp per kGroupsPerWarp groups of a row, kHeadsAtOnce index heads at a
/// time. Blocks in y are rows.
__global__ void __launch_bounds__(32 * kWarps) score_kernel(AttendParams p) {
  extern __shared__ float query[];  // [index_heads, rounded up to kHeadsAtOnce][index_dim]
  trigger_next_grid();
  wait_previous_grid();
  const AttentionShape& s = p.shape;
  const int row = p.first_row + static_cast<int>(blockIdx.y);
  const RowPlace place = place_row(p, row);
  const std::int64_t groups = (place.position + 1) / s.ratio;
  if (groups <= s.budget) return;
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kWarps * kGroupsPerWarp;
  if (begin >= groups) return;
  const int size = s.index_heads * s.index_dim;
  const int padded = (s.index_heads + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce * s.index_dim;
  for (int i = static_cast<int>(threadIdx.x); i < padded; i += static_cast<int>(blockDim.x)) {
    query[i] = i < size ? p.index_q[static_cast<std::int64_t>(row) * size + i] : 0.0F;
  }
  __syncthreads();
  const int lane = lane_id();
  const float scale = canon_rsqrt(static_cast<float>(s.index_dim));
  const int per_page = kPage / s.ratio;
  const std::int64_t first = begin + static_cast<int>(threadIdx.x) / 32 * kGroupsPerWarp;
  if (first >= groups) return;
  const std::byte* keys[kGroupsPerWarp];
  std::int64_t at[kGroupsPerWarp];
#pragma unroll
  for (int j = 0; j < kGroupsPerWarp; ++j) {
    const std::int64_t g = first + j < groups ? first + j : groups - 1;
    keys[j] = place.run->pages[g / per_page] + place.run->layer_offset + s.index_offset;
    at[j] = g % per_page * s.index_dim;
  }
  float total = 0.0F;  // of group lane / kHeadsAtOnce
  for (int h0 = 0; h0 < s.index_heads; h0 += kHeadsAtOnce) {
    float sums[32];  // [group][head]
#pragma unroll
    for (int i = 0; i < 32; ++i) sums[i] = 0.0F;
    for (int i = lane; i < s.index_dim; i += 32) {
#pragma unroll
      for (int j = 0; j < kGroupsPerWarp; ++j) {
        const float key = load_element(keys[j], s.type, at[j] + i);
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h) {
          sums[j * kHeadsAtOnce + h] = canon_fma(query[(h0 + h) * s.index_dim + i], key, sums[j * kHeadsAtOnce + h]);
        }
      }
    }
    const float dot = fold_transposed(sums, lane);
    const float part = dot > 0.0F ? dot : dot * 0.0F;  // keeps NaN
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
      const float of_head = __shfl_sync(kAllLanes, part, lane / kHeadsAtOnce * kHeadsAtOnce + h);
      if (h0 + h < s.index_heads) total += of_head;
    }
  }
  const std::int64_t g = first + lane / kHeadsAtOnce;
  if (lane % kHeadsAtOnce == 0 && g < groups) {
    p.scratch.scores[static_cast<std::int64_t>(blockIdx.y) * p.scratch.most_groups + g] = total * scale;
  }
}

constexpr int kScoreRows = 16;  ///< of a block of score_rows_kernel
constexpr int kScoreHeads = 4;
constexpr int kScoreDim = 128;
constexpr int kScoreSteps = kScoreDim / 32;
constexpr int kScoreGroups = 16;  ///< of a warp

/// A thread's part of the index keys of four groups: of fold32's lanes those four that agree with its own number in the
/// last three bits, so that two of the five rounds of the fold need no exchange. The groups lie in the thread's own
/// order, that of fold_permuted().
using KeyPart = float[4][kScoreSteps][4];

/// Loads the keys of groups first..first+kScoreGroups, or of `last` where those end. The type is asked for once: a
/// branch at every load would make one wait for the other.
template <ElementType kType>
__device__ __forceinline__ void load_keys(const AttentionShape& s, const AttentionRun& run, int first, int last,
                                          KeyPart& keys) {
  const int per_page = kPage / s.ratio;
  const int lane = lane_id();
  const std::byte* page[4];
  int at[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int wanted = first + lane / 8 * 4 + (j ^ (lane / 2 % 4));
    const int g = wanted < last ? wanted : last;
    page[j] = run.pages[g / per_page];
    at[j] = g % per_page * kScoreDim + lane % 8;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const std::byte* from = page[j] + run.layer_offset + s.index_offset;
#pragma unroll
    for (int i = 0; i < kScoreSteps; ++i) {
#pragma unroll
      for (int m = 0; m < 4; ++m) keys[j][i][m] = load_element(from, kType, at[j] + 32 * i + 8 * m);
    }
  }
}

/// The score of group first + lane / 2 of those that the keys belong to. `query`: [head][step][lane % 8][4].
__device__ __forceinline__ float score_groups(const float4* query, const KeyPart& keys, int lane) {
  float sums[kScoreHeads][4];  // [head][group]
#pragma unroll
  for (int h = 0; h < kScoreHeads; ++h) {
    float lanes[4][4];
#pragma unroll
    for (int i = 0; i < kScoreSteps; ++i) {
      const float4 q = query[(h * kScoreSteps + i) * 8 + lane % 8];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        lanes[j][0] = canon_fma(q.x, keys[j][i][0], i == 0 ? 0.0F : lanes[j][0]);
        lanes[j][1] = canon_fma(q.y, keys[j][i][1], i == 0 ? 0.0F : lanes[j][1]);
        lanes[j][2] = canon_fma(q.z, keys[j][i][2], i == 0 ? 0.0F : lanes[j][2]);
        lanes[j][3] = canon_fma(q.w, keys[j][i][3], i == 0 ? 0.0F : lanes[j][3]);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) sums[h][j] = (lanes[j][0] + lanes[j][2]) + (lanes[j][1] + lanes[j][3]);
#pragma unroll
    for (int j = 0; j < 2; ++j) sums[h][j] += __shfl_xor_sync(kAllLanes, sums[h][j + 2], 4);
    sums[h][0] += __shfl_xor_sync(kAllLanes, sums[h][1], 2);
    sums[h][0] += __shfl_xor_sync(kAllLanes, sums[h][0], 1);
  }
  float total = 0.0F;
#pragma unroll
  for (int h = 0; h < kScoreHeads; ++h) {
    const float dot = sums[h][0];
    total += dot > 0.0F ? dot : dot * 0.0F;  // keeps NaN
  }
  return total;
}

/// score_kernel for kScoreHeads index heads of kScoreDim: a warp fetches all keys of its groups at once, keeps them in
/// registers and goes through the rows. Blocks in y are kScoreRows rows.
__global__ void __launch_bounds__(32 * kWarps, 2) score_rows_kernel(AttendParams p) {
  __shared__ float query[kScoreRows][kScoreHeads * kScoreDim];
  __shared__ int of_row[kScoreRows];  // groups, where they are scored
  __shared__ int run_of[kScoreRows];
  trigger_next_grid();
  wait_previous_grid();
  const AttentionShape& s = p.shape;
  const int thread = static_cast<int>(threadIdx.x);
  const int in_piece = static_cast<int>(blockIdx.y) * kScoreRows;
  const int rows = p.rows - in_piece < kScoreRows ? p.rows - in_piece : kScoreRows;
  if (thread < rows) {
    const RowPlace place = place_row(p, p.first_row + in_piece + thread);
    const auto groups = static_cast<int>((place.position + 1) / s.ratio);
    of_row[thread] = groups > s.budget ? groups : 0;
    run_of[thread] = static_cast<int>(place.run - p.runs);
  }
  __syncthreads();
  const int first_of_block = static_cast<int>(blockIdx.x) * (kWarps * kScoreGroups);
  int most = 0;
  for (int row = 0; row < rows; ++row) most = of_row[row] > most ? of_row[row] : most;
  if (first_of_block >= most) return;
  const float* from = p.index_q + static_cast<std::int64_t>(p.first_row + in_piece) * (kScoreHeads * kScoreDim);
  for (int i = thread; i < rows * kScoreHeads * kScoreDim; i += static_cast<int>(blockDim.x)) {
    const int d = i % 32;  // of [head, step, 4, 8]
    query[i / (kScoreHeads * kScoreDim)][i % (kScoreHeads * kScoreDim) / 32 * 32 + d % 8 * 4 + d / 8] = from[i];
  }
  __syncthreads();
  const int lane = lane_id();
  const float scale = canon_rsqrt(static_cast<float>(kScoreDim));
  const int first = first_of_block + thread / 32 * kScoreGroups;
  float* to = p.scratch.scores + in_piece * p.scratch.most_groups + first + lane / 2;
  KeyPart keys;
  int loaded = -1;  // run of the keys
#pragma unroll 1
  for (int row = 0; row < rows; ++row) {
    const int groups = of_row[row];
    if (first >= groups) continue;
    if (run_of[row] != loaded) {
      loaded = run_of[row];
      // Groups that only later rows have exist as well.
      const AttentionRun& run = p.runs[loaded];
      const auto last = static_cast<int>((*run.position + run.rows) / s.ratio - 1);
      if (s.type == ElementType::F32) {
        load_keys<ElementType::F32>(s, run, first, last, keys);
      } else {
        load_keys<ElementType::BF16>(s, run, first, last, keys);
      }
    }
    const float total = score_groups(reinterpret_cast<const float4*>(query[row]), keys, lane);
    if (lane % 2 == 0 && first + lane / 2 < groups) to[row * p.scratch.most_groups] = total * scale;
  }
}

constexpr int kSelectThreads = 1024;
constexpr int kDigits = 256;
constexpr int kMostKept = 32 * 1024;  ///< keys of a row in shared memory

/// Exclusive prefix sums of two numbers a thread over the block; the totals are not needed.
__device__ int2 block_prefix(int2 value, int2* warp_sums) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const auto prefix = [lane](int2 x) {
#pragma unroll
    for (int width = 1; width < 32; width *= 2) {
      const int a = __shfl_up_sync(kAllLanes, x.x, static_cast<unsigned>(width));
      const int b = __shfl_up_sync(kAllLanes, x.y, static_cast<unsigned>(width));
      if (lane >= width) x = make_int2(x.x + a, x.y + b);
    }
    return x;
  };
  const int2 inclusive = prefix(value);
  if (lane == 31) warp_sums[thread / 32] = inclusive;
  __syncthreads();
  if (thread < 32) {
    const int2 mine = warp_sums[lane];
    const int2 sum = prefix(mine);
    warp_sums[lane] = make_int2(sum.x - mine.x, sum.y - mine.y);
  }
  __syncthreads();
  const int2 before = warp_sums[thread / 32];
  return make_int2(before.x + inclusive.x - value.x, before.y + inclusive.y - value.y);
}

/// The digit with which counts from the highest down reach `wanted`, and how many of it are still wanted; by one warp.
/// Without this the search through 256 counts by one thread took most of the kernel.
__device__ __forceinline__ void find_digit(const int* histogram, int lane, int& wanted, unsigned& prefix) {
  constexpr int kEach = kDigits / 32;
  int counts[kEach];  // of the lane's digits; lane 31 has the highest
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) sum += counts[i] = histogram[lane * kEach + i];
  int above = sum;
#pragma unroll
  for (int width = 1; width < 32; width *= 2) {
    const int other = __shfl_down_sync(kAllLanes, above, static_cast<unsigned>(width));
    if (lane + width < 32) above += other;
  }
  above -= sum;  // keys of all higher lanes
  const int left = wanted;
  __syncwarp();
  if (above >= left || above + sum < left) return;
  int here = left - above;
  int digit = kEach - 1;
#pragma unroll
  for (int i = kEach - 1; i > 0; --i) {
    if (digit == i && counts[i] < here) {
      here -= counts[i];
      digit = i - 1;
    }
  }
  wanted = here;
  prefix = prefix << 8 | static_cast<unsigned>(lane * kEach + digit);
}

/// The attended positions of a row in ascending order. The budget-th largest
/// score is found digit by digit; of equal scores the lowest groups are taken.
/// One block per row.
__global__ void __launch_bounds__(kSelectThreads) select_kernel(AttendParams p) {
  extern __shared__ unsigned kept[];  // keys of up to kMostKept groups
  trigger_next_grid();
  wait_previous_grid();
  __shared__ int histogram[kDigits];
  __shared__ int2 warp_sums[32];
  __shared__ unsigned prefix;
  __shared__ int wanted;
  const AttentionShape& s = p.shape;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const RowPlace place = place_row(p, p.first_row + static_cast<int>(blockIdx.x));
  const auto groups = static_cast<int>((place.position + 1) / s.ratio);
  const auto tail = static_cast<int>(place.position + 1 - static_cast<std::int64_t>(groups) * s.ratio);
  std::int32_t* list = p.scratch.positions + static_cast<std::int64_t>(blockIdx.x) * s.width();
  if (groups <= s.budget) {
    const int taken = groups * s.ratio;
    for (int i = thread; i < taken + tail; i += kSelectThreads) list[i] = i;
    if (thread == 0) p.scratch.counts[blockIdx.x] = taken + tail;
    return;
  }
  const float* scores = p.scratch.scores + static_cast<std::int64_t>(blockIdx.x) * p.scratch.most_groups;
  const bool keep = groups <= kMostKept;
  if (keep) {
#pragma unroll 8
    for (int g = thread; g < groups; g += kSelectThreads) kept[g] = ordered_bits(scores[g]);
  }
  const auto key_of = [&](int g) { return keep ? kept[g] : ordered_bits(scores[g]); };
  if (thread == 0) {
    prefix = 0;
    wanted = s.budget;
  }
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (thread < kDigits) histogram[thread] = 0;
    __syncthreads();
    const unsigned high = prefix;
    // Scores resemble each other: equal digits of a warp are counted together.
#pragma unroll 4
    for (int base = 0; base < groups; base += kSelectThreads) {
      const int g = base + thread;
      const unsigned key = g < groups ? key_of(g) : 0;
      const bool counts = g < groups && (shift == 24 || key >> (shift + 8) == high);
      const unsigned digit = counts ? key >> shift & 255U : 256U;
      const unsigned same = __match_any_sync(kAllLanes, digit);
      if (counts && (same & ((1U << lane) - 1U)) == 0) atomicAdd(histogram + digit, __popc(same));
    }
    __syncthreads();
    if (thread < 32) find_digit(histogram, lane, wanted, prefix);
    __syncthreads();
  }
  // All groups above the threshold, and the first `wanted` of those equal to it. A thread has consecutive groups.
  const unsigned threshold = prefix;
  const int equal_wanted = wanted;
  const int each = (groups + kSelectThreads - 1) / kSelectThreads;
  const int begin = thread * each;
  const int end = begin + each < groups ? begin + each : groups;
  int2 mine = make_int2(0, 0);  // above and equal
  for (int g = begin; g < end; ++g) {
    const unsigned key = key_of(g);
    mine.x += key > threshold ? 1 : 0;
    mine.y += key == threshold ? 1 : 0;
  }
  const int2 before = block_prefix(mine, warp_sums);
  int equals = before.y;
  int taken = before.x + (equals < equal_wanted ? equals : equal_wanted);
  for (int g = begin; g < end; ++g) {
    const unsigned key = key_of(g);
    const bool equal = key == threshold;
    const bool take = key > threshold || (equal && equals < equal_wanted);
    equals += equal ? 1 : 0;
    if (!take) continue;
    for (int i = 0; i < s.ratio; ++i) list[taken * s.ratio + i] = g * s.ratio + i;
    ++taken;
  }
  const int all = s.budget * s.ratio;
  if (thread < tail) list[all + thread] = groups * s.ratio + thread;
  if (thread == 0) p.scratch.counts[blockIdx.x] = all + tail;
}

}  // namespace

void choose_positions(Queue& queue, const AttendParams& p) {
  const AttentionShape& s = p.shape;
  const auto rows = static_cast<unsigned>(p.rows);
  const bool choice = p.scratch.most_groups > s.budget;
  const unsigned blocks = blocks_for(p.scratch.most_groups, kWarps * kGroupsPerWarp);
  if (choice && !score_few(queue, p)) {
    if (s.index_heads == kScoreHeads && s.index_dim == kScoreDim) {
      launch(queue, score_rows_kernel,
             {blocks_for(p.scratch.most_groups, kWarps * kScoreGroups), blocks_for(p.rows, kScoreRows), 1},
             {32 * kWarps, 1, 1}, 0, p);
    } else {
      const int heads = (s.index_heads + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce;
      launch(queue, score_kernel, {blocks, rows, 1}, {32 * kWarps, 1, 1},
             static_cast<std::size_t>(heads * s.index_dim) * sizeof(float), p);
    }
  }
  if (choice && (select_rows(queue, p) || select_cluster(queue, p))) return;
  const std::int64_t kept = choice ? std::min<std::int64_t>(p.scratch.most_groups, kMostKept) : 0;
  launch(queue, select_kernel, {rows, 1, 1}, {kSelectThreads, 1, 1}, static_cast<std::size_t>(kept) * sizeof(unsigned),
         p);
}

}  // namespace lockstep::kernels::cuda
