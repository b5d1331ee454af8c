// The layouts of weights on a CUDA device: written once at load, and rows read back from them.
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/linear.hpp"

namespace lockstep::kernels::cuda {
namespace {

struct AffineLayoutParams {
  AffineSource source;
  unsigned* codes;
  float* pairs;
  std::int64_t words, count, rows, cols;
  int bits, group;
  bool wide;
};

__device__ std::uint8_t source_code(const std::uint8_t* row, int bits, std::int64_t input) {
  const std::int64_t bit = input * bits;
  unsigned value = row[bit / 8];
  if (bit % 8 + bits > 8) value |= static_cast<unsigned>(row[bit / 8 + 1]) << 8;
  return static_cast<std::uint8_t>((value >> (bit % 8)) & ((1U << bits) - 1U));
}

/// One thread per word of codes.
__global__ void affine_codes_kernel(AffineLayoutParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t word = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (word >= p.words) return;
  const int pieces = p.bits / 4;
  const std::int64_t chunks = (p.cols + 63) / 64;
  const std::int64_t tiles = (p.rows + 15) / 16;
  const int part = static_cast<int>(word % 4);
  const int lane = static_cast<int>(word / 4 % 32);
  const int piece = static_cast<int>(word / 128 % pieces);
  const std::int64_t chunk = word / (128 * pieces) % chunks;
  const std::int64_t tile = word / (128 * pieces) / chunks % tiles;
  const std::int64_t matrix = word / (128 * pieces) / chunks / tiles;
  const std::int64_t row = tile * 16 + lane / 4 + part % 2 * 8;
  unsigned value = 0;
  if (row < p.rows) {
    const std::uint8_t* source = p.source.codes + (matrix * p.rows + row) * (p.cols * p.source.bits / 8);
    const int half = p.bits == 4 ? part / 2 : piece;
    const std::int64_t input0 = chunk * 64 + half * 32 + lane % 4 * 8;
    if (p.bits == 4) {
      for (int n = 0; n < 8; ++n) {
        if (input0 + n < p.cols) {
          value |= static_cast<unsigned>(source_code(source, p.source.bits, input0 + n)) << (4 * n);
        }
      }
    } else {
      for (int n = 0; n < 4; ++n) {
        const std::int64_t input = input0 + 2 * n + part / 2;
        if (input < p.cols) value |= static_cast<unsigned>(source_code(source, p.source.bits, input)) << (8 * n);
      }
    }
  }
  p.codes[word] = value;
}

/// One thread per scale and bias.
__global__ void affine_pairs_kernel(AffineLayoutParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t groups = p.cols / p.group;
  const std::int64_t tiles = (p.rows + 15) / 16;
  if (item >= p.count * tiles * groups * 16) return;
  const int place = static_cast<int>(item % 16);
  const std::int64_t group = item / 16 % groups;
  const std::int64_t tile = item / 16 / groups % tiles;
  const std::int64_t matrix = item / 16 / groups / tiles;
  const std::int64_t row = tile * 16 + place / 2 + place % 2 * 8;
  float s = 0.0F;
  float b = 0.0F;
  if (row < p.rows) {
    const std::int64_t at = (matrix * p.rows + row) * groups + group;
    s = load_element(p.source.scales, p.source.scale_type, at);
    b = load_element(p.source.biases, p.source.scale_type, at);
  }
  if (p.wide) {
    p.pairs[2 * item] = s;
    p.pairs[2 * item + 1] = b;
  } else {
    reinterpret_cast<unsigned*>(p.pairs)[item] = (float_bits(s) >> 16) | (float_bits(b) & 0xffff0000U);
  }
}

struct DenseLayoutParams {
  const void* source;
  ElementType type;
  void* data;
  std::int64_t items, cols, chunks;
  bool wide;
};

/// One thread per weight of the target.
__global__ void dense_layout_kernel(DenseLayoutParams p) {
  trigger_next_grid();
  wait_previous_grid();
  const std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (item >= p.items) return;
  const std::int64_t row = item / (p.chunks * 256);
  const std::int64_t chunk = item / 256 % p.chunks;
  const int in_chunk = static_cast<int>(item % 256);
  const int lane = p.wide ? in_chunk / 4 % 32 : in_chunk / 8;
  const int step = p.wide ? in_chunk / 128 * 4 + in_chunk % 4 : in_chunk % 8;
  const std::int64_t input = chunk * 256 + 32 * step + lane;
  const float value = input < p.cols ? load_element(p.source, p.type, row * p.cols + input) : 0.0F;
  if (p.wide) {
    static_cast<float*>(p.data)[item] = value;
  } else {
    static_cast<std::uint16_t*>(p.data)[item] = static_cast<std::uint16_t>(float_bits(value) >> 16);
  }
}

struct LookupParams {
  AffineWeights affine;
  DenseWeights dense;
  const std::int32_t* ids;
  std::int64_t cols, copies;
  float* out;
};

/// Blocks in y are ids, threads are inputs.
__global__ void affine_lookup_kernel(LookupParams p) {
  wait_previous_grid();
  trigger_next_grid();  // begins a pass (Queue)
  const int input = thread_item();
  if (input >= p.cols) return;
  const std::int64_t id = p.ids[blockIdx.y];
  const std::int64_t tile = id / 16;
  const int row = static_cast<int>(id % 16);
  const std::int64_t chunks = (p.cols + 63) / 64;
  const std::int64_t groups = p.cols / p.affine.group;
  const int c = input % 64;
  const int lane = row % 8 * 4 + c % 32 / 8;
  const int n = c % 8;
  const int half = c / 32;
  const auto* words = static_cast<const unsigned*>(p.affine.codes) + (tile * chunks + input / 64) * 32 * p.affine.bits;
  unsigned code = 0;
  if (p.affine.bits == 4) {
    code = words[lane * 4 + half * 2 + row / 8] >> (4 * n) & 15U;
  } else {
    code = words[half * 128 + lane * 4 + n % 2 * 2 + row / 8] >> (8 * (n / 2)) & 255U;
  }
  const std::int64_t pair = (tile * groups + input / p.affine.group) * 16 + row % 8 * 2 + row / 8;
  float s = 0.0F;
  float b = 0.0F;
  if (p.affine.wide_pairs) {
    s = static_cast<const float*>(p.affine.pairs)[2 * pair];
    b = static_cast<const float*>(p.affine.pairs)[2 * pair + 1];
  } else {
    const unsigned both = static_cast<const unsigned*>(p.affine.pairs)[pair];
    s = bits_float(both << 16);
    b = bits_float(both & 0xffff0000U);
  }
  const float value = canon_fma(s, static_cast<float>(code), b);
  float* out = p.out + blockIdx.y * p.copies * p.cols + input;
  for (std::int64_t i = 0; i < p.copies; ++i) out[i * p.cols] = value;
}

__global__ void dense_lookup_kernel(LookupParams p) {
  wait_previous_grid();
  trigger_next_grid();  // begins a pass (Queue)
  const int input = thread_item();
  if (input >= p.cols) return;
  const std::int64_t id = p.ids[blockIdx.y];
  const std::int64_t base = (id * ((p.cols + 255) / 256) + input / 256) * 256;
  const int lane = input % 32;
  const int step = input % 256 / 32;
  float value = 0.0F;
  if (p.dense.wide) {
    value = static_cast<const float*>(p.dense.data)[base + step / 4 * 128 + lane * 4 + step % 4];
  } else {
    value = bf16_to_float(static_cast<const std::uint16_t*>(p.dense.data)[base + lane * 8 + step]);
  }
  float* out = p.out + blockIdx.y * p.copies * p.cols + input;
  for (std::int64_t i = 0; i < p.copies; ++i) out[i * p.cols] = value;
}

Extent lookup_grid(std::int64_t cols, std::int64_t n) {
  return {blocks_for(cols, 256), static_cast<unsigned>(n), 1};
}

}  // namespace

void lay_out_affine(Queue& queue, const AffineSource& source, const AffineWeights& target) {
  AffineLayoutParams p{};
  p.source = source;
  p.codes = static_cast<unsigned*>(const_cast<void*>(target.codes));
  p.pairs = static_cast<float*>(const_cast<void*>(target.pairs));
  p.words = target.count * static_cast<std::int64_t>(target.matrix_code_bytes() / 4);
  p.count = target.count;
  p.rows = target.rows;
  p.cols = target.cols;
  p.bits = target.bits;
  p.group = target.group;
  p.wide = target.wide_pairs;
  launch_threads(queue, affine_codes_kernel, p.words, p);
  launch_threads(queue, affine_pairs_kernel, target.count * target.tiles() * target.groups() * 16, p);
}

void lay_out_dense(Queue& queue, const void* source, ElementType type, const DenseWeights& target) {
  DenseLayoutParams p{};
  p.source = source;
  p.type = type;
  p.data = const_cast<void*>(target.data);
  p.items = target.count * target.rows * target.chunks() * 256;
  p.cols = target.cols;
  p.chunks = target.chunks();
  p.wide = target.wide;
  launch_threads(queue, dense_layout_kernel, p.items, p);
}

void affine_lookup(Queue& queue, const AffineWeights& weights, const std::int32_t* ids, std::int64_t n,
                   std::int64_t copies, float* out) {
  LookupParams p{};
  p.affine = weights;
  p.ids = ids;
  p.cols = weights.cols;
  p.copies = copies;
  p.out = out;
  launch(queue, affine_lookup_kernel, lookup_grid(p.cols, n), {256, 1, 1}, 0, p);
}

void dense_lookup(Queue& queue, const DenseWeights& weights, const std::int32_t* ids, std::int64_t n,
                  std::int64_t copies, float* out) {
  LookupParams p{};
  p.dense = weights;
  p.ids = ids;
  p.cols = weights.cols;
  p.copies = copies;
  p.out = out;
  launch(queue, dense_lookup_kernel, lookup_grid(p.cols, n), {256, 1, 1}, 0, p);
}

}  // namespace lockstep::kernels::cuda
