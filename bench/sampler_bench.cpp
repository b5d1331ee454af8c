// Time of one draw over the vocabulary of the real model: filtering a row of logits, then drawing.
#include <benchmark/benchmark.h>

#include <random>
#include <vector>

#include "decode/distribution.hpp"
#include "decode/distribution_passes.hpp"
#include "decode/sampler.hpp"
#include "decode/sampler_logprobs.hpp"

namespace {

using namespace lockstep::decode;

constexpr std::size_t kVocab = 248'320;

/// Logits like a language model's: a broad bell and a few tokens far above it.
const std::vector<float>& row() {
  static const std::vector<float> logits = [] {
    std::mt19937_64 random(1);
    std::normal_distribution<float> bell(0.0F, 2.5F);
    std::vector<float> values(kVocab);
    for (float& x : values) x = bell(random);
    for (int i = 0; i < 40; ++i) values[random() % kVocab] = 14.0F + 0.25F * static_cast<float>(i % 20);
    return values;
  }();
  return logits;
}

void draw(benchmark::State& state, const SamplerParams& params) {
  RowScratch scratch;
  Distribution distribution;
  const Sampler sampler(params);
  TokenCounts counts;
  for (TokenId id = 0; id < 500; ++id) counts.add(id * 37);
  RowContext context{.vocab = kVocab, .counts = &counts};
  for (auto _ : state) {
    if (!make_distribution(row(), params, context, scratch, distribution)) state.SkipWithError("no distribution");
    benchmark::DoNotOptimize(sampler.draw(distribution, context.token_number++));
  }
  state.counters["candidates"] = static_cast<double>(distribution.ids.size());
}

BENCHMARK_CAPTURE(draw, greedy, SamplerParams{.temperature = 0});
BENCHMARK_CAPTURE(draw, defaults_pcg64, SamplerParams{.top_k = 20, .top_p = 0.95});
BENCHMARK_CAPTURE(draw, defaults_race, SamplerParams{.top_k = 20, .top_p = 0.95, .draw_rule = DrawRule::Race});
BENCHMARK_CAPTURE(draw, defaults_penalties, SamplerParams{.top_k = 20, .top_p = 0.95, .presence_penalty = 1.5});
BENCHMARK_CAPTURE(draw, top_k_1000, SamplerParams{.top_k = 1000});
BENCHMARK_CAPTURE(draw, top_k_50000, SamplerParams{.top_k = 50'000});
BENCHMARK_CAPTURE(draw, top_p_only, SamplerParams{.top_p = 0.95});
BENCHMARK_CAPTURE(draw, top_p_flat, SamplerParams{.temperature = 2.0, .top_p = 0.95});
BENCHMARK_CAPTURE(draw, min_p_only, SamplerParams{.min_p = 0.05});
BENCHMARK_CAPTURE(draw, unfiltered_pcg64, SamplerParams{});
BENCHMARK_CAPTURE(draw, unfiltered_race, SamplerParams{.draw_rule = DrawRule::Race});

void logprobs(benchmark::State& state) {
  RowScratch scratch;
  Logprobs out;
  for (auto _ : state) {
    if (!read_logprobs(row(), 7, 5, {.vocab = kVocab}, scratch, out)) state.SkipWithError("no log-probabilities");
    benchmark::DoNotOptimize(out.chosen);
  }
}
BENCHMARK(logprobs);

void exp_fold(benchmark::State& state) {
  const RowPasses& passes = supported_row_passes()[static_cast<std::size_t>(state.range(0))];
  std::vector<float> exps(kVocab);
  for (auto _ : state) benchmark::DoNotOptimize(passes.exp_fold(row().data(), 19.0F, exps.data(), kVocab));
  state.SetLabel(passes.name);
}
BENCHMARK(exp_fold)->DenseRange(0, static_cast<int>(supported_row_passes().size()) - 1);

}  // namespace
