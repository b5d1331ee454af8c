// The core of a GDN layer for a few rows in one launch: convolution, unit vectors, gates, the delta rule, gated norm,
// quantised for the output projection (docs/numerics.md N6).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/delta.hpp"
#include "kernels/cuda/linear.hpp"
#include "kernels/cuda/queue.hpp"

namespace lockstep::kernels::cuda {

/// Rows of one run.
inline constexpr std::int32_t kFewDeltaRows = 8;
/// Runs of one launch.
inline constexpr std::int64_t kFewDeltaRuns = 16;

struct FewDeltaInput {
  const float *qkv = nullptr, *z = nullptr;  ///< [rows, channels], [rows, heads * 128]
  GateInput gates;
  const float *conv = nullptr, *norm = nullptr;  ///< [channels, 4], [128]
  float eps = 0;
  /// Zeroed once, [kFewDeltaRuns, key heads]: how many of its value heads have read a key head's columns; 0 in between.
  std::uint32_t* readers = nullptr;
  /// No kernel since the last one that waits before it lets others start (Queue) has written these states and columns:
  /// they may be read before the kernel in front has ended.
  bool settled = false;
};

/// Whether few_delta() takes these runs: few rows each, keys and values of 128, a kernel of four taps.
[[nodiscard]] bool few_delta_takes(std::span<const ConvRun> runs, const DeltaShape& shape, int kernel);
/// convs[i] and rules[i] describe the same rows. `out`: [rows, heads * 128] in groups of 64.
void few_delta(Queue& queue, std::span<const ConvRun> convs, std::span<const DeltaRun> rules, const DeltaShape& shape,
               const FewDeltaInput& input, const ActivationRows& out);
/// few_delta() of one run on a device with clusters.
void few_delta_run(Queue& queue, const ConvRun& conv, const DeltaRun& rule, const DeltaShape& shape,
                   const FewDeltaInput& input, const ActivationRows& out);

}  // namespace lockstep::kernels::cuda
