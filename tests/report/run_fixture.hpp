// Runs made up by tests.
#pragma once

#include <string>

#include "report/sample.hpp"

namespace lockstep::report::testing {

inline Sample good_sample(std::size_t window, std::uint64_t seed, double rate) {
  Sample sample;
  sample.window = window;
  sample.seed = seed;
  sample.prompt_tokens = sample.prefill_tokens = 16;
  sample.tokens = 3;
  sample.steps = 2;
  sample.finish = "length";
  sample.prefill_seconds = sample.ttft_seconds = 0.5;
  sample.prefill_rate = 32;
  sample.decode_rate = rate;
  sample.decode_seconds = 3 / rate;
  sample.wall_seconds = 0.5 + 3 / rate;
  sample.drafted = {4, 2, 0, 0};
  sample.accepted = {2, 1, 0, 0};
  sample.lanes = {"mtp"};
  sample.ids = {5, 6, static_cast<std::int32_t>(seed)};
  sample.digests = {"request", "prompt", "ids" + std::to_string(seed), "text", "reasoning"};
  sample.gate.judged = sample.gate.quiet = true;
  sample.gate.last.load = 0.25;
  return sample;
}

/// ABBA of "on" and "off", two seeds; off has mtp switched off and is slower.
inline Run good_run() {
  Run run;
  run.arms = {{"on", {}, {}}, {"off", {}, {"--disable-optimization", "mtp"}}};
  run.windows = *parse_order("ABBA", run.arms);
  run.seeds = {1, 2};
  run.mode = "served";
  run.model = {{"name", "toy"}};
  run.machine = {{"processor", "none"}, {"system", "Linux"}, {"processors", 2}};
  run.started = "2026-01-01T00:00:00Z";
  run.ended = "2026-01-01T00:01:00Z";
  run.version = "1";
  run.limits.max_load = 1;
  run.cell.prompt_tokens = 16;
  run.cell.max_tokens = 3;
  run.complete = true;
  for (std::size_t w = 0; w < run.windows.size(); ++w) {
    const bool off = run.windows[w].arm == 1;
    WindowRecord record;
    record.lanes = {{"mtp", off ? "off (--disable-optimization)" : "armed"}, {"frspec", "declined (no list)"}};
    record.device = "cpu";
    run.records.push_back(record);
    for (const std::uint64_t seed : run.seeds) {
      run.samples.push_back(good_sample(w, seed, (off ? 80.0 : 100.0) + static_cast<double>(seed)));
      if (off) run.samples.back().lanes.clear();
    }
  }
  return run;
}

}  // namespace lockstep::report::testing
