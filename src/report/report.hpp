// An A/B run as files: JSON (lockstep-ab-1, docs/ab.md), which can be read back, CSV, Markdown, SVG.
#pragma once

#include <string>
#include <vector>

#include "base/json.hpp"
#include "report/sample.hpp"
#include "report/statistics.hpp"

namespace lockstep::report {

/// What is compared between arms.
enum class Metric { DecodeRate, PrefillRate, Ttft, Wall };
inline constexpr Metric kMetrics[] = {Metric::DecodeRate, Metric::PrefillRate, Metric::Ttft, Metric::Wall};
struct MetricInfo {
  std::string_view key, name, unit;
  bool more_is_better;
};
[[nodiscard]] MetricInfo metric_info(Metric metric);

/// Windows in which every seed was answered, in run order. For metrics of which less is better the values are
/// reciprocals, so that a gain is a gain.
[[nodiscard]] std::vector<Measured> measured(const Run& run, Metric metric);

/// Accepted over drafted by depth, over all samples of an arm.
[[nodiscard]] std::vector<double> acceptance(const Run& run, std::size_t arm);

inline constexpr std::string_view kFormat = "lockstep-ab-1";

/// Of a run that is a FAIL nothing is compared: `against_control` is null.
[[nodiscard]] OrderedJson to_json(const Run& run);
/// The run that to_json() wrote; what follows from samples and windows (verdict, failures, summary, parity) is not read
/// but computed again. Errors: Invalid with the field that is missing or wrong, Usage (an arm's name, the order).
Result<Run> run_of_json(const OrderedJson& json);
/// What the quiet gate saw: an entry of `lockstep-ab-1` and of the context sweep.
[[nodiscard]] OrderedJson gate_json(const GateRecord& gate);
[[nodiscard]] std::string to_csv(const Run& run);
[[nodiscard]] std::string to_markdown(const Run& run);
[[nodiscard]] std::string to_svg(const Run& run);

}  // namespace lockstep::report
