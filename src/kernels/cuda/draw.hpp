// Drawing tokens from rows of logits on CUDA (docs/sampling.md "On a device").
#pragma once

#include <cstdint>

#include "kernels/cuda/queue.hpp"
#include "kernels/draw.hpp"
#include "kernels/draw_sum.hpp"

namespace lockstep::kernels::cuda {

/// Largest vocabulary: the heads of its chunks fit a block's shared memory.
inline constexpr std::int64_t kMostDrawnVocabulary = std::int64_t{1} << 19;
/// Values of a row that one warp looks at; the first of them in the canon's order is the chunk's head.
inline constexpr int kDrawChunk = 256;
/// Values of a segment of the sum over a row, in the 32 lanes of fold32: rows of exponentials are filled up to a
/// multiple with zeros.
inline constexpr int kDrawSegment = 32 * kSegmentSteps;
static_assert(kMostDrawnVocabulary <= std::int64_t{32} * kMostSteps);

[[nodiscard]] constexpr std::int64_t draw_chunks(std::int64_t vocabulary) {
  return (vocabulary + kDrawChunk - 1) / kDrawChunk;
}
[[nodiscard]] constexpr std::int64_t draw_segments(std::int64_t vocabulary) {
  return (vocabulary + kDrawSegment - 1) / kDrawSegment;
}
[[nodiscard]] constexpr std::int64_t draw_padded(std::int64_t vocabulary) {
  return draw_segments(vocabulary) * kDrawSegment;
}

/// Rows of one launch; scratch is made for so many.
inline constexpr std::int64_t kDrawRows = 32;

/// Bytes of the scratch and of what goes to the device and back.
[[nodiscard]] constexpr std::uint64_t draw_scratch_bytes(std::int64_t vocabulary) {
  const std::uint64_t heads = static_cast<std::uint64_t>(draw_chunks(vocabulary)) * sizeof(std::uint64_t);
  const std::uint64_t exps = static_cast<std::uint64_t>(draw_padded(vocabulary)) * sizeof(float);
  const std::uint64_t lanes = static_cast<std::uint64_t>(draw_segments(vocabulary)) * 32;
  return kDrawRows *
         (heads + exps + lanes * (sizeof(double) + sizeof(SumSegment)) + sizeof(DrawRequest) + sizeof(Drawn));
}

struct DrawRows {
  const float* logits = nullptr;  ///< rows of `width` values
  std::int64_t width = 0;
  const DrawRequest* requests = nullptr;  ///< [count], on the device
  std::int64_t count = 0;                 ///< at most kDrawRows
  std::int64_t vocabulary = 0;            ///< at least that of every request
  std::uint64_t* heads = nullptr;         ///< scratch [count, draw_chunks(vocabulary)]
  // Scratch for the sum; null when every request is an argmax.
  float* exps = nullptr;           ///< [count, draw_padded(vocabulary)]
  double* sums = nullptr;          ///< [count, draw_segments(vocabulary), 32]: of each segment by itself
  SumSegment* segments = nullptr;  ///< the same shape
  Drawn* drawn = nullptr;          ///< [count], in memory that the device can write
  // Of the first row, for a host and a step that do not wait; null: nobody asks.
  std::int32_t* token = nullptr;  ///< the id, 0 where nothing could be drawn
  std::uint32_t* told = nullptr;  ///< becomes 1 behind *drawn, in memory of the host
};

void draw_rows(Queue& queue, const DrawRows& rows);

}  // namespace lockstep::kernels::cuda
