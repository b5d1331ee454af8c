#include <set>

#include "report/parity.hpp"
#include "report/report.hpp"

namespace lockstep::report {
namespace {

template <class T>
OrderedJson or_null(const std::optional<T>& value) {
  return value ? OrderedJson(*value) : OrderedJson();
}

OrderedJson arm_json(const Arm& arm) {
  OrderedJson environment = OrderedJson::object();
  for (const auto& [name, value] : arm.environment) environment[name] = value;
  return {{"name", arm.name}, {"environment", environment}, {"flags", arm.flags}};
}

OrderedJson limits_json(const GateLimits& limits) {
  return {{"max_load", or_null(limits.max_load)},
          {"max_busy", or_null(limits.max_busy)},
          {"min_cpu_mhz", or_null(limits.min_cpu_mhz)},
          {"max_cpu_celsius", or_null(limits.max_cpu_celsius)},
          {"max_gpu_celsius", or_null(limits.max_gpu_celsius)},
          {"timeout_seconds", limits.timeout_seconds}};
}

void add_digests(const Digests& digests, OrderedJson& out) {
  out["request_sha256"] = digests.request;
  out["prompt_ids_sha256"] = digests.prompt_ids;
  out["ids_sha256"] = digests.ids;
  out["text_sha256"] = digests.text;
  out["reasoning_sha256"] = digests.reasoning;
}

OrderedJson sample_json(const Run& run, const Sample& sample, bool with_ids) {
  OrderedJson out = {{"window", run.windows[sample.window].label},
                     {"arm", run.arms[run.windows[sample.window].arm].name},
                     {"seed", sample.seed}};
  out["gate"] = gate_json(sample.gate);
  if (!sample.error.empty()) {
    out["error"] = sample.error;
    return out;
  }
  out["prompt_tokens"] = sample.prompt_tokens;
  out["prefill_tokens"] = sample.prefill_tokens;
  out["prefill_seconds"] = sample.prefill_seconds;
  out["prefill_tokens_per_second"] = sample.prefill_rate;
  out["ttft_seconds"] = sample.ttft_seconds;
  out["tokens"] = sample.tokens;
  out["steps"] = sample.steps;
  out["decode_seconds"] = sample.decode_seconds;
  out["decode_tokens_per_second"] = sample.decode_rate;
  out["wall_seconds"] = sample.wall_seconds;
  out["peak_memory_bytes"] = or_null(sample.peak_bytes);
  out["finish_reason"] = sample.finish;
  out["drafted"] = sample.drafted;
  out["accepted"] = sample.accepted;
  out["lanes"] = sample.lanes;
  add_digests(sample.digests, out);
  if (with_ids) out["ids"] = sample.ids;
  return out;
}

OrderedJson parity_json(const SeedParity& parity) {
  OrderedJson out = {{"seed", parity.seed}, {"answers", parity.answers}};
  out["equal"] = parity.first == nullptr ? OrderedJson() : OrderedJson(parity.difference.empty());
  if (!parity.difference.empty()) out["difference"] = parity.difference;
  if (parity.first == nullptr) return out;
  out["tokens"] = parity.first->tokens;
  out["finish_reason"] = parity.first->finish;
  add_digests(parity.first->digests, out);
  return out;
}

OrderedJson window_json(const Run& run, std::size_t w) {
  const WindowRecord& record = run.records[w];
  OrderedJson out = {{"label", run.windows[w].label}, {"arm", run.arms[run.windows[w].arm].name}};
  out["start_seconds"] = record.start_seconds;
  out["device"] = record.device;
  out["lanes"] = OrderedJson::object();
  for (const LaneState& lane : record.lanes) out["lanes"][lane.name] = lane.verdict;
  if (!record.error.empty()) out["error"] = record.error;
  return out;
}

OrderedJson cell_json(const Cell& cell) {
  OrderedJson out = {
      {"prompt_sha256", cell.prompt_sha256}, {"prompt_tokens", cell.prompt_tokens}, {"max_tokens", cell.max_tokens}};
  out["temperature"] = or_null(cell.temperature);
  out["top_p"] = or_null(cell.top_p);
  out["top_k"] = or_null(cell.top_k);
  out["effort"] = cell.effort.empty() ? OrderedJson() : OrderedJson(cell.effort);
  out["no_think"] = cell.no_think;
  return out;
}

OrderedJson spread_json(const std::optional<SeedSpread>& spread) {
  if (!spread) return {};
  return {{"largest", spread->largest}, {"median", spread->median}};
}

OrderedJson comparison_json(const Comparison& found) {
  OrderedJson out = {{"change", found.change}, {"pairs", found.pairs}};
  out["interval_95"] = found.interval ? OrderedJson::array({found.interval->low, found.interval->high}) : OrderedJson();
  out["noise"] = or_null(found.noise);
  out["seed_spread"] = spread_json(found.seed_spread);
  out["window_half_width"] = or_null(found.window_half_width);
  out["threshold"] = or_null(found.threshold);
  out["verdict"] = word_text(found.word);
  return out;
}

OrderedJson summary_json(const Run& run, std::size_t arm, bool passed) {
  OrderedJson out = {{"arm", run.arms[arm].name}, {"control", arm == run.control}};
  out["lanes_under_test"] = lanes_under_test(run, arm);
  out["acceptance_by_depth"] = acceptance(run, arm);
  for (const Metric metric : kMetrics) {
    const MetricInfo info = metric_info(metric);
    const std::vector<Measured> windows = measured(run, metric);
    std::vector<double> values;
    for (const Measured& window : windows) {
      if (window.arm != arm) continue;
      for (const double value : window.by_seed) values.push_back(info.more_is_better ? value : 1 / value);
    }
    OrderedJson part = OrderedJson::object();
    if (!values.empty()) {
      part = {{"mean", mean(values)}, {"median", median(values)}};
      part["window_noise"] = or_null(window_noise(windows, arm));
      part["seed_spread"] = spread_json(seed_spread(windows, arm));
      const auto found = passed ? compare(windows, arm, run.control) : std::nullopt;
      part["against_control"] = found ? comparison_json(*found) : OrderedJson();
    }
    out[std::string(info.key)] = part;
  }
  return out;
}

}  // namespace

OrderedJson gate_json(const GateRecord& gate) {
  return {{"quiet", gate.judged ? OrderedJson(gate.quiet) : OrderedJson()},
          {"waited_seconds", gate.waited_seconds},
          {"load", or_null(gate.last.load)},
          {"busy", or_null(gate.last.busy)},
          {"cpu_mhz", or_null(gate.last.cpu_mhz)},
          {"cpu_celsius", or_null(gate.last.cpu_celsius)},
          {"gpu_celsius", or_null(gate.last.gpu_celsius)},
          {"exceeded", gate.exceeded},
          {"unread", gate.unread}};
}

OrderedJson to_json(const Run& run) {
  const std::vector<std::string> failed = failures(run);
  OrderedJson out = {{"format", kFormat}, {"version", run.version}};
  if (!run.commit.empty()) out["commit"] = run.commit;
  out["verdict"] = failed.empty() ? "PASS" : "FAIL";
  out["complete"] = run.complete;
  out["failures"] = failed;
  out["started"] = run.started;
  out["ended"] = run.ended;
  out["mode"] = run.mode;
  out["model"] = run.model;
  out["machine"] = run.machine;
  out["environment"] = run.environment;
  out["cell"] = cell_json(run.cell);
  out["seeds"] = run.seeds;
  out["arms"] = OrderedJson::array();
  for (const Arm& arm : run.arms) out["arms"].push_back(arm_json(arm));
  out["control"] = run.arms[run.control].name;
  out["required"] = run.required;
  out["gate"] = limits_json(run.limits);
  out["order"] = OrderedJson::array();
  for (const Window& window : run.windows) out["order"].push_back(window.label);
  out["summary"] = OrderedJson::array();
  for (std::size_t arm = 0; arm < run.arms.size(); ++arm) {
    out["summary"].push_back(summary_json(run, arm, failed.empty()));
  }
  out["parity"] = OrderedJson::array();
  std::set<std::uint64_t> differing;
  for (const SeedParity& parity : seed_parity(run)) {
    out["parity"].push_back(parity_json(parity));
    if (!parity.difference.empty()) differing.insert(parity.seed);
  }
  out["windows"] = OrderedJson::array();
  for (std::size_t w = 0; w < run.records.size(); ++w) out["windows"].push_back(window_json(run, w));
  out["samples"] = OrderedJson::array();
  for (const Sample& sample : run.samples) {
    out["samples"].push_back(sample_json(run, sample, differing.contains(sample.seed)));
  }
  return out;
}

}  // namespace lockstep::report
