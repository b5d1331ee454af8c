// Quantised products of very many activation rows: tensor cores of four warps work together, other warps fetch
// (docs/numerics.md N3).
#include "kernels/cuda/affine_tiles.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "numerics/affine.hpp"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kSegmentChunks = kSegmentInputs / 64;
constexpr int kTokens = kTileTokens;
constexpr int kEights = kTokens / 8;  ///< of tokens
constexpr int kThreads = 256;         ///< that multiply: two groups of four warps, each with 64 weight rows
constexpr int kCopiers = 128;         ///< that fetch
constexpr int kStages = 3;
constexpr int kPieceRows = kTokens + 1;  ///< one more, so that a token's pieces lie in different banks

/// What arrives together. The 16 bytes of codes of lane 4 * g + j lie at code_place(), and every 16 bytes of a token's
/// digits (ActivationRows) with those of the other tokens: eight of them are what the tensor cores read at once.
struct Stage {
  uint4 codes[kBlockTiles][kStageChunks][32];
  uint2 pairs[kStageChunks][kBlockTiles][8];
  uint4 digits[kStageChunks][8][kPieceRows];
  float2 steps[kStageChunks][kTokens];
};

/// Where the codes of lane 4 * g + j lie, so that both the copies of consecutive lanes and the loads for one j meet all
/// banks.
__device__ __forceinline__ int code_place(int g, int j) {
  return j * 8 + (g ^ (2 * j));
}

struct Shared {
  Stage stages[kStages];
  float totals[kEights * 4][kThreads];  ///< of the segments that are done, each thread its own
  std::uint64_t full[kStages];          ///< barriers: the stage has arrived
  std::uint64_t empty[kStages];         ///< all warps have used it
};

/// Makes a thread's copies visible to the tensor cores of the other threads, which wait for it at a barrier.
__device__ __forceinline__ void show_copies() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// The fetching warps need few registers, the others get theirs.
__device__ __forceinline__ void give_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
#endif
}
__device__ __forceinline__ void take_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
#endif
}

__device__ __forceinline__ unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}
/// A barrier whose phase ends after `count` arrivals.
__device__ __forceinline__ void start_barrier(std::uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
__device__ __forceinline__ void arrive(std::uint64_t* barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(shared_address(barrier))
               : "memory");
}
/// Waits for the end of an even or odd phase.
__device__ __forceinline__ void wait_phase(std::uint64_t* barrier, int parity) {
  unsigned done = 0;
  while (done == 0) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
#else
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
#endif
  }
}

/// Where the copies of a thread of the fetching warps come from.
struct Source {
  static constexpr int kGroup = kCopiers;               ///< threads that fetch a stage
  static constexpr int kTileWords = kStageChunks * 32;  ///< of a tile in a stage
  static constexpr int kTilesAtOnce = kGroup / kTileWords;
  static constexpr int kTokensAtOnce = kGroup / 8;
  const uint4 *codes, *pairs, *digits;
  const float2* steps;
  int tiles_left, tile_stride;  ///< tiles after the thread's first one; codes of a tile
  int rows[kTokens / kTokensAtOnce];
  int step_row;

  /// `live` tokens, the first of them entry `first` of the list of rows.
  __device__ __forceinline__ void start(const TileParams& p, const TileJob& job, const Place& place, int tile0,
                                        int first, int live) {
    const int thread = static_cast<int>(threadIdx.x) % kGroup;
    const auto tile_of = [&](int tile) { return tile < job.tiles ? tile : job.tiles - 1; };
    const int tile = tile_of(tile0 + thread / kTileWords);
    tiles_left = job.tiles - 1 - tile;
    tile_stride = p.chunks * 32;
    codes = place.codes + static_cast<std::int64_t>(tile) * tile_stride + thread % kTileWords;
    pairs =
        place.pairs +
        (static_cast<std::int64_t>(tile_of(tile0 + thread / 4 % kBlockTiles)) * p.chunks + thread / (4 * kBlockTiles)) *
            4 +
        thread % 4;
    const auto row_of = [&](int token) { return token < live ? listed(job.in_rows, first + token) * p.chunks : 0; };
#pragma unroll
    for (int i = 0; i < kTokens / kTokensAtOnce; ++i) rows[i] = row_of(thread / 8 + i * kTokensAtOnce);
    digits = job.digits + thread % 8;
    step_row = row_of(thread % kTokens);
    steps = job.steps + thread / kTokens;
  }

  /// Starts the copies of the stage that begins with `chunk`.
  __device__ __forceinline__ void fetch(Stage& to, int chunk, int live) {
    const int thread = static_cast<int>(threadIdx.x) % kGroup;
    const int place = thread / 32 * 32 + code_place(thread % 32 / 4, thread % 4);
    const uint4* from = codes + chunk * 32;
#pragma unroll
    for (int i = 0; i < kBlockTiles / kTilesAtOnce; ++i) {
      const int tile = i * kTilesAtOnce < tiles_left ? i * kTilesAtOnce : tiles_left;
      copy_soon(&to.codes[0][0][0] + place + i * kGroup, from + tile * tile_stride);
    }
    if (thread < kStageChunks * kBlockTiles * 4) copy_soon(&to.pairs[0][0][0] + thread * 2, pairs + chunk * 4);
#pragma unroll
    for (int i = 0; i < kTokens / kTokensAtOnce; ++i) {
      const int token = thread / 8 + i * kTokensAtOnce;
      if (token >= live) continue;
      const uint4* of_token = digits + static_cast<std::int64_t>(rows[i] + chunk) * 8;
#pragma unroll
      for (int c = 0; c < kStageChunks; ++c) copy_soon(&to.digits[c][thread % 8][token], of_token + c * 8);
    }
    if (thread % kTokens < live) copy_eight_soon(&to.steps[0][0] + thread, steps + step_row + chunk);
    copies_made();
  }
};

/// The fetching warps: all stages of up to 64 tokens. `stage` counts the stages of the block.
__device__ __forceinline__ void fetch_tokens(Shared& shared, Source& source, int chunks, int live, int& stage) {
  const auto show = [&](int number) {
    show_copies();
    __syncwarp();
    if (lane_id() == 0) arrive(&shared.full[number % kStages]);
  };
  const int stages = chunks / kStageChunks;
#pragma unroll 1
  for (int s = 0; s < stages; ++s, ++stage) {
    if (stage >= kStages) wait_phase(&shared.empty[stage % kStages], (stage / kStages - 1) % 2);
    source.fetch(shared.stages[stage % kStages], s * kStageChunks, live);
    if (s == 0) continue;
    wait_copies<1>();
    show(stage - 1);
  }
  wait_copies<0>();
  show(stage - 1);
}

/// The codes of a warp's 16 rows and one chunk, as operands of two steps of 32 inputs. Inputs are taken in the order of
/// the digits: 16 bytes of digits hold four words, and lane quad w has the codes of word w of all four.
__device__ __forceinline__ void load_codes(const uint4 (&from)[32], int g, int w, unsigned (&a)[2][4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const uint2 words = reinterpret_cast<const uint2*>(&from[code_place(g, j)])[w / 2];  // of rows g and g + 8
    a[j / 2][j % 2 * 2] = words.x >> (w % 2 * 4) & 0x0f0f0f0fU;
    a[j / 2][j % 2 * 2 + 1] = words.y >> (w % 2 * 4) & 0x0f0f0f0fU;
  }
}

/// The group of one chunk added to a warp's sums: [eight of tokens][{row g, row g + 8} x {token 2w, token 2w + 1}].
template <int kLive>
__device__ __forceinline__ void add_group(const Stage& from, int chunk, int tile, float (&sums)[4 * kLive]) {
  constexpr int kDots = kLive <= 2 ? 4 * kLive : (kLive <= 4 ? 16 : 32);
  constexpr int kAhead = kLive < 4 ? kLive : 4;  // eights whose steps are loaded before they are needed
  const int lane = lane_id();
  const int g = lane / 4;
  const int w = lane % 4;
  unsigned a[2][4];
  load_codes(from.codes[tile][chunk], g, w, a);
  const uint2 both = from.pairs[chunk][tile][g];
  float4 steps[kAhead];
#pragma unroll
  for (int n = 0; n < kAhead; ++n) steps[n] = *reinterpret_cast<const float4*>(&from.steps[chunk][8 * n + 2 * w]);
  int dots[kDots];
  digit_dots<kPieceRows>(dots, a, &from.digits[chunk][0][0]);
  const float scale[2] = {bits_float(both.x << 16), bits_float(both.y << 16)};
  const float bias[2] = {bits_float(both.x & 0xffff0000U), bits_float(both.y & 0xffff0000U)};
#pragma unroll
  for (int n = 0; n < kLive; ++n) {
    const float4 now = steps[n % kAhead];
    if (n + kAhead < kLive) {
      steps[n % kAhead] = *reinterpret_cast<const float4*>(&from.steps[chunk][8 * (n + kAhead) + 2 * w]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float step = i % 2 == 0 ? now.x : now.z;
      const float total = i % 2 == 0 ? now.y : now.w;
      const auto dot = static_cast<float>(dots[4 * n + i]);
      sums[4 * n + i] += canon_fma(scale[i / 2] * step, dot, (bias[i / 2] * step) * total);
    }
  }
}

/// A multiplying warp: totals of kLive eights of tokens over all chunks.
template <int kLive>
__device__ __forceinline__ void add_tokens(Shared& shared, int chunks, int& stage) {
  constexpr int kSums = 4 * kLive;
  const int thread = static_cast<int>(threadIdx.x);
  float sums[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    sums[i] = 0.0F;
    shared.totals[i][thread] = 0.0F;
  }
  const int stages = chunks / kStageChunks;
#pragma unroll 1
  for (int s = 0; s < stages; ++s, ++stage) {
    wait_phase(&shared.full[stage % kStages], stage / kStages % 2);
    const Stage& from = shared.stages[stage % kStages];
#pragma unroll 1
    for (int chunk = 0; chunk < kStageChunks; ++chunk) add_group<kLive>(from, chunk, thread / 32, sums);
    __syncwarp();
    if (lane_id() == 0) arrive(&shared.empty[stage % kStages]);
    if ((s + 1) * kStageChunks % kSegmentChunks != 0 && s + 1 < stages) continue;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      shared.totals[i][thread] += sums[i];
      sums[i] = 0.0F;
    }
  }
}

/// 128 output rows of up to 64 activation rows at a time. A warp has 16 rows and all tokens.
__global__ void __launch_bounds__(kThreads + kCopiers, 2) affine_groups_kernel(TileParams p) {
  extern __shared__ uint4 memory[];
  auto& shared = *reinterpret_cast<Shared*>(memory);
  trigger_next_grid();
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      start_barrier(&shared.full[i], kCopiers / 32);
      start_barrier(&shared.empty[i], kThreads / 32);
    }
  }
  __syncthreads();
  wait_previous_grid();
  BlockPlace found;
  if (!found.find(p)) return;
  const TileJob& job = p.jobs[found.job];
  const Place& place = found.place;
  const int tile0 = found.tile0;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  int stage = 0;
  if (warp >= kThreads / 32) {
    give_registers();
    for (int base = found.base; base < place.count; base += kTokens * job.token_blocks) {
      const int live = place.count - base < kTokens ? place.count - base : kTokens;
      Source source;
      source.start(p, job, place, tile0, place.first + base, live);
      fetch_tokens(shared, source, p.chunks, live, stage);
    }
    return;
  }
  take_registers();
  for (int base = found.base; base < place.count; base += kTokens * job.token_blocks) {
    const int live = place.count - base < kTokens ? place.count - base : kTokens;
    if (live <= 8) {
      add_tokens<1>(shared, p.chunks, stage);
    } else if (live <= 16) {
      add_tokens<2>(shared, p.chunks, stage);
    } else if (live <= 32) {
      add_tokens<4>(shared, p.chunks, stage);
    } else if (live <= 48) {
      add_tokens<6>(shared, p.chunks, stage);
    } else {
      add_tokens<8>(shared, p.chunks, stage);
    }
    const int row0 = (tile0 + warp) * 16 + lane_id() / 4;
#pragma unroll
    for (int n = 0; n < kEights; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int token = 8 * n + lane_id() % 4 * 2 + c;
        if (token >= live) continue;
        float* out =
            job.out + static_cast<std::int64_t>(listed(job.out_rows, place.first + base + token)) * job.out_stride;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if (row0 + 8 * half < job.rows) out[row0 + 8 * half] = shared.totals[4 * n + 2 * half + c][thread];
        }
      }
    }
  }
}

}  // namespace

void launch_groups(Queue& queue, unsigned blocks, const TileParams& p) {
  launch(queue, affine_groups_kernel, {blocks, 1, 1}, {kThreads + kCopiers, 1, 1}, sizeof(Shared), p);
}

}  // namespace lockstep::kernels::cuda
