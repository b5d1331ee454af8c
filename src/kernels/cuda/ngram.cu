// One warp gathers a row: all its words at once into shared memory, since every read of the host's memory costs the way
// over the bus, and from there its values.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/ngram.hpp"

namespace lockstep::kernels::cuda {
namespace {

/// Longer rows are read where they are.
constexpr std::size_t kMostStaged = 4096;

struct GatherParams {
  PackedTable table;
  const std::int64_t* ids;  ///< null: of `hashed`
  HashedRows hashed;
  std::int64_t n;
  float* out;
  int words;   ///< of a row that is staged; 0: read where it is
  int unused;  ///< no undefined byte: batches of launches are compared
};

__device__ __forceinline__ float row_value(const PackedTable& t, const std::byte* row, int i) {
  if (t.bits == 0) return load_element(row, t.type, i);
  const auto* codes = reinterpret_cast<const std::uint8_t*>(row);
  const std::int64_t bit = static_cast<std::int64_t>(i) * t.bits;
  unsigned code = codes[bit / 8];
  if (bit % 8 + t.bits > 8) code |= static_cast<unsigned>(codes[bit / 8 + 1]) << 8;
  code = (code >> (bit % 8)) & ((1U << t.bits) - 1U);
  const std::int64_t groups = t.dim / t.group;
  const std::byte* pairs = row + t.dim * t.bits / 8;
  const float s = load_element(pairs, t.type, i / t.group);
  const float b = load_element(pairs, t.type, groups + i / t.group);
  return canon_fma(s, static_cast<float>(code), b);
}

__global__ void gather_kernel(GatherParams p) {
  extern __shared__ unsigned staged[];
  trigger_next_grid();
  const int item = warp_item();
  const int lane = lane_id();
  // The host wrote it before the launch. Not cached: a recorded launch reads other contents every time.
  std::uint64_t past = 0;
  if (p.ids == nullptr && item < p.n) {
    past = *static_cast<const volatile std::uint64_t*>(p.hashed.past + item / p.hashed.per);
  }
  wait_previous_grid();
  if (item >= p.n) return;
  std::int64_t id = 0;
  if (p.ids != nullptr) {
    id = p.ids[item];
  } else {
    const std::uint64_t mix = static_cast<std::uint64_t>(*p.hashed.token) * p.hashed.multiplier ^ past;
    id = static_cast<std::int64_t>(mix % p.hashed.sizes[item] + p.hashed.offsets[item]);
  }
  const std::int64_t inside = id & ((std::int64_t{1} << p.table.shift) - 1);
  const std::byte* row = p.table.chunks[id >> p.table.shift] + inside * static_cast<std::int64_t>(p.table.stride);
  if (p.words > 0) {
    unsigned* mine = staged + static_cast<int>(threadIdx.x) / 32 * p.words;
    const auto* words = reinterpret_cast<const unsigned*>(row);
    for (int i = lane; i < p.words; i += 32) mine[i] = words[i];
    __syncwarp();
    row = reinterpret_cast<const std::byte*>(mine);
  }
  float* out = p.out + item * p.table.dim;
  for (int i = lane; i < p.table.dim; i += 32) out[i] = row_value(p.table, row, i);
}

void gather(Queue& queue, GatherParams p) {
  const std::size_t stride = p.table.stride;
  const bool stages = stride <= kMostStaged;
  if (stages) p.words = static_cast<int>(stride / 4);
  launch_warps(queue, gather_kernel, p.n, p, stages ? kWarps * stride : 0);
}

}  // namespace

void gather_rows(Queue& queue, const PackedTable& table, const std::int64_t* ids, std::int64_t n, float* out) {
  gather(queue, {table, ids, {}, n, out, 0, 0});
}

void gather_hashed(Queue& queue, const PackedTable& table, const HashedRows& rows, float* out) {
  gather(queue, {table, nullptr, rows, rows.heads, out, 0, 0});
}

}  // namespace lockstep::kernels::cuda
