#include <algorithm>

#include "report/report.hpp"

namespace lockstep::report {
namespace {

double value_of(const Sample& sample, Metric metric) {
  switch (metric) {
    case Metric::DecodeRate:
      return sample.decode_rate;
    case Metric::PrefillRate:
      return sample.prefill_rate;
    case Metric::Ttft:
      return sample.ttft_seconds;
    case Metric::Wall:
      return sample.wall_seconds;
  }
  return 0;
}

}  // namespace

MetricInfo metric_info(Metric metric) {
  switch (metric) {
    case Metric::DecodeRate:
      return {"decode_tokens_per_second", "decode", "tokens/s", true};
    case Metric::PrefillRate:
      return {"prefill_tokens_per_second", "prefill", "tokens/s", true};
    case Metric::Ttft:
      return {"ttft_seconds", "time to first token", "s", false};
    case Metric::Wall:
      return {"wall_seconds", "wall", "s", false};
  }
  return {};
}

std::vector<Measured> measured(const Run& run, Metric metric) {
  std::vector<Measured> out;
  for (std::size_t w = 0; w < run.windows.size(); ++w) {
    Measured window{run.windows[w].arm, {}};
    for (const std::uint64_t seed : run.seeds) {
      const auto found = std::ranges::find_if(run.samples, [&](const Sample& sample) {
        return sample.window == w && sample.seed == seed && sample.error.empty();
      });
      if (found == run.samples.end()) break;
      const double value = value_of(*found, metric);
      if (!(value > 0)) break;  // an answer without a token has no speed
      window.by_seed.push_back(metric_info(metric).more_is_better ? value : 1 / value);
    }
    if (window.by_seed.size() == run.seeds.size()) out.push_back(std::move(window));
  }
  return out;
}

std::vector<double> acceptance(const Run& run, std::size_t arm) {
  std::vector<std::int64_t> drafted;
  std::vector<std::int64_t> accepted;
  for (const Sample& sample : run.samples) {
    if (run.windows[sample.window].arm != arm) continue;
    drafted.resize(std::max(drafted.size(), sample.drafted.size()));
    accepted.resize(drafted.size());
    for (std::size_t i = 0; i < sample.drafted.size(); ++i) drafted[i] += sample.drafted[i];
    for (std::size_t i = 0; i < std::min(sample.accepted.size(), accepted.size()); ++i)
      accepted[i] += sample.accepted[i];
  }
  std::vector<double> out;
  for (std::size_t i = 0; i < drafted.size() && drafted[i] > 0; ++i) {
    out.push_back(static_cast<double>(accepted[i]) / static_cast<double>(drafted[i]));
  }
  return out;
}

}  // namespace lockstep::report
