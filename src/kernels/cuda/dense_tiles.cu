// Unquantised products of many activation rows (docs/numerics.md N4).
//
// A warp multiplies 8 output rows with 16 activation rows, its lanes being those of fold32. Eight warps take eight such
// tiles that follow each other, rows first, and a block a multiprocessor goes on until all tiles are done. Each warp
// fetches its own weights and an eighth of the activations two rounds ahead; nobody waits for the whole block.
#include <algorithm>

#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/quick_math.cuh"
#include "kernels/cuda/tiles.hpp"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kRows = 8;   ///< output rows of a tile
constexpr int kQuads = 4;  ///< activation rows of a tile, in fours
constexpr int kTokens = 4 * kQuads;
constexpr int kTileWarps = 8;
constexpr int kThreads = 32 * kTileWarps;
constexpr int kChunk = 256;  ///< inputs of a round: eight steps of 32
constexpr int kSteps = kChunk / 32;
constexpr int kSplit = kSteps / 2;  ///< steps in front of the next fetch
constexpr int kMoreSteps = 2;       ///< of products of 320 inputs, which are one round
constexpr int kMore = 32 * kMoreSteps;
constexpr int kStages = 3;
constexpr int kPage = 4096;  ///< rows and lanes of weights are chosen by exclusive or with an address
constexpr std::int64_t kLeastTiles = 512;
constexpr int kStreams = 4;  ///< of gated tiles, each stream's places being two rows of a tile
constexpr int kPlaces = kRows / kStreams;
constexpr int kBlockPlaces = kTileWarps * kPlaces;

struct TileMatrix {
  const char* weights;
  float* out;
  int rows, groups;  ///< groups of kRows
};

struct TileParams {
  TileMatrix matrices[2];
  const float* x;
  int cols, chunks, rounds, tokens, groups, tiles;
  const float* n;  ///< of gated tiles, whose matrix has the means as its result
  int hidden;
};

/// What a block computes: products, those of 320 inputs, and the latter as gates of a mean.
enum class Kind { kChunks, kTen, kGated };

/// What one round reads. The eight tiles may begin in one group of activation rows and end in the next one; where they
/// cannot, and there are two more steps, these take the place of the second group.
struct Stage {
  uint4 weights[kTileWarps * kRows][32];
  float x[2][kTokens][kChunk];
  Arrival full, empty;
  char rest[kPage - 2 * sizeof(Arrival)];
};
struct MoreStage {
  unsigned weights[kTileWarps * kRows][32];
  float x[kTokens][kMore];
  float4 n[kStreams][kBlockPlaces / 4][kTokens];
};
constexpr unsigned kXAt = offsetof(Stage, x);
constexpr unsigned kOtherX = sizeof(Stage::x) / 2;
constexpr unsigned kMoreAt = kXAt + kOtherX;
constexpr unsigned kMoreXAt = kMoreAt + offsetof(MoreStage, x);
constexpr unsigned kMoreNAt = kMoreAt + offsetof(MoreStage, n);
constexpr unsigned kStreamN = sizeof(MoreStage::n) / kStreams;
static_assert(sizeof(MoreStage) <= kOtherX && sizeof(Stage) % kPage == 0 && kMoreAt % kPage == 0);

__device__ __forceinline__ void barrier_init(unsigned barrier, int count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_arrive(unsigned barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}
/// Arrives once the thread's copies so far are there.
__device__ __forceinline__ void barrier_arrive_copied(unsigned barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
#if __CUDA_ARCH__ >= 900
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
#else
      "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
#endif
      "@!done bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void copy_to(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_four_to(unsigned to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ uint4 load_eight(unsigned from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ float load_float(unsigned from) {
  float v = 0.0F;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
  return v;
}
__device__ __forceinline__ unsigned load_two(unsigned from) {
  unsigned v = 0;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
  return v;
}
/// The lane's input of four activation rows at once: a matrix of 8 x 16 bytes is 32 floats in the order of the lanes.
/// The four values come in neighbouring registers, which decides the bank that each is in.
__device__ __forceinline__ void load_quad(float (&values)[4], unsigned from) {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
               : "r"(from)
               : "memory");
  values[0] = bits_float(a);
  values[1] = bits_float(b);
  values[2] = bits_float(c);
  values[3] = bits_float(d);
}
__device__ __forceinline__ float weight_of(const uint4& w, int step) {
  const unsigned word = step / 2 == 0 ? w.x : (step / 2 == 1 ? w.y : (step / 2 == 2 ? w.z : w.w));
  return bits_float(step % 2 == 0 ? word << 16 : word & 0xffff0000U);
}

/// [four activation rows][activation row, output row]
using Sums = float[kQuads][32];

/// Steps kFrom to kTo of a round; the very first one begins from +0. Activation rows inside output rows: a weight stays
/// where it is for 16 products, and the two registers that remain to be read, of a sum and of an activation, can
/// always lie in different banks, since the activation's bank never changes. In the other order a third of the products
/// waited for a bank.
template <int kFrom, int kTo, bool kFirst, int kLine = kChunk>
__device__ __forceinline__ void add_steps(const uint4 (&packed)[kRows], unsigned x, Sums& sums) {
#pragma unroll
  for (int step = kFrom; step < kTo; ++step) {
    float weights[kRows];
    float values[kQuads][4];
#pragma unroll
    for (int r = 0; r < kRows; ++r) weights[r] = weight_of(packed[r], step);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) load_quad(values[q], x + q * (4 * kLine * 4) + step * 128);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kTokens; ++i) {
        const int t = r % 2 == 0 ? i : kTokens - 1 - i;
        float& sum = sums[t / 4][t % 4 * kRows + r];
        sum = canon_fma(weights[r], values[t / 4][t % 4], kFirst && step == 0 ? 0.0F : sum);
      }
    }
  }
}

/// Where eight tiles begin.
struct Place {
  int tokens, rows;  ///< groups of them
  __device__ __forceinline__ Place(int tile, int groups) : tokens(tile / groups), rows(tile % groups) {}
  __device__ __forceinline__ void advance(const Place& by, int groups) {
    tokens += by.tokens;
    rows += by.rows;
    if (rows >= groups) {
      rows -= groups;
      ++tokens;
    }
  }
};

/// A stage after the other, and the parity of the round that it is in.
struct Turn {
  unsigned stage, first, parity;
  __device__ __forceinline__ void advance() {
    stage += sizeof(Stage);
    if (stage == first + kStages * sizeof(Stage)) {
      stage = first;
      parity ^= 1U;
    }
  }
};

/// Fetches a warp's part of each round: the weights of its tile, a row by four lanes, and two activation rows, each by
/// sixteen lanes. Behind the last tile it goes on with what is there.
struct Fetcher {
  Place place;
  Turn turn;
  int chunk = 0;
  const char *weights = nullptr, *x = nullptr, *other = nullptr;
  bool both = false;

  template <Kind kKind>
  __device__ __forceinline__ void point(const TileParams& p, int warp, int lane) {
    int group = place.rows + warp;
    both = group - warp + kTileWarps > p.groups;
    if (group >= p.groups) group -= p.groups;
    const bool second = kKind != Kind::kGated && group >= p.matrices[0].groups;
    if (second) group -= p.matrices[0].groups;
    const int rows = second ? p.matrices[1].rows : p.matrices[0].rows;
    const int row = kKind == Kind::kGated ? lane / 4 % kStreams * p.hidden + group * kPlaces + lane / (4 * kStreams)
                                          : min(group * kRows + lane / 4, rows - 1);
    weights = (second ? p.matrices[1].weights : p.matrices[0].weights) + lane % 4 * 16 +
              static_cast<std::int64_t>(row) * (p.chunks * kChunk * 2);
    const int token = place.tokens * kTokens + warp * 2 + lane / 16;
    const char* values = reinterpret_cast<const char*>(p.x) + lane % 16 * 16;
    x = values + static_cast<std::int64_t>(min(token, p.tokens - 1)) * (p.cols * 4);
    other = values + static_cast<std::int64_t>(min(token + kTokens, p.tokens - 1)) * (p.cols * 4);
  }

  /// What the gates of eight tiles weigh, 16 bytes a thread: four places of a stream and an activation row.
  __device__ __forceinline__ void fetch_n(const TileParams& p, int warp, int lane) const {
    const int stream = warp / 2;
    const int token = warp % 2 * (kTokens / 2) + lane / 4;
    const int row = min(place.tokens * kTokens + token, p.tokens - 1);
    copy_to(
        turn.stage + kMoreNAt + stream * kStreamN + (lane % 4 * kTokens + token) * 16,
        p.n + (static_cast<std::int64_t>(row) * kStreams + stream) * p.hidden + place.rows * kPlaces + lane % 4 * 4);
  }

  /// The next round. Every other row of weights has its 64 bytes exchanged in pairs, so that neither the copies nor
  /// the loads meet in a bank.
  template <Kind kKind>
  __device__ __forceinline__ void fetch(const TileParams& p, const Place& step, int warp, int lane) {
    constexpr bool kTen = kKind != Kind::kChunks;
    if (kTen || chunk == 0) point<kKind>(p, warp, lane);
    const unsigned line = turn.stage + (warp * kRows + lane / 4) * 512 + lane % 4 * 16;
    const unsigned swap = lane / 4 % 2 * 64;
    const unsigned x_to = turn.stage + kXAt + (warp * 2 + lane / 16) * (kChunk * 4) + lane % 16 * 16;
    const int at = kTen ? 0 : chunk * kChunk;
    const char* w = weights + at * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      copy_to(line + swap + 128 * i, w + 128 * i);
      copy_to(line + 64 - swap + 128 * i, w + 128 * i + 64);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) copy_to(x_to + 256 * i, x + at * 4 + 256 * i);
    if constexpr (kTen) {
      copy_to(turn.stage + kMoreXAt + (warp * 2 + lane / 16) * (kMore * 4) + lane % 16 * 16, x + kChunk * 4);
      const unsigned words = turn.stage + kMoreAt + (warp * kRows + lane / 4) * 128 + lane % 4 * 4;
#pragma unroll
      for (int i = 0; i < 8; ++i) copy_four_to(words + (i * 16 ^ lane / 4 * 16), w + kChunk * 2 + 64 * i);
      if constexpr (kKind == Kind::kGated) fetch_n(p, warp, lane);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (both) copy_to(x_to + kOtherX + 256 * i, other + at * 4 + 256 * i);
      }
    }
    barrier_arrive_copied(turn.stage + offsetof(Stage, full));
    turn.advance();
    if (kTen || ++chunk == p.chunks) {
      chunk = 0;
      place.advance(step, p.groups);
    }
  }
};

/// Adds the lanes of a tile's sums and stores them.
__device__ __forceinline__ void store_tile(const TileParams& p, const Place& place, int warp, int lane, Sums& sums) {
  int group = place.rows + warp;
  int token = place.tokens * kTokens + lane / kRows;
  if (group >= p.groups) {
    group -= p.groups;
    token += kTokens;
  }
  const bool second = group >= p.matrices[0].groups;
  if (second) group -= p.matrices[0].groups;
  const int rows = second ? p.matrices[1].rows : p.matrices[0].rows;
  const int row = group * kRows + lane % kRows;
  float* out = (second ? p.matrices[1].out : p.matrices[0].out) + static_cast<std::int64_t>(token) * rows + row;
  const int left = row < rows ? p.tokens - token : 0;
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const float y = fold_permuted(sums[q]);
    if (4 * q < left) out[static_cast<std::int64_t>(4 * q) * rows] = y;
  }
}

/// Lanes that differ in the bit kBit exchange halves of their values: afterwards values[i] of a lane is what the lane
/// with i's bit had for its own bit.
template <int kBit>
__device__ __forceinline__ void exchange(float (&values)[kStreams], int lane) {
  const bool upper = (lane & kBit) != 0;
#pragma unroll
  for (int i = 0; i < kStreams; ++i) {
    if ((i & kBit) != 0) continue;
    const float other = __shfl_xor_sync(kAllLanes, upper ? values[i] : values[i | kBit], kBit);
    values[i] = upper ? other : values[i];
    values[i | kBit] = upper ? values[i | kBit] : other;
  }
}

/// Adds the lanes of a tile's sums, which are gates of four streams, and stores the mean that they make of n. The fold
/// leaves a lane with one stream of four activation rows; after an exchange among four lanes it is one activation row's
/// four streams.
__device__ __forceinline__ void store_gated(const TileParams& p, const Place& place, unsigned stage, int warp, int lane,
                                            Sums& sums) {
  static_assert(kQuads == kStreams);
  const int token = lane % kStreams * 4 + lane / kRows;
  const int of_tile = lane % kRows / kStreams;
  const unsigned n_at = stage + kMoreNAt + (warp / 2 * kTokens + token) * 16 + warp % 2 * 8 + of_tile * 4;
  float n[kStreams];
  float gates[kStreams];
#pragma unroll
  for (int s = 0; s < kStreams; ++s) n[s] = load_float(n_at + s * kStreamN);
#pragma unroll
  for (int q = 0; q < kQuads; ++q) gates[q] = fold_permuted(sums[q]);
  exchange<1>(gates, lane);
  exchange<2>(gates, lane);
  float u = quick_sigmoid(gates[0]) * n[0];
#pragma unroll
  for (int s = 1; s < kStreams; ++s) u = canon_fma(quick_sigmoid(gates[s]), n[s], u);
  const int row = place.tokens * kTokens + token;
  const int at = (place.rows + warp) * kPlaces + of_tile;
  if (row < p.tokens) p.matrices[0].out[static_cast<std::int64_t>(row) * p.hidden + at] = u / kStreams;
}

/// Blocks take tiles in turn, eight by eight. A lane's rows and, of every four, its activation rows are permuted by its
/// number, as fold_permuted() wants it. The ten steps of 320 inputs are one round; such products run the loop over
/// rounds once all the same, since sums that two ways lead to keep their registers, and with these the banks.
template <Kind kKind>
__global__ void __launch_bounds__(kThreads, 1) dense_tiles_kernel(TileParams p) {
  constexpr bool kTen = kKind != Kind::kChunks;
  extern __shared__ uint4 memory[];
  const unsigned first = (shared_address(memory) + kPage - 1) / kPage * kPage;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  trigger_next_grid();
  if (thread < kStages) {
    barrier_init(first + thread * sizeof(Stage) + offsetof(Stage, full), kThreads);
    barrier_init(first + thread * sizeof(Stage) + offsetof(Stage, empty), kTileWarps);
  }
  wait_previous_grid();
  __syncthreads();
  const Place step(static_cast<int>(gridDim.x) * kTileWarps, p.groups);
  Place place(static_cast<int>(blockIdx.x) * kTileWarps, p.groups);
  Fetcher fetcher{place, {first, first, 1}};
  for (int s = 0; s + 1 < kStages; ++s) fetcher.fetch<kKind>(p, step, warp, lane);
  const int row = lane % kRows;
  const int token = lane / kRows ^ row / 2;
  const unsigned w_at = (warp * kRows + row) * 512 + (lane * 16 ^ row % 2 * 64);
  const unsigned x_at = kXAt + token * (kChunk * 4) + row * 16;
  const unsigned w_more = kMoreAt + (warp * kRows + row) * 128 + (lane * 4 ^ row * 16);
  const unsigned x_more = kMoreXAt + token * (kMore * 4) + row * 16;
  Turn turn{first, first, 0};
  Sums sums;
#pragma unroll 1
  for (int tile = static_cast<int>(blockIdx.x) * kTileWarps; tile < p.tiles;
       tile += static_cast<int>(gridDim.x) * kTileWarps) {
    const unsigned x_slot = x_at + (place.rows + warp >= p.groups ? kOtherX : 0);
#pragma unroll 1
    for (int chunk = 0; chunk < p.rounds; ++chunk) {
      barrier_wait(turn.stage + offsetof(Stage, full), turn.parity);
      uint4 packed[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) packed[r] = load_eight((turn.stage + w_at) ^ (r * 512 + r % 2 * 64));
      const unsigned x = turn.stage + x_slot;
      if (chunk == 0) {
        add_steps<0, kSplit, true>(packed, x, sums);
      } else {
        add_steps<0, kSplit, false>(packed, x, sums);
      }
      barrier_wait(fetcher.turn.stage + offsetof(Stage, empty), fetcher.turn.parity);
      fetcher.fetch<kKind>(p, step, warp, lane);
      add_steps<kSplit, kSteps, false>(packed, x, sums);
      if constexpr (kTen) {
#pragma unroll
        for (int r = 0; r < kRows; ++r) packed[r].x = load_two((turn.stage + w_more) ^ (r * 128 + r * 16));
        add_steps<0, kMoreSteps, false, kMore>(packed, turn.stage + x_more, sums);
      }
      // In front of the arrival, so that the exchange of the first sums goes on beside the last products.
      if constexpr (kKind == Kind::kTen) store_tile(p, place, warp, lane, sums);
      if constexpr (kKind == Kind::kGated) store_gated(p, place, turn.stage, warp, lane, sums);
      __syncwarp();
      if (lane == 0) barrier_arrive(turn.stage + offsetof(Stage, empty));
      turn.advance();
    }
    if constexpr (!kTen) store_tile(p, place, warp, lane, sums);
    place.advance(step, p.groups);
  }
  for (int s = 0; s + 1 < kStages; ++s) {  // what was fetched behind the last tile
    barrier_wait(turn.stage + offsetof(Stage, full), turn.parity);
    turn.advance();
  }
}

TileParams params_of(std::span<const DenseTileProduct> products, const float* x, std::int64_t x_rows) {
  TileParams p{};
  for (std::size_t i = 0; i < products.size(); ++i) {
    const DenseWeights& weights = *products[i].weights;
    auto& matrix = p.matrices[i];
    matrix.weights = static_cast<const char*>(weights.data);
    matrix.out = products[i].out;
    matrix.rows = static_cast<int>(weights.rows);
    matrix.groups = static_cast<int>(blocks_for(weights.rows, kRows));
    p.groups += matrix.groups;
  }
  const DenseWeights& kind = *products.front().weights;
  p.x = x;
  p.cols = static_cast<int>(kind.cols);
  p.chunks = static_cast<int>(kind.chunks());
  p.rounds = p.chunks;
  p.tokens = static_cast<int>(x_rows);
  return p;
}

void launch_tiles(Queue& queue, void (*kernel)(TileParams), TileParams& p) {
  p.tiles = p.groups * static_cast<int>(blocks_for(p.tokens, kTokens));
  const unsigned blocks = std::min(blocks_for(p.tiles, kTileWarps), static_cast<unsigned>(queue.multiprocessors()));
  launch(queue, kernel, {blocks, 1, 1}, {kThreads, 1, 1}, kStages * sizeof(Stage) + kPage, p);
}

}  // namespace

bool dense_tiles_take(const DenseWeights& weights, std::int64_t x_rows) {
  return !weights.wide && (weights.cols % kChunk == 0 || weights.cols == kChunk + kMore) &&
         weights.rows >= kTileWarps * kRows && x_rows >= kTokens * 2 &&
         static_cast<std::int64_t>(blocks_for(weights.rows, kRows)) * blocks_for(x_rows, kTokens) >= kLeastTiles;
}

void dense_tiles(Queue& queue, std::span<const DenseTileProduct> products, const float* x, std::int64_t x_rows) {
  TileParams p = params_of(products, x, x_rows);
  const bool ten = p.cols == kChunk + kMore;
  if (ten) {  // a place of eight tiles never goes on with the next activation rows
    p.groups = static_cast<int>(blocks_for(p.groups, kTileWarps)) * kTileWarps;
    if (products.size() == 1) p.matrices[0].groups = p.groups;
    p.rounds = 1;
  }
  launch_tiles(queue, ten ? dense_tiles_kernel<Kind::kTen> : dense_tiles_kernel<Kind::kChunks>, p);
}

bool dense_gated_takes(const DenseWeights& weights, std::int64_t streams, std::int64_t x_rows) {
  return streams == kStreams && weights.rows % (kTileWarps * kRows) == 0 && weights.cols == kChunk + kMore &&
         dense_tiles_take(weights, x_rows);
}

void dense_gated(Queue& queue, const DenseWeights& weights, const float* x, std::int64_t x_rows, const float* n,
                 float* u) {
  const DenseTileProduct product{&weights, u};
  TileParams p = params_of({&product, 1}, x, x_rows);
  p.rounds = 1;
  p.n = n;
  p.hidden = p.matrices[0].rows / kStreams;
  launch_tiles(queue, dense_tiles_kernel<Kind::kGated>, p);
}

}  // namespace lockstep::kernels::cuda
