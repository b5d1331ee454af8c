// What one parallel loop costs before it does anything: the floor under every kernel call.
#include <benchmark/benchmark.h>

#include "base/thread_pool.hpp"

namespace {

void empty_loop(benchmark::State& state) {
  lockstep::ThreadPool pool(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) {
    pool.parallel_for(1024, 1, [](std::size_t begin, std::size_t end) { benchmark::DoNotOptimize(end - begin); });
  }
}
BENCHMARK(empty_loop)->Arg(1)->Arg(2)->Arg(4)->UseRealTime();

}  // namespace
