// Matrix products of every table: weight bytes per second at one row, multiply-adds per second at many.
// Arguments of a case: output rows, columns, bits (16: bf16), activation rows.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/thread_pool.hpp"
#include "kernels/cpu/packed.hpp"

namespace {

using namespace lockstep;
using namespace lockstep::kernels;

std::vector<std::byte> random_bytes(std::int64_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(static_cast<std::size_t>(n + 3));
  for (std::size_t i = 0; i + 4 <= out.size(); i += 4) {
    const auto word = static_cast<std::uint32_t>(random());
    std::memcpy(out.data() + i, &word, 4);
  }
  out.resize(static_cast<std::size_t>(n));
  return out;
}

struct Inputs {
  Inputs(const Kernels& table, std::int64_t rows, std::int64_t cols, int group)
      : x(static_cast<std::size_t>(rows * cols)),
        values(x.size()),
        steps(x.size() / static_cast<std::size_t>(group)),
        sums(steps.size()) {
    std::mt19937 random(7);
    for (float& value : x) value = static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
    table.quantise_rows(x.data(), rows, cols, group, values.data(), steps.data(), sums.data());
    quantised = {values.data(), steps.data(), sums.data(), rows, cols, group};
  }
  std::vector<float> x;
  std::vector<std::int16_t> values;
  std::vector<float> steps;
  std::vector<std::int32_t> sums;
  QuantisedRows quantised;
};

void report(benchmark::State& state, double macs, double bytes) {
  using benchmark::Counter;
  state.counters["GMAC/s"] = Counter(macs * 1e-9, Counter::kIsIterationInvariantRate);
  state.counters["GB/s"] = Counter(bytes * 1e-9, Counter::kIsIterationInvariantRate);
}

void run_packed(benchmark::State& state, const Kernels& table) {
  const std::int64_t rows = state.range(0);
  const std::int64_t cols = state.range(1);
  const int bits = static_cast<int>(state.range(2));
  const std::int64_t x_rows = state.range(3);
  constexpr int kGroup = 64;
  const auto codes = random_bytes(rows * cols * bits / 8, 1);
  const std::vector<std::byte> scales(static_cast<std::size_t>(rows * cols / kGroup * 2), std::byte{0x3c});
  const AffineMatrix source{reinterpret_cast<const std::uint8_t*>(codes.data()),
                            scales.data(),
                            scales.data(),
                            ElementType::BF16,
                            rows,
                            cols,
                            bits,
                            kGroup};
  const std::int64_t blocks = packed_blocks(rows);
  std::vector<std::byte> memory(
      static_cast<std::size_t>(blocks * (cols / kGroup) * packed_group_bytes(bits, kGroup, false) + 64));
  std::byte* aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  table.pack_blocks(source, 0, blocks, aligned);
  const PackedMatrix matrix{aligned, rows, cols, bits, kGroup, false};
  const Inputs x(table, x_rows, cols, kGroup);
  std::vector<float> out(static_cast<std::size_t>(x_rows * rows));
  ThreadPool pool(static_cast<std::size_t>(state.range(4)));
  for (auto _ : state) {
    pool.parallel_for(static_cast<std::size_t>(blocks), 1, [&](std::size_t begin, std::size_t end) {
      table.packed_rows(matrix, x.quantised, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end),
                        out.data(), rows);
    });
    benchmark::DoNotOptimize(out.data());
  }
  report(state, static_cast<double>(rows * cols * x_rows), static_cast<double>(memory.size()));
}

void run_dense(benchmark::State& state, const Kernels& table) {
  const std::int64_t rows = state.range(0);
  const std::int64_t cols = state.range(1);
  const std::int64_t x_rows = state.range(3);
  std::vector<std::byte> data(static_cast<std::size_t>(rows * cols * 2), std::byte{0x3c});
  const DenseMatrix matrix{data.data(), ElementType::BF16, rows, cols};
  const Inputs x(table, x_rows, cols, 64);
  std::vector<float> out(static_cast<std::size_t>(x_rows * rows));
  ThreadPool pool(static_cast<std::size_t>(state.range(4)));
  for (auto _ : state) {
    pool.parallel_for(static_cast<std::size_t>(rows), 16, [&](std::size_t begin, std::size_t end) {
      table.dense_rows(matrix, x.x.data(), x_rows, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end),
                       out.data(), rows);
    });
    benchmark::DoNotOptimize(out.data());
  }
  report(state, static_cast<double>(rows * cols * x_rows), static_cast<double>(data.size()));
}

/// Reads memory and adds it up: what decode is measured against.
void run_read(benchmark::State& state) {
  std::vector<std::uint64_t> data(std::size_t{1} << 26);
  for (std::size_t i = 0; i < data.size(); i += 8) data[i] = i;
  ThreadPool pool(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    pool.parallel_for(data.size(), 4096, [&](std::size_t begin, std::size_t end) {
      std::uint64_t sum[16] = {};
      for (std::size_t i = begin; i + 16 <= end; i += 16) {
        for (std::size_t j = 0; j < 16; ++j) sum[j] += data[i + j];
      }
      benchmark::DoNotOptimize(sum);
    });
  }
  report(state, 0, static_cast<double>(data.size() * 8));
}

void register_all() {
  for (const int threads : {1, 2}) benchmark::RegisterBenchmark("read", run_read)->Arg(threads)->UseRealTime();
  for (const Kernels* table : available_kernels()) {
    const std::string name(table->name);
    for (const int threads : {1, 2}) {
      if (table->packed_rows != nullptr) {
        auto* packed = benchmark::RegisterBenchmark(("packed/" + name).c_str(),
                                                    [table](benchmark::State& state) { run_packed(state, *table); });
        packed->UseRealTime();
        packed->Args({64000, 2560, 4, 1, threads});
        packed->Args({64000, 2560, 8, 1, threads});
        for (const int rows : {1, 2, 4, 8, 64, 256}) packed->Args({2560, 2560, 4, rows, threads});
      }
      auto* dense = benchmark::RegisterBenchmark(("dense/" + name).c_str(),
                                                 [table](benchmark::State& state) { run_dense(state, *table); });
      dense->UseRealTime();
      dense->Args({16000, 10240, 16, 1, threads});
      for (const int rows : {1, 4, 64, 256}) dense->Args({320, 10240, 16, rows, threads});
      for (const int rows : {1, 64, 256}) dense->Args({10240, 320, 16, rows, threads});
    }
  }
}

[[maybe_unused]] const bool kRegistered = (register_all(), true);

}  // namespace
