// Quantised products of very many activation rows: tensor cores of four warps work together, other warps fetch
// (docs/numerics.md N3).
#include "kernels/cuda/affine_groups.cuh"
#include "kernels/cuda/affine_tiles.cuh"
#include "kernels/cuda/barriers.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "numerics/affine.hpp"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kTokens = kItemTokens;
constexpr int kThreads = kGroups * 128;  ///< that multiply
constexpr int kStages = 4;
/// Items that are described at once: one a stage, the next one, one whose results are being stored.
constexpr int kItems = 8;

/// What arrives together, in an order that lets what reads it meet all banks: the 16 bytes of codes of lane 4 * g + j
/// are at code_place(), those of a token's digits at digit_place(). A copy takes one pass for each 128 bytes where
/// eight lanes copy 128 consecutive bytes to 128 consecutive ones and leave pairs of lanes together, else one for each
/// lane: codes that were scattered cost 130 of 940 us.
struct Stage {
  uint4 digits[kStageChunks][kTokens][8];
  uint4 codes[kGroups][kGroupTiles][kStageChunks][32];
  uint2 pairs[kGroups][kGroupTiles][kStageChunks][8];
  float2 steps[kStageChunks][kTokens];
};
static_assert(sizeof(Stage) % 1024 == 0, "the swizzle of the digits counts from multiples of 1024");

struct Shared {
  Stage stages[kStages];
  float totals[kTokens / 2][kThreads];  ///< of the segments that are done, each thread its own
  GroupItem items[kItems];
  GroupShare share;
  std::uint64_t full[kStages];   ///< barriers: the stage has arrived
  std::uint64_t empty[kStages];  ///< all warps have used it
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kSegmentChunks = kSegmentInputs / 64;

__device__ __forceinline__ int code_place(int g, int j) {
  return 4 * g + (j ^ g / 2);
}
/// Of piece `piece` of a token's digits (ActivationRows): the high ones, then the low ones, as digit_operand() wants
/// it.
__device__ __forceinline__ int digit_place(int token, int piece) {
  return (piece % 2 * 4 + piece / 2) ^ token % 8;
}
constexpr unsigned kLowDigits = 4;              ///< from the high digits on, in 16 bytes
constexpr unsigned kEightDigits = 8 * 8;        ///< from eight tokens to the next
constexpr unsigned kChunkDigits = kTokens * 8;  ///< from a chunk to the next

/// Makes a thread's copies visible to the tensor cores of the other threads, which wait for it at a barrier.
__device__ __forceinline__ void show_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// The fetching warps need few registers, the others get theirs.
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
}
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
}

/// Where the next copies of a thread of the fetching warps come from. A warp fetches the codes of one unit, and digits
/// of four tokens at a time.
struct Source {
  static constexpr int kAtOnce = kFetchThreads / 8;  ///< tokens
  const uint4 *codes, *pairs, *digits;
  const float2* steps;
  int tiles_left, tile_stride;  ///< tiles after the unit's first one, below 0: no such unit; codes of a tile
  unsigned rows[kTokens / kAtOnce];

  __device__ __forceinline__ void start(const GroupParams& p, GroupItem& item, int thread) {
    const GroupSet& set = p.sets[item.set];
    const int lane = lane_id();
    const int unit = item.unit + thread / 32;
    const GroupJob& job = p.jobs[set.job_of(p.jobs, unit)];
    const int tile = (unit - job.first_unit) * kGroupTiles;
    tiles_left = unit < set.units ? job.tiles - 1 - tile : -1;
    tile_stride = p.chunks * 32;
    codes = job.codes + item.expert * job.matrix_codes + static_cast<std::int64_t>(tile) * tile_stride + lane;
    pairs = job.pairs + item.expert * job.matrix_pairs + static_cast<std::int64_t>(tile + lane / 8) * (p.chunks * 4) +
            lane % 8;
    const auto row_of = [&](int token) {
      return token < item.live ? listed(set.in_rows, item.first + token) * p.chunks : 0;
    };
#pragma unroll
    for (int i = 0; i < kTokens / kAtOnce; ++i) {
      rows[i] = static_cast<unsigned>(row_of(thread / 8 + i * kAtOnce)) * 8 + thread % 8;
    }
    digits = set.digits;
    steps = set.steps + row_of(thread % kTokens) + thread / kTokens;
    if (thread < item.live) item.out_rows[thread] = listed(set.out_rows, item.first + thread);
  }

  /// Starts the copies of the next stage.
  __device__ __forceinline__ void fetch(Stage& to, int live, int thread) {
    const int lane = lane_id();
    uint4* place = &to.codes[thread / 32][0][0][code_place(lane / 4, lane % 4)];
    const uint4* from = codes;
#pragma unroll
    for (int tile = 0; tile < kGroupTiles; ++tile) {
      if (tile <= tiles_left) {
#pragma unroll
        for (int c = 0; c < kStageChunks; ++c) copy_soon(place + (tile * kStageChunks + c) * 32, from + c * 32);
      }
      from += tile_stride;
    }
    codes += kStageChunks * 32;
    if (lane / 8 <= tiles_left) copy_soon(&to.pairs[thread / 32][0][0][0] + lane * 2, pairs);
    pairs += kStageChunks * 4;
    uint4* digits_place = &to.digits[0][thread / 8][digit_place(thread / 8, thread % 8)];
#pragma unroll
    for (int i = 0; i < kTokens / kAtOnce; ++i) {
      if (thread / 8 + i * kAtOnce < live) {
#pragma unroll
        for (int c = 0; c < kStageChunks; ++c) {
          copy_soon(digits_place + c * kChunkDigits + i * kAtOnce * 8, digits + rows[i] + c * 8);
        }
      }
      rows[i] += kStageChunks * 8;
    }
    if (thread % kTokens < live) copy_eight_soon(&to.steps[0][0] + thread, steps);
    steps += kStageChunks;
    copies_made();
  }
};

/// The fetching warps: item after item.
__device__ __forceinline__ void fetch_items(Shared& shared, const GroupParams& p) {
  const int thread = static_cast<int>(threadIdx.x) - kThreads;
  const int stages = p.chunks / kStageChunks;
  const auto show = [&](int stage) {
    show_copies();
    __syncwarp();
    if (lane_id() == 0) arrive(&shared.full[stage % kStages]);
  };
  const auto wait_empty = [&](int stage) {
    if (stage >= kStages) wait_phase(&shared.empty[stage % kStages], (stage / kStages - 1) % 2);
  };
  if (thread == 0) shared.share.next(p, shared.items[0]);
  int stage = 0;
#pragma unroll 1
  for (int number = 0;; ++number) {
    part_sync(1, kFetchThreads);
    GroupItem& item = shared.items[number % kItems];
    const int live = item.live;
    if (live == 0) break;
    Source source;
    source.start(p, item, thread);
#pragma unroll 1
    for (int s = 0; s < stages; ++s, ++stage) {
      wait_empty(stage);
      source.fetch(shared.stages[stage % kStages], live, thread);
      if (s == 0) continue;
      wait_copies<1>();
      show(stage - 1);
    }
    if (thread == 0) shared.share.next(p, shared.items[(number + 1) % kItems]);
    wait_copies<0>();
    show(stage - 1);
  }
  wait_empty(stage);
  show(stage);
}

/// The codes of a warp's 16 rows and one chunk, as operands of two steps of 32 inputs. Inputs are taken in the order of
/// the digits: 16 bytes of digits hold four words, and lane quad w has the codes of word w of all four. `at`: those of
/// j = 0 (code_place()), half w / 2; `shift`: 4 where w is odd.
__device__ __forceinline__ void load_codes(const char* stage, unsigned at, unsigned shift, unsigned (&a)[2][4]) {
#pragma unroll
  for (unsigned j = 0; j < 4; ++j) {
    const uint2 words = *reinterpret_cast<const uint2*>(stage + (at ^ 16 * j));  // of rows g and g + 8
    a[j / 2][j % 2 * 2] = words.x >> shift & 0x0f0f0f0fU;
    a[j / 2][j % 2 * 2 + 1] = words.y >> shift & 0x0f0f0f0fU;
  }
}

/// Scales and biases of rows g and g + 8.
struct Pairs {
  float scale[2], bias[2];
  __device__ __forceinline__ explicit Pairs(uint2 both)
      : scale{bits_float(both.x << 16), bits_float(both.y << 16)},
        bias{bits_float(both.x & 0xffff0000U), bits_float(both.y & 0xffff0000U)} {}
};

/// Integer products of some eights of tokens on their way through the tensor cores: first those of the high digits,
/// then, 256 times as large, with those of the low digits added.
template <int kEights>
struct Dots {
  int d[4 * kEights];

  __device__ __forceinline__ void start_high(const unsigned (&a)[2][4], unsigned digits) {
    group_signed(d, a, digits, digits + 2);
  }
  /// `scale`: 256 that the compiler does not know. A shift would take the pipe that the conversions need.
  __device__ __forceinline__ void start_low(const unsigned (&a)[2][4], unsigned digits, int scale) {
#pragma unroll
    for (int& dot : d) dot *= scale;
    group_unsigned(d, a, digits + kLowDigits, digits + kLowDigits + 2);
  }
  __device__ __forceinline__ void take(float (&dots)[4 * kEights]) const {
#pragma unroll
    for (int i = 0; i < 4 * kEights; ++i) dots[i] = static_cast<float>(d[i]);
  }
};

/// Adds what the integer products of a group mean to the sums.
template <int kDots>
__device__ __forceinline__ void add_group(const float (&dots)[kDots], const Pairs& pairs, const float2* steps,
                                          float* sums) {
#pragma unroll
  for (int n = 0; n < kDots / 4; ++n) {
    const float4 now = *reinterpret_cast<const float4*>(steps + 8 * n);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float step = i % 2 == 0 ? now.x : now.z;
      const float total = i % 2 == 0 ? now.y : now.w;
      sums[4 * n + i] += canon_fma(pairs.scale[i / 2] * step, dots[4 * n + i], (pairs.bias[i / 2] * step) * total);
    }
  }
}

/// A multiplying warp's part of an item: sums of 8 * (kFirst + kSecond) tokens. The two halves take turns, so that
/// products of one are under way while results of the other are added.
template <int kFirst, int kSecond>
struct Multiplier {
  static constexpr int kSums = 4 * (kFirst + kSecond);
  static constexpr bool kTwo = kSecond > 0;
  float sums[kSums];

  /// All chunks; the first stage has arrived. The totals of all segments but the last one are in shared memory.
  __device__ __forceinline__ void run(Shared& shared, int chunks, int scale, unsigned& stage) {
    const int thread = static_cast<int>(threadIdx.x);
    const int warp = thread / 32;
    const int g = lane_id() / 4;
    const int w = lane_id() % 4;
    // Where the thread's codes, pairs and steps lie in a stage. The compiler would find them out again for each stage.
    unsigned code_at = static_cast<unsigned>(offsetof(Stage, codes)) + warp * 1024 + code_place(g, 0) * 16 + w / 2 * 8;
    unsigned pair_at = static_cast<unsigned>(offsetof(Stage, pairs)) + warp * 128 + g * 8;
    unsigned step_at = static_cast<unsigned>(offsetof(Stage, steps)) + w * 16;
    unsigned shift = w % 2 * 4;
    asm volatile("" : "+r"(code_at), "+r"(pair_at), "+r"(step_at), "+r"(shift));
    Dots<kFirst> one;
    Dots<kTwo ? kSecond : 1> two;
    float late[kTwo ? 4 * kSecond : 4];  // products of the second half that are still to be added
    // Theirs, and their steps; at first zeros, which add nothing (steps are numbers, or their sums are none anyway).
    Pairs pairs(make_uint2(0, 0));
    const float2* steps = &shared.stages[stage % kStages].steps[0][2 * w];
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      shared.totals[i][thread] = 0.0F;
      sums[i] = 0.0F;
    }
#pragma unroll
    for (int& dot : one.d) dot = 0;
#pragma unroll
    for (int& dot : two.d) dot = 0;
#pragma unroll
    for (float& dot : late) dot = 0.0F;
#pragma unroll 1
    for (int left = chunks; left > 0; left -= kStageChunks) {
      // Over the end of this loop no products are under way: the compiler would not follow them.
      const bool first = left == chunks;
      if (!first) wait_phase(&shared.full[stage % kStages], stage / kStages % 2);
      const Stage& from = shared.stages[stage % kStages];
      const auto* base = reinterpret_cast<const char*>(&from);
      const unsigned stage_digits = digit_operand(&from.digits[0][0][0]);
#pragma unroll
      for (int chunk = 0; chunk < kStageChunks; ++chunk) {
        unsigned a[2][4];
        const unsigned digits = stage_digits + chunk * kChunkDigits;
        load_codes(base + 512 * chunk, code_at, shift, a);
        const uint2 both = *reinterpret_cast<const uint2*>(base + pair_at + 64 * chunk);
        one.start_high(a, digits);
        if constexpr (kTwo) add_group(late, pairs, steps + 8 * kFirst, sums + 4 * kFirst);
        if (chunk == 0 && !first) {  // the chunk before is complete
          __syncwarp();
          if (lane_id() == 0) arrive(&shared.empty[(stage - 1) % kStages]);
          if ((chunks - left) % kSegmentChunks == 0) {
#pragma unroll
            for (int i = 0; i < kSums; ++i) {
              shared.totals[i][thread] += sums[i];
              sums[i] = 0.0F;
            }
          }
        }
        pairs = Pairs(both);
        steps = reinterpret_cast<const float2*>(base + step_at + 512 * chunk);
        if constexpr (kTwo) {
          two.start_high(a, digits + kEightDigits * kFirst);
          group_wait<1>(one.d);
          one.start_low(a, digits, scale);
          group_wait<1>(two.d);
          two.start_low(a, digits + kEightDigits * kFirst, scale);
          group_wait<1>(one.d);
        } else {
          group_wait<0>(one.d);
          one.start_low(a, digits, scale);
          group_wait<0>(one.d);
        }
        float now[4 * kFirst];
        one.take(now);
        add_group(now, pairs, steps, sums);
        if constexpr (kTwo) {
          group_wait<0>(two.d);
          two.take(late);
        }
      }
      ++stage;
    }
    if constexpr (kTwo) add_group(late, pairs, steps + 8 * kFirst, sums + 4 * kFirst);
    __syncwarp();
    if (lane_id() == 0) arrive(&shared.empty[(stage - 1) % kStages]);
  }

  __device__ __forceinline__ void store(const Shared& shared, const GroupItem& item, const GroupJob& job,
                                        int unit) const {
    const int thread = static_cast<int>(threadIdx.x);
    const int row0 = (unit * kGroupTiles + thread / 32 % 4) * 16 + lane_id() / 4;
#pragma unroll
    for (int n = 0; n < kFirst + kSecond; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int token = 8 * n + lane_id() % 4 * 2 + c;
        if (token >= item.live) continue;
        float* out = job.out + static_cast<std::int64_t>(item.out_rows[token]) * job.out_stride + row0;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int i = 4 * n + 2 * half + c;
          if (row0 + 8 * half < job.rows) out[8 * half] = shared.totals[i][thread] + sums[i];
        }
      }
    }
  }
};

template <int kEights>
__device__ __forceinline__ void multiply(Shared& shared, const GroupParams& p, const GroupItem& item, int unit,
                                         unsigned& stage) {
  Multiplier<(kEights + 1) / 2, kEights / 2> multiplier;
  multiplier.run(shared, p.chunks, p.scale, stage);
  const GroupJob& job = p.jobs[p.sets[item.set].job_of(p.jobs, unit)];
  multiplier.store(shared, item, job, unit - job.first_unit);
}

/// The multiplying warps: item after item.
__device__ __forceinline__ void multiply_items(Shared& shared, const GroupParams& p) {
  unsigned stage = 0;
#pragma unroll 1
  for (int number = 0;; ++number) {
    wait_phase(&shared.full[stage % kStages], stage / kStages % 2);
    const GroupItem& item = shared.items[number % kItems];
    const int live = __shfl_sync(kAllLanes, item.live, 0);
    if (live == 0) return;
    const int unit = __shfl_sync(kAllLanes, item.unit + static_cast<int>(threadIdx.x) / 128, 0);
    if (unit >= p.sets[item.set].units) {  // nothing for this group of warps
      for (int s = 0; s < p.chunks / kStageChunks; ++s, ++stage) {
        wait_phase(&shared.full[stage % kStages], stage / kStages % 2);
        __syncwarp();
        if (lane_id() == 0) arrive(&shared.empty[stage % kStages]);
      }
      continue;
    }
    switch ((live + 7) / 8) {
      case 1:
        multiply<1>(shared, p, item, unit, stage);
        break;
      case 2:
        multiply<2>(shared, p, item, unit, stage);
        break;
      case 3:
        multiply<3>(shared, p, item, unit, stage);
        break;
      case 4:
        multiply<4>(shared, p, item, unit, stage);
        break;
      case 5:
        multiply<5>(shared, p, item, unit, stage);
        break;
      case 6:
        multiply<6>(shared, p, item, unit, stage);
        break;
      case 7:
        multiply<7>(shared, p, item, unit, stage);
        break;
      default:
        multiply<8>(shared, p, item, unit, stage);
        break;
    }
  }
}

#endif

/// One block a multiprocessor. A warp has 16 of an item's 256 rows and all of its tokens.
__global__ void __launch_bounds__(kThreads + kFetchThreads, 1)
    affine_groups_kernel(__grid_constant__ const GroupParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) uint4 memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  trigger_next_grid();
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      start_barrier(&shared.full[i], kFetchThreads / 32);
      start_barrier(&shared.empty[i], kThreads / 32);
    }
  }
  __syncthreads();
  wait_previous_grid();
  if (threadIdx.x >= kThreads) {
    shared.share.find(p, static_cast<int>(threadIdx.x) - kThreads);
    give_registers();
    fetch_items(shared, p);
  } else {
    take_registers();
    multiply_items(shared, p);
  }
#endif
}

/// Activation rows of an item, so that the blocks have nearly the same to do.
int item_width(std::int64_t tokens, std::int64_t quads, int blocks) {
  std::int64_t best = 0;
  int width = kTokens;
  for (int tried = kTokens; tried >= kTokens / 2; tried -= 8) {
    const std::int64_t items = (tokens + tried - 1) / tried * quads;
    const std::int64_t cost = (items + blocks - 1) / blocks * (tried + kItemCost);
    if (best != 0 && cost >= best) continue;
    best = cost;
    width = tried;
  }
  return width;
}

}  // namespace

void affine_groups(Queue& queue, std::span<const AffineProduct* const> products) {
  GroupParams p{};
  p.chunks = static_cast<int>(products.front()->weights->chunks());
  p.scale = 256;
  int jobs = 0;
  std::array<bool, kMostGroupJobs> taken{};
  for (std::size_t i = 0; i < products.size(); ++i) {
    if (taken.at(i)) continue;
    const AffineProduct& first = *products[i];
    GroupSet& set = p.sets[p.set_count++];
    set.digits = static_cast<const uint4*>(first.x->digits);
    set.steps = static_cast<const float2*>(first.x->steps);
    set.tokens = static_cast<int>(first.x->rows);
    set.first_job = jobs;
    if (first.selection != nullptr) {
      set.runs = first.selection->runs;
      set.run_count = first.selection->run_count;
      set.in_rows = first.selection->in_rows;
      set.out_rows = first.selection->out_rows;
    }
    for (std::size_t k = i; k < products.size(); ++k) {
      const AffineProduct& product = *products[k];
      if (product.x != first.x || product.selection != first.selection) continue;
      taken.at(k) = true;
      const AffineWeights& weights = *product.weights;
      GroupJob& job = p.jobs[jobs++];
      job.codes = static_cast<const uint4*>(weights.codes);
      job.pairs = static_cast<const uint4*>(weights.pairs);
      job.out = product.out;
      job.out_stride = weights.rows;
      job.matrix_codes = static_cast<std::int64_t>(weights.matrix_code_bytes() / 16);
      job.matrix_pairs = static_cast<std::int64_t>(weights.matrix_pair_bytes() / 16);
      job.rows = static_cast<int>(weights.rows);
      job.tiles = static_cast<int>(weights.tiles());
      job.first_unit = set.units;
      set.units += static_cast<int>(blocks_for(weights.tiles(), kGroupTiles));
      ++set.jobs;
    }
    set.quads = static_cast<int>(blocks_for(set.units, kGroups));
    set.width = set.runs != nullptr ? kTokens : item_width(set.tokens, set.quads, queue.multiprocessors());
  }
  launch(queue, affine_groups_kernel, {static_cast<unsigned>(queue.multiprocessors()), 1, 1},
         {kThreads + kFetchThreads, 1, 1}, sizeof(Shared), p);
}

}  // namespace lockstep::kernels::cuda
