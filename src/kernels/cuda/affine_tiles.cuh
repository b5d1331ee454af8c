// What the kernels for quantised products of many activation rows share: blocks of 128 output rows x 64 activation
// rows.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/linear.hpp"

namespace lockstep::kernels::cuda {

constexpr int kBlockTiles = 8;   ///< of 16 weight rows each
constexpr int kTileTokens = 64;  ///< activation rows of a block at a time
constexpr int kStageChunks = 2;  ///< chunks of 64 inputs that arrive together
constexpr int kMaxTileJobs = 6;

struct TileJob {
  const uint4* codes;
  const uint4* pairs;
  float* out;
  std::int64_t out_stride, matrix_codes, matrix_pairs;  ///< strides of matrices in 16 bytes
  const uint4* digits;
  const float2* steps;
  int rows, tiles, tokens, first_block, row_blocks, token_blocks;
  const ExpertRun* runs;
  const std::int32_t *run_count, *in_rows, *out_rows;
};

struct TileParams {
  TileJob jobs[kMaxTileJobs];
  int job_count, chunks;
};

/// The matrix and the activation rows of a block.
struct Place {
  const uint4* codes;
  const uint4* pairs;
  int first, count;  ///< rows of the list, or of the activations
};

__device__ __forceinline__ int listed(const std::int32_t* list, int row) {
  return list != nullptr ? list[row] : row;
}

/// What a block multiplies; false where there is nothing for it.
struct BlockPlace {
  int job, tile0, base;  ///< base: the first activation row
  Place place;

  __device__ __forceinline__ bool find(const TileParams& p) {
    job = 0;
    while (job + 1 < p.job_count && static_cast<int>(blockIdx.x) >= p.jobs[job + 1].first_block) ++job;
    const TileJob& j = p.jobs[job];
    const int block = static_cast<int>(blockIdx.x) - j.first_block;
    tile0 = block % j.row_blocks * kBlockTiles;
    base = 0;
    place = {j.codes, j.pairs, 0, j.tokens};
    if (j.runs == nullptr) {
      base = block / j.row_blocks * kTileTokens;
      return true;
    }
    const int index = block / j.row_blocks;
    if (index >= *j.run_count) return false;
    const ExpertRun run = j.runs[index];
    place = {j.codes + run.expert * j.matrix_codes, j.pairs + run.expert * j.matrix_pairs, run.first, run.count};
    return true;
  }
};

/// affine_tiles() of 4-bit weights with very many activation rows, on devices of the kind that Queue::clusters() names
/// (affine_groups.cu).
void affine_groups(Queue& queue, std::span<const AffineProduct* const> products);

}  // namespace lockstep::kernels::cuda
