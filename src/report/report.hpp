// An A/B run as files: JSON (lockstep-ab-1, docs/ab.md), CSV, Markdown, SVG.
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

[[nodiscard]] OrderedJson to_json(const Run& run);
/// What the quiet gate saw: an entry of `lockstep-ab-1` and of the context sweep.
[[nodiscard]] OrderedJson gate_json(const GateRecord& gate);
[[nodiscard]] std::string to_csv(const Run& run);
[[nodiscard]] std::string to_markdown(const Run& run);
[[nodiscard]] std::string to_svg(const Run& run);

}  // namespace lockstep::report
