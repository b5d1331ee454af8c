// The gated norm of the delta rule's heads and its digits (docs/numerics.md N3), for many rows.
#include "kernels/cuda/linear.hpp"
#include "kernels/cuda/quantise_octet.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kItem = 256;  ///< values of a warp

struct NormParams {
  const float *o, *z, *weight;
  std::uint8_t* digits;
  float2* steps;
  std::int64_t values;  ///< of all rows
  float eps;
  int unused;  ///< no undefined byte: batches of launches are compared
};

/// One warp per kItem values, whole heads of kDim: lane by lane for the sums, then eight neighbours a lane.
template <int kDim, int kGroup>
__global__ void __launch_bounds__(32 * kWarps) gated_norm_kernel(NormParams p) {
  trigger_next_grid();
  wait_previous_grid();
  constexpr int kHeads = kItem / kDim;
  const int lane = lane_id();
  const std::int64_t from = static_cast<std::int64_t>(warp_item()) * kItem;
  if (from >= p.values) return;
  const std::int64_t at = from + lane * kOctet;
  const bool there = at < p.values;
  float o[kOctet] = {};
  float z[kOctet] = {};
  float weight[kOctet];
  if (there) {
    load_octet(p.o + at, o);
    load_octet(p.z + at, z);
  }
  load_octet(p.weight + lane * kOctet % kDim, weight);
  float inverse = 0.0F;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    float sum = 0.0F;
    if (from + h * kDim < p.values) {
#pragma unroll
      for (int i = 0; i < kDim; i += 32) {
        const float value = p.o[from + h * kDim + i + lane];
        sum = canon_fma(value, value, sum);
      }
    }
    const float mean = fold_lanes(sum) / static_cast<float>(kDim);
    const float own = canon_rsqrt(mean + p.eps);
    inverse = lane * kOctet / kDim == h ? own : inverse;
  }
#pragma unroll
  for (int i = 0; i < kOctet; ++i) o[i] = ((o[i] * inverse) * weight[i]) * quick_sigmoid(z[i]);
  quantise_octet<kGroup / kOctet>(o, p.digits + digits_of_octet(at / kOctet), p.steps + at / kGroup, there);
}

template <int kDim>
void run(Queue& queue, int group, const NormParams& p) {
  const std::int64_t warps = (p.values + kItem - 1) / kItem;
  if (group == 32) {
    launch_warps(queue, gated_norm_kernel<kDim, 32>, warps, p);
  } else if (group == 64) {
    launch_warps(queue, gated_norm_kernel<kDim, 64>, warps, p);
  } else {
    launch_warps(queue, gated_norm_kernel<kDim, 128>, warps, p);
  }
}

}  // namespace

bool quantise_gated_norm_takes(int dim) {
  return dim == 128 || dim == 256;
}

void quantise_gated_norm(Queue& queue, const float* o, const float* z, const float* weight, int dim, float eps,
                         const ActivationRows& target) {
  const NormParams p{o,
                     z,
                     weight,
                     static_cast<std::uint8_t*>(target.digits),
                     static_cast<float2*>(target.steps),
                     target.rows * target.cols,
                     eps,
                     0};
  if (dim == 128) {
    run<128>(queue, target.group, p);
  } else {
    run<256>(queue, target.group, p);
  }
}

}  // namespace lockstep::kernels::cuda
