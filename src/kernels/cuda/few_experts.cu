#include "kernels/cuda/few_experts.hpp"

#include <algorithm>

#include "kernels/cuda/few.cuh"
#include "kernels/cuda/few_routing.cuh"
#include "kernels/cuda/few_stack.cuh"
#include "kernels/cuda/quantise.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kSegments = 5;   ///< most of the input
constexpr int kUnitTiles = 4;  ///< a unit: 64 values of an expert's inner row
constexpr int kInnerThreads = 32 * kSegments * kUnitTiles;
static_assert(kInnerThreads == 32 * kRoutingWarps);

/// Pairs (row, rank) sorted by expert, in device memory between the kernels.
///
/// The second kernel's blocks are there long before the first one ends, and need the choice to fetch their weights:
/// word 1 becomes the layer's mark when the choice is complete, and the last reader of the second kernel (counted in
/// word 2) takes the mark away. A mark that is found is this layer's and this step's: kernels of other layers have
/// other marks, and no kernel of a step starts before those of the step before are done.
struct Choice {
  std::int32_t* words;
  int pairs;
  __device__ __forceinline__ std::int32_t& run_count() const { return words[0]; }
  __device__ __forceinline__ void complete(unsigned mark) const {
    __threadfence();
    atomicExch(reinterpret_cast<unsigned*>(words + 1), mark);
  }
  __device__ __forceinline__ void await(unsigned mark) const {
    unsigned seen = 0;
    while (seen != mark) {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(words + 1) : "memory");
    }
  }
  __device__ __forceinline__ void read_by_one_of(unsigned readers) const {
    const unsigned before = atomicInc(reinterpret_cast<unsigned*>(words + 2), readers - 1);
    if (before == readers - 1) atomicExch(reinterpret_cast<unsigned*>(words + 1), 0U);
  }
  __device__ __forceinline__ std::int32_t& expert(int run) const { return words[4 + run]; }
  __device__ __forceinline__ std::int32_t& first(int run) const { return words[4 + pairs + run]; }  ///< in order
  __device__ __forceinline__ std::int32_t& order(int place) const { return words[4 + 2 * pairs + place]; }
  __device__ __forceinline__ float* weights() const { return reinterpret_cast<float*>(words + 4 + 3 * pairs); }
};

struct InnerParams {
  Stack gate, up, shared_gate, shared_up;
  const float* logits;
  const uint4* digits;
  const float2* steps;
  std::uint8_t* inner_digits;
  float2* inner_steps;
  std::int32_t* choice;
  int tokens, experts, ranks, chunks, segments, inner_chunks, blocks;
  unsigned segment_part;  ///< of part_of()
  unsigned mark;          ///< of Choice
};

/// The parts' memory serves the router's values first.
__host__ __device__ constexpr int parts_floats(int parts, int tokens) {
  return parts > tokens * kMostExperts ? parts : tokens * kMostExperts;
}

/// Steps of the rows, so many that what follows is aligned to 16 bytes.
__host__ __device__ constexpr int steps_room(int steps) {
  return (steps + 1) / 2 * 2;
}

/// By all threads of a block.
__device__ __forceinline__ void store_choice(const Routing& routing, const Choice& out, unsigned mark) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) out.run_count() = routing.runs;
  if (thread < out.pairs) {
    if (thread < routing.runs) {
      out.expert(thread) = routing.expert[thread];
      out.first(thread) = routing.first[thread];
    }
    out.order(thread) = routing.order[thread];
    out.weights()[thread] = routing.weights[thread];
  }
  __syncthreads();
  if (thread == 0) out.complete(mark);
}

/// One unit a round: 64 gate values and 64 up values of one expert for its rows, one warp per tile and segment, the
/// gate tile and then the up tile. The last block only writes the choice down: waiting until others can see it would
/// hold up a block with a unit.
template <int kTokens>
__global__ void __launch_bounds__(kInnerThreads, 1) inner_kernel(InnerParams p) {
  extern __shared__ __align__(16) std::byte memory[];
  trigger_next_grid();
  constexpr int kStage = few_stage_bytes<4>(kSegmentChunks);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int threads = static_cast<int>(blockDim.x);
  const int warps = threads / 32;
  const int z = part_of(warp, p.segment_part);
  const int segment = warp - z * p.segments;
  const int chunks =
      p.chunks - segment * kSegmentChunks < kSegmentChunks ? p.chunks - segment * kSegmentChunks : kSegmentChunks;
  const int block = static_cast<int>(blockIdx.x);
  auto* parts = reinterpret_cast<float*>(memory + 2 * warps * kStage);  // [2][gate, up][z][segment][kTokens][16]
  const int part_size = kUnitTiles * p.segments * kTokens * 16;
  auto* digits = reinterpret_cast<uint4*>(parts + parts_floats(4 * part_size, p.tokens));
  auto* steps = reinterpret_cast<float2*>(digits + p.tokens * p.chunks * 8);
  auto& routing = *reinterpret_cast<Routing*>(steps + steps_room(p.tokens * p.chunks));
  std::byte* stages = memory + warp * 2 * kStage;
  // Units of the shared expert come first: they are known in advance.
  const auto start = [&](int unit, int half) {
    const int run = unit / p.inner_chunks - 1;
    const int tile = unit % p.inner_chunks * kUnitTiles + z;
    const Stack& stack = run < 0 ? (half == 0 ? p.shared_gate : p.shared_up) : (half == 0 ? p.gate : p.up);
    const std::int64_t expert = run < 0 ? 0 : routing.expert[run];
    const std::int64_t chunk = static_cast<std::int64_t>(tile) * p.chunks + segment * kSegmentChunks;
    stage_tile<4>(stages + half * kStage, stack.codes + expert * stack.code_stride + chunk * 512,
                  stack.pairs + expert * stack.pair_stride + chunk * 64, chunks, kSegmentChunks, lane);
  };
  const bool early = block < p.inner_chunks && block < p.blocks;
  const auto start_both = [&] {
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      start(block, half);
      copies_made();
    }
  };
  if (early) start_both();
  wait_previous_grid();
#pragma unroll 1
  for (int i = thread; i < p.tokens * p.chunks * 8; i += threads) copy_soon(digits + i, p.digits + i);
#pragma unroll 1
  for (int i = thread; i < p.tokens * p.chunks; i += threads) copy_eight_soon(steps + i, p.steps + i);
  copies_made();
  choose<kTokens>(routing, reinterpret_cast<float(*)[kMostExperts]>(parts), p);
  const int pairs = p.tokens * p.ranks;
  if (block == p.blocks) {
    wait_copies<0>();
    store_choice(routing, {p.choice, pairs}, p.mark);
    return;
  }
  const int units = (routing.runs + 1) * p.inner_chunks;
  if (early) {
    wait_copies<0>();
  } else {
    if (block < units) start_both();
    wait_copies<2>();
  }
  __syncthreads();
  const int row = lane / 4;
  const int quad = lane % 4;
  int round = 0;
#pragma unroll 1
  for (int unit = block; unit < units; unit += p.blocks, ++round) {
    const int run = unit / p.inner_chunks - 1;
    const int first = run < 0 ? 0 : routing.first[run];
    const int end = run < 0 ? p.tokens : (run + 1 < routing.runs ? routing.first[run + 1] : pairs);
    const int count = end - first;
    // Row of the input and row of the result of the unit's k-th row.
    const auto in_row = [&](int k) {
      if constexpr (kTokens == 1) return 0;
      return run < 0 ? k : routing.order[first + k] / p.ranks;
    };
    const auto out_row = [&](int k) { return run < 0 ? pairs + k : routing.order[first + k]; };
    // Columns of rows that are not there repeat the first one's and are not read.
    const auto at_row = [&](int column) {
      const int k = Columns<kTokens>::token(column);
      return in_row(k < count ? k : 0) * p.chunks + segment * kSegmentChunks;
    };
    const uint4* my_digits = digits + at_row(row) * 8 + quad * 2;
    const float2* steps0 = steps + at_row(2 * quad);
    const float2* steps1 = steps + at_row(2 * quad + 1);
    float* mine = parts + round % 2 * 2 * part_size;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      wait_copies<1>();
      __syncwarp();
      const std::byte* stage = stages + half * kStage;
      float* to = mine + half * part_size + (z * p.segments + segment) * kTokens * 16 + row;
      if (count == 1) {
        const int at = in_row(0) * p.chunks + segment * kSegmentChunks;
        const float sum = add_groups_of_row<4>(stage, kSegmentChunks, 0, chunks, digits + at * 8, steps + at, lane);
        if (quad < 2) to[quad * 8] = sum;
      } else if constexpr (kTokens > 1) {
        float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
        add_groups<4, kTokens>(stage, kSegmentChunks, 0, chunks, my_digits, steps0, steps1, lane, sums);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int token = 2 * quad + c;
          if (token >= kTokens) continue;
          to[token * 16] = sums[c];
          to[token * 16 + 8] = sums[2 + c];
        }
      }
      __syncwarp();
      if (unit + p.blocks < units) start(unit + p.blocks, half);
      copies_made();
    }
    __syncthreads();
    // A warp quantises the 64 values of one row.
    if (warp >= count) continue;
    float values[2];
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      const int at = 2 * lane + i;
      float two[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float* from = mine + half * part_size + (at / 16 * p.segments * kTokens + warp) * 16 + at % 16;
        float parts_of[kSegments];
#pragma unroll
        for (int s = 0; s < kSegments; ++s) parts_of[s] = s < p.segments ? from[s * kTokens * 16] : 0.0F;
        float total = 0.0F;
#pragma unroll
        for (int s = 0; s < kSegments; ++s) total += parts_of[s];
        two[half] = total;
      }
      const float value = canon_silu(two[0]) * two[1];
      values[0] = i == 0 ? value : values[0];
      values[1] = value;
    }
    const std::int64_t group = static_cast<std::int64_t>(out_row(warp)) * p.inner_chunks + unit % p.inner_chunks;
    quantise_group64(values[0], values[1], 2 * lane, 2 * lane + 1, p.inner_digits + group * kChunkDigits,
                     p.inner_steps + group, lane);
  }
  wait_copies<0>();
}

struct DownParams {
  Stack down, shared_down;
  const std::byte* digits;
  const std::byte* steps;
  std::int32_t* choice;
  const float* shared_logit;
  Tail tail;
  int tokens, ranks, chunks, hidden;
  unsigned mark;  ///< of Choice
};

/// A row's ten experts and the shared one at once; those of four rows, about 39, in three rounds instead of the four of
/// twelve warps (a layer of four rows 129.5 to 127 us).
template <int kTokens>
constexpr int kDownWarps = kTokens == 1 ? 11 : 14;
constexpr int kDownChunks = 10;  ///< most of an inner row

constexpr int kDownWeights = few_stage_bytes<4>(kDownChunks);
constexpr int kDownRow = kDownChunks * (kChunkDigits + 8);

/// One block per tile of 16 outputs. A warp takes one expert's tile at a time, with one of its rows at a time; the last
/// warp has room for all rows, and begins with the shared expert, which meets them all.
template <int kTokens>
__global__ void __launch_bounds__(32 * kDownWarps<kTokens>, 2) experts_down_kernel(DownParams p) {
  extern __shared__ __align__(16) std::byte memory[];
  constexpr int kWarps = kDownWarps<kTokens>;
  __shared__ Arrival arrivals[kWarps];
  trigger_next_grid();
  constexpr int kSlot = kDownWeights + kDownRow;
  __shared__ float results[kTokens * (kMostRanks + 1)][16];
  __shared__ std::int32_t words[4 * kTokens * kMostRanks + 4];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int tile = static_cast<int>(blockIdx.x);
  const int pairs = p.tokens * p.ranks;
  std::byte* slot = memory + warp * kSlot;
  const std::int64_t chunk = static_cast<std::int64_t>(tile) * p.chunks;
  // The shared expert's tile is known in advance.
  Arrival& arrival = arrivals[warp];
  if (lane == 0) {
    arrival_init(arrival);
    if (warp == kWarps - 1) {
      stage_tile_at_once<4>(slot, p.shared_down.codes + chunk * 512, p.shared_down.pairs + chunk * 64, p.chunks,
                            kDownChunks, arrival);
    }
  }
  const Choice choice{words, pairs};
  const auto stage_run = [&](int run) {
    const std::int64_t expert = choice.expert(run);
    stage_tile_at_once<4>(slot, p.down.codes + expert * p.down.code_stride + chunk * 512,
                          p.down.pairs + expert * p.down.pair_stride + chunk * 64, p.chunks, kDownChunks, arrival);
  };
  // The choice is known long before the inner rows are: the first weights are on their way meanwhile.
  const Choice made{p.choice, pairs};
  if (thread == 0) made.await(p.mark);
  __syncthreads();
  for (int i = thread; i < 4 * pairs + 4; i += 32 * kWarps) words[i] = __ldcg(p.choice + i);
  __syncthreads();
  if (thread == 0) made.read_by_one_of(gridDim.x);
  const int runs = choice.run_count();
  if (lane == 0 && warp < kWarps - 1 && warp < runs) stage_run(warp);
  wait_previous_grid();
  // What the end needs is on its way from the start.
  const int t = thread / 16;
  const int r = tile * 16 + thread % 16;
  const bool mine = t < p.tokens && r < p.hidden;
  TailValues tail;
  float shared_logit = 0.0F;
  if (mine) {
    shared_logit = p.shared_logit[t];
    if (p.tail.x != nullptr) tail.load(p.tail.x, p.tail.inject, p.tail.streams, t, p.hidden, r);
  }
  const int row = lane / 4;
  const int quad = lane % 4;
  const int room = warp == kWarps - 1 ? kTokens : 1;
#pragma unroll 1
  for (int round = 0;; ++round) {
    const int run = round == 0 && warp == kWarps - 1 ? -1 : warp + (round == 0 ? 0 : round * kWarps - 1);
    if (run >= runs) break;
    int first = 0;
    int count = p.tokens;
    if (run >= 0) {
      first = choice.first(run);
      count = (run + 1 < runs ? choice.first(run + 1) : pairs) - first;
      if (lane == 0 && round > 0) stage_run(run);
    }
    const auto row_of = [&](int k) { return run < 0 ? pairs + k : choice.order(first + k); };
#pragma unroll 1
    for (int base = 0; base < count; base += room) {
      std::byte* rows = slot + kDownWeights;
      const int here = count - base < room ? count - base : room;
#pragma unroll 1
      for (int k = 0; k < here; ++k) {
        const std::int64_t from = static_cast<std::int64_t>(row_of(base + k)) * p.chunks;
#pragma unroll 1
        for (int i = lane; i < p.chunks * 8; i += 32) {
          copy_soon(rows + k * kDownRow + i * 16, p.digits + from * kChunkDigits + i * 16);
        }
#pragma unroll 1
        for (int i = lane; i < p.chunks; i += 32) {
          copy_eight_soon(rows + k * kDownRow + kDownChunks * kChunkDigits + i * 8, p.steps + (from + i) * 8);
        }
      }
      copies_made();
      wait_copies<0>();
      __syncwarp();
      arrival_wait(arrival, round & 1);
      const auto at_row = [&](int column) {
        const int k = Columns<kTokens>::token(column);
        return rows + (k < here ? k : 0) * kDownRow;
      };
      const auto* digits = reinterpret_cast<const uint4*>(at_row(row)) + quad * 2;
      const auto steps_of = [&](int column) {
        return reinterpret_cast<const float2*>(at_row(column) + kDownChunks * kChunkDigits);
      };
      if (kTokens == 1 || here == 1) {
        float total = 0.0F;
#pragma unroll 1
        for (int begin = 0; begin < p.chunks; begin += kSegmentChunks) {
          const int some = p.chunks - begin < kSegmentChunks ? p.chunks - begin : kSegmentChunks;
          total += add_groups_of_row<4>(slot, kDownChunks, begin, some, reinterpret_cast<const uint4*>(rows),
                                        steps_of(0), lane);
        }
        if (quad < 2) results[row_of(base)][quad * 8 + row] = total;
        __syncwarp();
        continue;
      }
      float totals[4] = {0.0F, 0.0F, 0.0F, 0.0F};
#pragma unroll 1
      for (int begin = 0; begin < p.chunks; begin += kSegmentChunks) {
        const int some = p.chunks - begin < kSegmentChunks ? p.chunks - begin : kSegmentChunks;
        float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
        add_groups<4, kTokens>(slot, kDownChunks, begin, some, digits, steps_of(2 * quad), steps_of(2 * quad + 1), lane,
                               sums);
#pragma unroll
        for (int i = 0; i < 4; ++i) totals[i] += sums[i];
      }
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int k = 2 * quad + c;
        if (k >= here || k >= kTokens) continue;
        float* to = results[row_of(base + k)];
        to[row] = totals[c];
        to[row + 8] = totals[2 + c];
      }
      __syncwarp();
    }
  }
  __syncthreads();
  if (!mine) return;
  float y = 0.0F;
#pragma unroll 2
  for (int rank = 0; rank < p.ranks; ++rank) {
    y = canon_fma(choice.weights()[t * p.ranks + rank], results[t * p.ranks + rank][thread % 16], y);
  }
  y = canon_fma(canon_sigmoid(shared_logit), results[pairs + t][thread % 16], y);
  if (p.tail.x == nullptr) {
    p.tail.y[static_cast<std::int64_t>(t) * p.hidden + r] = y;
  } else {
    tail.store(p.tail.x, p.tail.streams, t, p.hidden, r, y);
  }
}

unsigned mark_of(const FewExperts& e) {
  const auto mark = static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(e.down->codes) >> 8);
  return mark == 0 ? 1 : mark;
}

bool usual(const AffineWeights& weights) {
  return weights.bits == 4 && weights.group == 64 && !weights.wide_pairs && weights.cols % 64 == 0;
}

}  // namespace

bool few_experts_take(const FewExperts& e) {
  const bool kinds = usual(*e.gate) && usual(*e.up) && usual(*e.down) && usual(*e.shared_gate) && usual(*e.shared_up) &&
                     usual(*e.shared_down);
  return kinds && e.rows <= kFewExpertRows && e.ranks <= kMostRanks && e.gate->count <= kMostExperts &&
         e.gate->chunks() <= kSegments * kSegmentChunks && e.down->chunks() <= kDownChunks &&
         e.gate->rows == e.shared_gate->rows && e.gate->rows % 64 == 0;
}

void few_experts_inner(Queue& queue, const FewExperts& e, const float* logits, const ActivationRows& x,
                       const ActivationRows& inner, std::int32_t* choice) {
  InnerParams p{};
  p.gate = stack_of(*e.gate);
  p.up = stack_of(*e.up);
  p.shared_gate = stack_of(*e.shared_gate);
  p.shared_up = stack_of(*e.shared_up);
  p.logits = logits;
  p.digits = static_cast<const uint4*>(x.digits);
  p.steps = static_cast<const float2*>(x.steps);
  p.inner_digits = static_cast<std::uint8_t*>(inner.digits);
  p.inner_steps = static_cast<float2*>(inner.steps);
  p.choice = choice;
  p.mark = mark_of(e);
  p.tokens = static_cast<int>(e.rows);
  p.experts = static_cast<int>(e.gate->count);
  p.ranks = static_cast<int>(e.ranks);
  p.chunks = static_cast<int>(e.gate->chunks());
  p.segments = (p.chunks + kSegmentChunks - 1) / kSegmentChunks;
  p.segment_part = part_factor(p.segments);
  p.inner_chunks = static_cast<int>(e.gate->rows / 64);
  const std::int64_t most = (std::min(e.gate->count, e.rows * e.ranks) + 1) * p.inner_chunks;
  p.blocks = static_cast<int>(std::min<std::int64_t>(most, std::max(queue.multiprocessors() - 1, 1)));
  const int columns = p.tokens == 1 ? 1 : 4;
  const auto warps = static_cast<std::size_t>(p.segments * kUnitTiles);
  const int parts = parts_floats(static_cast<int>(warps) * columns * 64, p.tokens);
  const std::size_t shared = warps * 2 * few_stage_bytes<4>(kSegmentChunks) +
                             static_cast<std::size_t>(parts) * sizeof(float) +
                             static_cast<std::size_t>(p.tokens * p.chunks) * kChunkDigits +
                             static_cast<std::size_t>(steps_room(p.tokens * p.chunks)) * 8 + sizeof(Routing);
  const Extent grid{static_cast<unsigned>(p.blocks) + 1, 1, 1};
  const Extent block{static_cast<unsigned>(32 * warps), 1, 1};
  launch(queue, p.tokens == 1 ? inner_kernel<1> : inner_kernel<4>, grid, block, shared, p);
}

void few_experts_down(Queue& queue, const FewExperts& e, const ActivationRows& inner, std::int32_t* choice,
                      const float* shared_logit, const Tail& tail) {
  DownParams p{};
  p.down = stack_of(*e.down);
  p.shared_down = stack_of(*e.shared_down);
  p.digits = static_cast<const std::byte*>(inner.digits);
  p.steps = static_cast<const std::byte*>(inner.steps);
  p.choice = choice;
  p.mark = mark_of(e);
  p.shared_logit = shared_logit;
  p.tail.y = tail.y;
  p.tail.x = tail.x;
  p.tail.inject = tail.inject;
  p.tail.streams = tail.streams;
  p.tokens = static_cast<int>(e.rows);
  p.ranks = static_cast<int>(e.ranks);
  p.chunks = static_cast<int>(e.down->chunks());
  p.hidden = static_cast<int>(e.down->rows);
  const int columns = p.tokens == 1 ? 1 : 4;
  const int warps = p.tokens == 1 ? kDownWarps<1> : kDownWarps<4>;
  const auto shared = static_cast<std::size_t>(warps * (kDownWeights + kDownRow) + (columns - 1) * kDownRow);
  launch(queue, p.tokens == 1 ? experts_down_kernel<1> : experts_down_kernel<4>,
         {static_cast<unsigned>(e.down->tiles()), 1, 1}, {static_cast<unsigned>(32 * warps), 1, 1}, shared, p);
}

}  // namespace lockstep::kernels::cuda
