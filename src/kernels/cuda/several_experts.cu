#include "kernels/cuda/several_experts.hpp"

#include <algorithm>

#include "kernels/cuda/few_stack.cuh"
#include "kernels/cuda/quantise.cuh"
#include "kernels/cuda/several.cuh"
#include "kernels/cuda/several_routing.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kRows = static_cast<int>(kSeveralRows);
constexpr int kUnitTiles = 4;  ///< a unit: 64 values of an expert's inner rows, a warp a tile
constexpr int kParts = 3;      ///< units that a block works on at a time
constexpr int kInnerThreads = 32 * kUnitTiles * kParts;
constexpr int kMostChunks = 40;  ///< of an input row
constexpr int kStage = few_stage_bytes<4>(kSegmentChunks);
constexpr int kStages = 2;  ///< of a warp

struct InnerParams {
  Stack gate, up, shared_gate, shared_up;
  const uint4* digits;
  const float2* steps;
  std::uint8_t* inner_digits;
  float2* inner_steps;
  std::int32_t* choice;
  int tokens, ranks, chunks, segments, inner_chunks;
};

struct InnerShared {
  std::byte stages[kInnerThreads / 32][kStages][kStage];
  uint4 digits[kRows][kMostChunks * 8 + 1];  ///< so that two rows do not meet the same banks
  float2 steps[kRows][kMostChunks];
  float values[kParts][2][kRows][16 * kUnitTiles];
  std::int32_t words[4 * kMostChosen + 4];
};

/// Adds a segment of the rows of one pass to totals.
template <int kTokens>
__device__ __forceinline__ void add_segment(const std::byte* stage, int chunks, const uint4* digits,
                                            const float2* steps0, const float2* steps1, int lane, float (&totals)[4]) {
  float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
  if (chunks == kSegmentChunks) {
    const uint4* codes = reinterpret_cast<const uint4*>(stage) + lane;
    const uint2* pairs = reinterpret_cast<const uint2*>(stage + kSegmentChunks * 512) + lane / 4;
    add_all<kTokens, kSegmentChunks>(codes, pairs, digits, steps0, steps1, lane, sums);
  } else {
    add_groups<4, kTokens>(stage, kSegmentChunks, 0, chunks, digits, steps0, steps1, lane, sums);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) totals[i] += sums[i];
}

/// A unit: 64 gate values and 64 up values of one expert for its rows. Each of its four warps takes a tile of gate rows
/// and one of up rows, segment after segment.
__global__ void __launch_bounds__(kInnerThreads, 1) several_inner_kernel(InnerParams p) {
  extern __shared__ __align__(16) std::byte memory[];
  auto& shared = *reinterpret_cast<InnerShared*>(memory);
  trigger_next_grid();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int part = warp / kUnitTiles;
  const int z = warp % kUnitTiles;
  const int blocks = static_cast<int>(gridDim.x);
  const int pairs = p.tokens * p.ranks;
  const SortedPairs choice{shared.words, pairs};
  const std::uint64_t policy = once_policy();
  // Units of the shared expert come first: they are known in advance.
  const int unit0 = part * blocks + static_cast<int>(blockIdx.x);
  const int stride = kParts * blocks;
  int next_unit = unit0;
  int next_half = 0;
  int next_segment = 0;
  int next_stage = 0;
  const std::byte* codes = nullptr;
  const std::byte* tile_pairs = nullptr;
  const auto start = [&](int units) {
    if (next_unit < units) {
      if (next_segment == 0) {
        const int run = next_unit / p.inner_chunks - 1;
        const int tile = next_unit % p.inner_chunks * kUnitTiles + z;
        const Stack& stack =
            run < 0 ? (next_half == 0 ? p.shared_gate : p.shared_up) : (next_half == 0 ? p.gate : p.up);
        const std::int64_t expert = run < 0 ? 0 : choice.expert(run);
        const std::int64_t chunk = static_cast<std::int64_t>(tile) * p.chunks;
        codes = stack.codes + expert * stack.code_stride + chunk * 512;
        tile_pairs = stack.pairs + expert * stack.pair_stride + chunk * 64;
      }
      const int begin = next_segment * kSegmentChunks;
      stage_chunks<kSegmentChunks>(shared.stages[warp][next_stage], codes + begin * 512, tile_pairs + begin * 64,
                                   p.chunks - begin, policy, lane);
      if (++next_segment == p.segments) {
        next_segment = 0;
        next_half ^= 1;
        if (next_half == 0) next_unit += stride;
      }
      next_stage = (next_stage + 1) % kStages;
    }
    copies_made();
  };
  const bool early = unit0 < p.inner_chunks;
  if (early) {
#pragma unroll 1
    for (int s = 0; s < kStages; ++s) start(p.inner_chunks);
  }
  wait_previous_grid();
#pragma unroll 1
  for (int i = thread; i < 4 * pairs + 4; i += kInnerThreads) shared.words[i] = p.choice[i];
#pragma unroll 1
  for (int t = 0; t < p.tokens; ++t) {
#pragma unroll 1
    for (int i = thread; i < p.chunks * 8; i += kInnerThreads) {
      copy_soon(&shared.digits[t][i], p.digits + t * p.chunks * 8 + i);
    }
    if (thread < p.chunks) copy_eight_soon(&shared.steps[t][thread], p.steps + t * p.chunks + thread);
  }
  copies_made();
  __syncthreads();
  const int units = (choice.run_count() + 1) * p.inner_chunks;
  if (early) {
    wait_copies<0>();
  } else {
#pragma unroll 1
    for (int s = 0; s < kStages; ++s) start(units);
    wait_copies<kStages>();
  }
  __syncthreads();
  const int row = lane / 4;
  const int quad = lane % 4;
  int stage = 0;
  int round = 0;
#pragma unroll 1
  for (int unit = unit0; unit < units; unit += stride, ++round) {
    const int run = unit / p.inner_chunks - 1;
    const int first = run < 0 ? 0 : choice.first(run);
    const int count = run < 0 ? p.tokens : choice.count(run);
    // Columns of rows that are not there repeat the first one's and are not read.
    const auto in_row = [&](int k) {
      const int live = k < count ? k : 0;
      return run < 0 ? live : choice.order(first + live) / p.ranks;
    };
    const int width = count == 1 ? 1 : (count == 2 ? 2 : 8);  // rows of a pass
    const int mine = row & (width - 1);
    const int mine0 = (2 * quad) & (width - 1);
    const int mine1 = (2 * quad + 1) & (width - 1);
    const uint4* digits = &shared.digits[in_row(mine)][quad * 2];
    const float2* steps0 = shared.steps[in_row(mine0)];
    const float2* steps1 = shared.steps[in_row(mine1)];
    float gate[2][4];
    float up[2][4];
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int pass = 0; pass < 2; ++pass) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          gate[pass][i] = up[pass][i];
          up[pass][i] = 0.0F;
        }
      }
#pragma unroll 1
      for (int segment = 0; segment < p.segments; ++segment) {
        wait_copies<kStages - 1>();
        __syncwarp();
        const std::byte* weights = shared.stages[warp][stage];
        const int chunks =
            p.chunks - segment * kSegmentChunks < kSegmentChunks ? p.chunks - segment * kSegmentChunks : kSegmentChunks;
        const int at = segment * kSegmentChunks;
        if (width == 1) {
          add_segment<1>(weights, chunks, digits + at * 8, steps0 + at, steps0 + at, lane, up[0]);
        } else if (width == 2) {
          add_segment<2>(weights, chunks, digits + at * 8, steps0 + at, steps1 + at, lane, up[0]);
        } else {
#pragma unroll 1
          for (int pass = 0; pass < 2; ++pass) {
            if (pass * 8 >= count) continue;
            float some[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) some[i] = pass == 0 ? up[0][i] : up[1][i];
            const auto row_of = [&](int k) { return in_row(pass * 8 + k); };
            add_segment<8>(weights, chunks, &shared.digits[row_of(mine)][quad * 2 + at * 8],
                           shared.steps[row_of(mine0)] + at, shared.steps[row_of(mine1)] + at, lane, some);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              up[0][i] = pass == 0 ? some[i] : up[0][i];
              up[1][i] = pass == 1 ? some[i] : up[1][i];
            }
          }
        }
        __syncwarp();
        start(units);
        stage = (stage + 1) % kStages;
      }
    }
    float(&values)[kRows][16 * kUnitTiles] = shared.values[part][round % 2];
#pragma unroll
    for (int pass = 0; pass < 2; ++pass) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int k = pass * 8 + 2 * quad + c;
        if (k >= count || 2 * quad + c >= width) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          values[k][z * 16 + row + 8 * half] = canon_silu(gate[pass][2 * half + c]) * up[pass][2 * half + c];
        }
      }
    }
    part_barrier(part, 32 * kUnitTiles);
#pragma unroll 1
    for (int k = (z + round) % kUnitTiles; k < count; k += kUnitTiles) {
      const std::int64_t out = run < 0 ? pairs + k : choice.order(first + k);
      const std::int64_t group = out * p.inner_chunks + unit % p.inner_chunks;
      const float2 two = *reinterpret_cast<const float2*>(&values[k][2 * lane]);
      quantise_group64(two.x, two.y, 2 * lane, 2 * lane + 1, p.inner_digits + group * kChunkDigits,
                       p.inner_steps + group, lane);
    }
  }
  wait_copies<0>();
}

struct DownParams {
  Stack down, shared_down;
  const std::byte* digits;
  const std::byte* steps;
  const std::int32_t* choice;
  float* outputs;
  int tokens, ranks, chunks, hidden, tiles;
};

constexpr int kDownWarps = 12;
constexpr int kDownChunks = 10;  ///< most of an inner row
constexpr int kDownRows = 2;     ///< of a run at a time
constexpr int kRowDigits = kDownChunks * kChunkDigits;
constexpr int kRowBytes = kRowDigits + kDownChunks * 8;

struct DownSlot {
  std::byte weights[few_stage_bytes<4>(kDownChunks)];
  std::byte rows[kDownRows][kRowBytes];
};

struct DownShared {
  DownSlot slots[kDownWarps][kStages];
  std::int32_t words[4 * kMostChosen + 4];
};

/// All groups of an inner row, segment by segment, added to totals.
template <int kTokens>
__device__ __forceinline__ void add_inner(const std::byte* weights, int chunks, const uint4* digits,
                                          const float2* steps0, const float2* steps1, int lane, float (&totals)[4]) {
  if (chunks == kDownChunks) {
    const uint4* codes = reinterpret_cast<const uint4*>(weights) + lane;
    const uint2* pairs = reinterpret_cast<const uint2*>(weights + kDownChunks * 512) + lane / 4;
    constexpr int kRest = kDownChunks - kSegmentChunks;
    float first[4] = {0.0F, 0.0F, 0.0F, 0.0F};
    float second[4] = {0.0F, 0.0F, 0.0F, 0.0F};
    add_all<kTokens, kSegmentChunks>(codes, pairs, digits, steps0, steps1, lane, first);
    add_all<kTokens, kRest>(codes + kSegmentChunks * 32, pairs + kSegmentChunks * 8, digits + kSegmentChunks * 8,
                            steps0 + kSegmentChunks, steps1 + kSegmentChunks, lane, second);
#pragma unroll
    for (int i = 0; i < 4; ++i) totals[i] = (totals[i] + first[i]) + second[i];
    return;
  }
#pragma unroll 1
  for (int begin = 0; begin < chunks; begin += kSegmentChunks) {
    const int some = chunks - begin < kSegmentChunks ? chunks - begin : kSegmentChunks;
    float sums[4] = {0.0F, 0.0F, 0.0F, 0.0F};
    add_groups<4, kTokens>(weights, kDownChunks, begin, some, digits, steps0, steps1, lane, sums);
#pragma unroll
    for (int i = 0; i < 4; ++i) totals[i] += sums[i];
  }
}

/// A warp takes one tile of 16 outputs of one expert at a time, with kDownRows of its rows, and two such items are
/// under way.
__global__ void __launch_bounds__(32 * kDownWarps, 1) several_down_kernel(DownParams p) {
  extern __shared__ __align__(16) std::byte memory[];
  auto& shared = *reinterpret_cast<DownShared*>(memory);
  trigger_next_grid();
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int pairs = p.tokens * p.ranks;
  const SortedPairs choice{shared.words, pairs};
  const std::uint64_t policy = once_policy();
  const int item0 = static_cast<int>(blockIdx.x) * kDownWarps + warp;
  const int stride = static_cast<int>(gridDim.x) * kDownWarps;
  // Items go by runs, then tiles: those of the shared expert first.
  struct Item {
    int run, tile;
  };
  const int run_stride = stride / p.tiles;
  const int tile_stride = stride % p.tiles;
  const auto advance = [&](Item& item) {
    item.run += run_stride;
    item.tile += tile_stride;
    if (item.tile >= p.tiles) {
      item.tile -= p.tiles;
      ++item.run;
    }
  };
  const auto row_of = [&](int run, int k) { return run < 0 ? pairs + k : choice.order(choice.first(run) + k); };
  const auto count_of = [&](int run) { return run < 0 ? p.tokens : choice.count(run); };
  const auto start_weights = [&](const Item& item, int slot) {
    const std::int64_t chunk = static_cast<std::int64_t>(item.tile) * p.chunks;
    const Stack& stack = item.run < 0 ? p.shared_down : p.down;
    const std::int64_t expert = item.run < 0 ? 0 : choice.expert(item.run);
    stage_chunks<kDownChunks>(shared.slots[warp][slot].weights, stack.codes + expert * stack.code_stride + chunk * 512,
                              stack.pairs + expert * stack.pair_stride + chunk * 64, p.chunks, policy, lane);
  };
  const auto start_rows = [&](int run, int base, int here, int slot) {
#pragma unroll 1
    for (int k = 0; k < here; ++k) {
      std::byte* to = shared.slots[warp][slot].rows[k];
      const std::int64_t from = static_cast<std::int64_t>(row_of(run, base + k)) * p.chunks;
#pragma unroll
      for (int i = 0; i < kDownChunks * 8; i += 32) {
        if (i + lane < p.chunks * 8) copy_soon(to + (i + lane) * 16, p.digits + from * kChunkDigits + (i + lane) * 16);
      }
      if (lane < p.chunks) copy_eight_soon(to + kRowDigits + lane * 8, p.steps + (from + lane) * 8);
    }
  };
  Item next{item0 / p.tiles - 1, item0 % p.tiles};
  const auto start = [&](int runs, int slot) {
    if (next.run < runs) {
      const int count = count_of(next.run);
      start_weights(next, slot);
      start_rows(next.run, 0, count < kDownRows ? count : kDownRows, slot);
    }
    copies_made();
    advance(next);
  };
  // The shared expert's tiles are known in advance.
  const bool early = next.run < 0;
  if (early) start_weights(next, 0);
  wait_previous_grid();
#pragma unroll 1
  for (int i = thread; i < 4 * pairs + 4; i += 32 * kDownWarps) shared.words[i] = p.choice[i];
  __syncthreads();
  const int runs = choice.run_count();
  Item item = next;
  if (early) {
    start_rows(-1, 0, kDownRows < p.tokens ? kDownRows : p.tokens, 0);
    copies_made();
    advance(next);
  } else {
    start(runs, 0);
  }
  start(runs, 1);
  const int row = lane / 4;
  const int quad = lane % 4;
  int slot = 0;
#pragma unroll 1
  for (; item.run < runs; advance(item), slot ^= 1) {
    const int run = item.run;
    const int count = count_of(run);
    wait_copies<1>();
    __syncwarp();
    const DownSlot& now = shared.slots[warp][slot];
#pragma unroll 1
    for (int base = 0; base < count; base += kDownRows) {
      const int here = count - base < kDownRows ? count - base : kDownRows;
      if (base > 0) {
        __syncwarp();
        start_rows(run, base, here, slot);
        copies_made();
        wait_copies<0>();
        __syncwarp();
      }
      const auto at_row = [&](int column) { return now.rows[here == 1 ? 0 : column % kDownRows]; };
      const auto* digits = reinterpret_cast<const uint4*>(at_row(row)) + quad * 2;
      const auto* steps0 = reinterpret_cast<const float2*>(at_row(0) + kRowDigits);
      const auto* steps1 = reinterpret_cast<const float2*>(at_row(1) + kRowDigits);
      float totals[4] = {0.0F, 0.0F, 0.0F, 0.0F};
      if (here == 1) {
        add_inner<1>(now.weights, p.chunks, digits, steps0, steps0, lane, totals);
      } else {
        add_inner<2>(now.weights, p.chunks, digits, steps0, steps1, lane, totals);
      }
      if (quad == 0) {
        const int r = item.tile * 16 + row;
#pragma unroll
        for (int c = 0; c < kDownRows; ++c) {
          if (c >= here) continue;
          float* to = p.outputs + static_cast<std::int64_t>(row_of(run, base + c)) * p.hidden;
          if (r < p.hidden) to[r] = totals[c];
          if (r + 8 < p.hidden) to[r + 8] = totals[2 + c];
        }
      }
    }
    __syncwarp();
    start(runs, slot);
  }
  wait_copies<0>();
}

struct CombineParams {
  const float *outputs, *shared_logit;
  std::int32_t* choice;
  Tail tail;
  int tokens, ranks, hidden;
};

/// Blocks: x places of the hidden dimension, y rows.
__global__ void several_combine_kernel(CombineParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const int t = static_cast<int>(blockIdx.y);
  const int r = thread_item();
  if (r >= p.hidden) return;
  const int pairs = p.tokens * p.ranks;
  const float* weights = SortedPairs{p.choice, pairs}.weights() + t * p.ranks;
  TailValues tail;
  if (p.tail.x != nullptr) tail.load(p.tail.x, p.tail.inject, p.tail.streams, t, p.hidden, r);
  const float* outputs = p.outputs + static_cast<std::int64_t>(t) * p.ranks * p.hidden + r;
  const float shared = p.outputs[static_cast<std::int64_t>(pairs + t) * p.hidden + r];
  const float share = p.shared_logit[t];
  float values[kMostRanks];
  float gains[kMostRanks];
#pragma unroll
  for (int rank = 0; rank < kMostRanks; ++rank) {
    if (rank >= p.ranks) continue;
    values[rank] = outputs[static_cast<std::int64_t>(rank) * p.hidden];
    gains[rank] = weights[rank];
  }
  float y = 0.0F;
#pragma unroll
  for (int rank = 0; rank < kMostRanks; ++rank) {
    if (rank < p.ranks) y = canon_fma(gains[rank], values[rank], y);
  }
  y = canon_fma(canon_sigmoid(share), shared, y);
  if (p.tail.x == nullptr) {
    p.tail.y[static_cast<std::int64_t>(t) * p.hidden + r] = y;
  } else {
    tail.store(p.tail.x, p.tail.streams, t, p.hidden, r, y);
  }
}

}  // namespace

bool several_experts_take(const FewExperts& e) {
  FewExperts few = e;
  few.rows = 1;
  return few_experts_take(few) && e.rows <= kSeveralRows && e.ranks <= e.gate->count && e.gate->chunks() <= kMostChunks;
}

void several_experts(Queue& queue, const FewExperts& e, const float* logits, const float* shared_logit,
                     const ActivationRows& x, const SeveralScratch& scratch, const Tail& tail) {
  const auto rows = static_cast<int>(e.rows);
  const auto ranks = static_cast<int>(e.ranks);
  const auto hidden = static_cast<int>(e.down->rows);
  const auto room = static_cast<unsigned>(queue.multiprocessors());
  SeveralRoute route{};
  route.logits = logits;
  route.choice = scratch.choice;
  route.arrived = scratch.arrived;
  route.rows = rows;
  route.experts = static_cast<int>(e.gate->count);
  route.ranks = ranks;
  launch(queue, several_route_kernel, {static_cast<unsigned>(rows), 1, 1}, {kRouteThreads, 1, 1}, 0, route);

  InnerParams inner{};
  inner.gate = stack_of(*e.gate);
  inner.up = stack_of(*e.up);
  inner.shared_gate = stack_of(*e.shared_gate);
  inner.shared_up = stack_of(*e.shared_up);
  inner.digits = static_cast<const uint4*>(x.digits);
  inner.steps = static_cast<const float2*>(x.steps);
  inner.inner_digits = static_cast<std::uint8_t*>(scratch.inner->digits);
  inner.inner_steps = static_cast<float2*>(scratch.inner->steps);
  inner.choice = scratch.choice;
  inner.tokens = rows;
  inner.ranks = ranks;
  inner.chunks = static_cast<int>(e.gate->chunks());
  inner.segments = (inner.chunks + kSegmentChunks - 1) / kSegmentChunks;
  inner.inner_chunks = static_cast<int>(e.gate->rows / 64);
  launch(queue, several_inner_kernel, {room, 1, 1}, {kInnerThreads, 1, 1}, sizeof(InnerShared), inner);

  DownParams down{};
  down.down = stack_of(*e.down);
  down.shared_down = stack_of(*e.shared_down);
  down.digits = static_cast<const std::byte*>(scratch.inner->digits);
  down.steps = static_cast<const std::byte*>(scratch.inner->steps);
  down.choice = scratch.choice;
  down.outputs = scratch.outputs;
  down.tokens = rows;
  down.ranks = ranks;
  down.chunks = static_cast<int>(e.down->chunks());
  down.hidden = hidden;
  down.tiles = static_cast<int>(e.down->tiles());
  launch(queue, several_down_kernel, {room, 1, 1}, {32 * kDownWarps, 1, 1}, sizeof(DownShared), down);

  CombineParams combine{};
  combine.outputs = scratch.outputs;
  combine.shared_logit = shared_logit;
  combine.choice = scratch.choice;
  combine.tail.y = tail.y;
  combine.tail.x = tail.x;
  combine.tail.inject = tail.inject;
  combine.tail.streams = tail.streams;
  combine.tokens = rows;
  combine.ranks = ranks;
  combine.hidden = hidden;
  launch(queue, several_combine_kernel, {blocks_for(hidden, 256), static_cast<unsigned>(rows), 1}, {256, 1, 1}, 0,
         combine);
}

}  // namespace lockstep::kernels::cuda
