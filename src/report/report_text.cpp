// CSV, Markdown and the chart of a run.
#include <algorithm>

#include "report/markdown.hpp"
#include "report/parity.hpp"
#include "report/report.hpp"
#include "report/svg.hpp"

namespace lockstep::report {
namespace {

std::string join(const auto& items, std::string_view separator) {
  std::string out;
  bool first = true;
  for (const auto& item : items) {
    out += fmt::format("{}{}", first ? "" : separator, item);
    first = false;
  }
  return out;
}

/// A CSV field (RFC 4180).
std::string field(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
  return out + "\"";
}

std::string number_or_empty(const auto& value) {
  return value ? fmt::format("{}", *value) : std::string();
}

/// Whether a sample began on a quiet machine: 1, 0, or nothing when no limit could be looked at.
std::string quiet_field(const GateRecord& gate) {
  if (!gate.judged) return {};
  return gate.quiet ? "1" : "0";
}

std::string percent(double share) {
  return fmt::format("{:+.2f} %", 100 * share);
}

std::string arm_words(const Arm& arm) {
  std::string out;
  for (const auto& [name, value] : arm.environment) out += fmt::format("{}={} ", name, value);
  out += join(arm.flags, " ");
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out.empty() ? "(nothing)" : markdown_code(out);
}

std::string arms_table(const Run& run) {
  std::string out =
      "| arm | | decode tokens/s: mean | median | prefill tokens/s | TTFT s | wall s | peak memory MB | drafts kept by "
      "depth |\n"
      "|---|---|---|---|---|---|---|---|---|\n";
  for (std::size_t arm = 0; arm < run.arms.size(); ++arm) {
    std::vector<double> decode;
    std::vector<double> prefill;
    std::vector<double> ttft;
    std::vector<double> wall;
    std::uint64_t peak = 0;
    for (const Sample& sample : run.samples) {
      if (run.windows[sample.window].arm != arm || !sample.error.empty()) continue;
      decode.push_back(sample.decode_rate);
      prefill.push_back(sample.prefill_rate);
      ttft.push_back(sample.ttft_seconds);
      wall.push_back(sample.wall_seconds);
      peak = std::max(peak, sample.peak_bytes.value_or(0));
    }
    out += fmt::format("| {}{} | {} ", run.arms[arm].name, arm == run.control ? " (control)" : "",
                       arm_words(run.arms[arm]));
    if (decode.empty()) {
      out += "| - | - | - | - | - | - | - |\n";
      continue;
    }
    std::vector<std::string> kept;
    for (const double share : acceptance(run, arm)) kept.push_back(fmt::format("{:.1f} %", 100 * share));
    out += fmt::format("| {:.2f} | {:.2f} | {:.1f} | {:.3f} | {:.3f} | {} | {} |\n", mean(decode), median(decode),
                       mean(prefill), mean(ttft), mean(wall),
                       peak == 0 ? std::string("-") : fmt::format("{:.1f}", static_cast<double>(peak) * 1e-6),
                       kept.empty() ? "-" : join(kept, " / "));
  }
  return out;
}

std::string comparison_table(const Run& run) {
  std::string out = fmt::format(
      "| against {} | metric | change | 95 % interval | window noise | same seed, median | largest | to be told apart "
      "| "
      "verdict |\n|---|---|---|---|---|---|---|---|---|\n",
      run.arms[run.control].name);
  const auto share = [](const std::optional<double>& value) {
    return value ? fmt::format("{:.2f} %", 100 * *value) : std::string("unknown");
  };
  for (std::size_t arm = 0; arm < run.arms.size(); ++arm) {
    for (const Metric metric : kMetrics) {
      const auto found = compare(measured(run, metric), arm, run.control);
      if (!found) continue;
      const MetricInfo info = metric_info(metric);
      const auto& spread = found->seed_spread;
      out += fmt::format("| {} | {}{} | {} | {} | {} | {} | {} | {} | {} |\n", run.arms[arm].name, info.name,
                         info.more_is_better ? "" : " (speed)", percent(found->change),
                         found->interval
                             ? fmt::format("{} to {}", percent(found->interval->low), percent(found->interval->high))
                             : std::string("-"),
                         share(found->noise), share(spread ? std::optional(spread->median) : std::nullopt),
                         share(spread ? std::optional(spread->largest) : std::nullopt), share(found->threshold),
                         metric == Metric::DecodeRate ? fmt::format("**{}**", word_text(found->word))
                                                      : std::string(word_text(found->word)));
    }
  }
  return out;
}

std::string lanes_line(const Run& run) {
  std::vector<std::string> parts;
  for (std::size_t arm = 0; arm < run.arms.size(); ++arm) {
    std::vector<std::string> lanes;
    for (const std::string& lane : lanes_under_test(run, arm)) lanes.push_back(markdown_code(lane));
    if (!lanes.empty()) parts.push_back(fmt::format("{} in {}", join(lanes, ", "), run.arms[arm].name));
  }
  if (parts.empty()) return "No lane was under test: engagement was not asserted.\n";
  return fmt::format("Lanes under test: {}.\n", join(parts, "; "));
}

std::string environment_line(const Run& run) {
  std::vector<std::string> words;
  for (const auto& [name, value] : run.environment.items()) {
    words.push_back(markdown_code(fmt::format("{}={}", name, value.get<std::string>())));
  }
  return words.empty() ? std::string() : fmt::format("Environment: {}.\n", join(words, " "));
}

std::string parity_table(const Run& run) {
  std::string out = "| seed | tokens | finish | prompt ids | ids | reasoning | text |\n|---|---|---|---|---|---|---|\n";
  const auto brief = [](const std::string& digest) { return markdown_code(digest.substr(0, 12)); };
  for (const auto& [seed, answers, first, different] : seed_parity(run)) {
    if (first == nullptr) continue;
    if (different.empty()) {
      out += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", seed, first->tokens, markdown_text(first->finish),
                         brief(first->digests.prompt_ids), brief(first->digests.ids), brief(first->digests.reasoning),
                         brief(first->digests.text));
    } else {
      out += fmt::format("| {} | **differ** | | | | | |\n", seed);
    }
  }
  return out;
}

std::string gate_line(const Run& run) {
  const GateLimits& limits = run.limits;
  const bool limited =
      limits.max_load || limits.max_busy || limits.min_cpu_mhz || limits.max_cpu_celsius || limits.max_gpu_celsius;
  std::size_t noisy = 0;
  std::size_t unjudged = 0;
  std::vector<std::string> unread;
  double most_load = 0;
  bool load_known = false;
  for (const Sample& sample : run.samples) {
    if (!sample.gate.judged) {
      ++unjudged;
    } else if (!sample.gate.quiet) {
      ++noisy;
    }
    if (sample.gate.last.load) {
      most_load = std::max(most_load, *sample.gate.last.load);
      load_known = true;
    }
    for (const std::string& name : sample.gate.unread) {
      if (std::ranges::find(unread, name) == unread.end()) unread.push_back(name);
    }
  }
  std::string out = "There was no quiet gate";
  if (limited && noisy > 0) {
    out =
        fmt::format("Quiet gate: {} of {} samples began although the machine was NOT quiet", noisy, run.samples.size());
  } else if (limited && unjudged == 0) {
    out = fmt::format("Quiet gate: all {} samples began on a quiet machine", run.samples.size());
  } else if (limited) {
    out = "Quiet gate";
  }
  if (limited && unjudged > 0) {
    out += fmt::format("; nothing is known of {} of {} samples", unjudged, run.samples.size());
  }
  out += load_known ? fmt::format("; highest load average {:.2f}", most_load) : "; this machine shows no load average";
  if (!unread.empty()) out += "; not shown by this machine: " + markdown_text(join(unread, ", "));
  return out + ".\n";
}

std::string title(const Run& run) {
  std::vector<std::string> names;
  for (const Arm& arm : run.arms) names.push_back(arm.name);
  return fmt::format("{}: {}", run.model.value("name", "model"), join(names, " / "));
}

/// Spaces at which a line is not cut.
std::string unbroken(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == ' ' ? "\u00a0" : std::string(1, c);
  return out;
}

std::string verdict_line(const Run& run) {
  std::vector<std::string> parts;
  const std::vector<Measured> windows = measured(run, Metric::DecodeRate);
  for (std::size_t arm = 0; arm < run.arms.size(); ++arm) {
    const auto found = compare(windows, arm, run.control);
    if (found)
      parts.push_back(fmt::format("{} against {}: {}, {}", run.arms[arm].name, run.arms[run.control].name,
                                  unbroken(percent(found->change)), unbroken(word_text(found->word))));
  }
  return join(parts, "; ");
}

}  // namespace

std::string to_csv(const Run& run) {
  std::string out =
      "window,arm,seed,prompt_tokens,prefill_tokens,prefill_tokens_per_second,ttft_seconds,tokens,steps,"
      "decode_tokens_per_second,wall_seconds,peak_memory_bytes,finish_reason,drafted,accepted,lanes,quiet,load,"
      "request_sha256,prompt_ids_sha256,ids_sha256,text_sha256,reasoning_sha256,verdict,error\n";
  const std::string_view verdict = failures(run).empty() ? "PASS" : "FAIL";
  for (const Sample& s : run.samples) {
    const Window& window = run.windows[s.window];
    out += fmt::format("{},{},{},{},{},{:.6g},{:.6g},{},{},{:.6g},{:.6g},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n",
                       window.label, run.arms[window.arm].name, s.seed, s.prompt_tokens, s.prefill_tokens,
                       s.prefill_rate, s.ttft_seconds, s.tokens, s.steps, s.decode_rate, s.wall_seconds,
                       number_or_empty(s.peak_bytes), field(s.finish), join(s.drafted, " "), join(s.accepted, " "),
                       field(join(s.lanes, " ")), quiet_field(s.gate), number_or_empty(s.gate.last.load),
                       field(s.digests.request), field(s.digests.prompt_ids), field(s.digests.ids),
                       field(s.digests.text), field(s.digests.reasoning), verdict, field(s.error));
  }
  return out;
}

std::string to_markdown(const Run& run) {
  const std::vector<std::string> failed = failures(run);
  std::string out = fmt::format("# {}\n\n", markdown_text(title(run)));
  out += failed.empty() ? "**PASS**: all windows gave the same answers, and what was to run did run.\n"
                        : fmt::format("**FAIL** ({}):\n\n", failed.size());
  for (const std::string& failure : failed) out += fmt::format("* {}\n", markdown_text(failure));
  std::vector<std::string> order;
  for (const Window& window : run.windows) order.push_back(window.label);
  out += fmt::format("\n{}, {} windows ({}), {} seeds; {} prompt tokens, at most {} tokens an answer. {} to {}.\n",
                     markdown_text(run.mode), run.windows.size(), join(order, " "), run.seeds.size(),
                     run.cell.prompt_tokens, run.cell.max_tokens, markdown_text(run.started), markdown_text(run.ended));
  if (!run.commit.empty())
    out += fmt::format("Program: {}, commit {}.\n", markdown_text(run.version), markdown_text(run.commit));
  out += fmt::format("Machine: {}, {} processors, {}. {}", markdown_text(run.machine.value("processor", "unknown")),
                     run.machine.value("processors", 0), markdown_text(run.machine.value("system", "unknown")),
                     gate_line(run));
  out += environment_line(run) + lanes_line(run);
  out += "\n## Speed\n\n" + arms_table(run) + "\n";
  out += failed.empty() ? comparison_table(run) : "No arm is compared with another: of a FAIL no speed is a result.\n";
  out += "\n## Answers\n\n" + parity_table(run);
  return out;
}

std::string to_svg(const Run& run) {
  WindowChart chart;
  chart.title = title(run);
  chart.subtitle = fmt::format("{} prompt tokens, at most {} an answer\n{}", run.cell.prompt_tokens,
                               run.cell.max_tokens, failures(run).empty() ? verdict_line(run) : "FAIL: see the report");
  chart.unit = "decode, tokens/s";
  for (const Arm& arm : run.arms) chart.arms.push_back(arm.name);
  for (const std::uint64_t seed : run.seeds) chart.lines.push_back(std::to_string(seed));
  for (std::size_t w = 0; w < run.windows.size(); ++w) {
    WindowChart::Column column{run.windows[w].label, run.windows[w].arm, false, {}};
    for (const std::uint64_t seed : run.seeds) {
      const auto found = std::ranges::find_if(
          run.samples, [&](const Sample& s) { return s.window == w && s.seed == seed && s.error.empty(); });
      if (found != run.samples.end()) column.by_line.push_back(found->decode_rate);
    }
    column.has_values = column.by_line.size() == run.seeds.size();
    chart.columns.push_back(std::move(column));
  }
  return window_chart(chart);
}

}  // namespace lockstep::report
