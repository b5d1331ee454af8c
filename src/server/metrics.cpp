#include "server/metrics.hpp"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace lockstep::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

const prometheus::Histogram::BucketBoundaries kLatency = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                                          0.5,   1,      2.5,   5,    10,    30,   60,  300};

/// Families of plain numbers, built anew for every scrape.
class Families {
 public:
  void gauge(const std::string& name, const std::string& help, double value) {
    add(name, help, MetricType::Gauge, {}, value);
  }
  void counter(const std::string& name, const std::string& help, double value) {
    add(name, help, MetricType::Counter, {}, value);
  }
  /// Several values of one family, told apart by a label.
  void labelled(const std::string& name, const std::string& help, MetricType type, const std::string& label,
                const std::vector<std::pair<std::string, double>>& values) {
    for (const auto& [word, value] : values) add(name, help, type, {{label, word}}, value);
  }
  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  void add(const std::string& name, const std::string& help, MetricType type, const prometheus::Labels& labels,
           double value) {
    if (families_.empty() || families_.back().name != name) families_.push_back({name, help, type, {}});
    ClientMetric metric;
    for (const auto& [key, word] : labels) metric.label.push_back({key, word});
    if (type == MetricType::Gauge) {
      metric.gauge.value = value;
    } else {
      metric.counter.value = value;
    }
    families_.back().metric.push_back(std::move(metric));
  }

  std::vector<MetricFamily> families_;
};

template <class Number>
double real(Number value) {
  return static_cast<double>(value);
}

template <class Array>
std::vector<std::pair<std::string, double>> by_depth(const Array& values) {
  std::vector<std::pair<std::string, double>> out;
  for (std::size_t i = 0; i < values.size(); ++i) out.emplace_back(std::to_string(i + 1), real(values[i]));
  return out;
}

void add_engine(const engine::Statistics& s, Families& out) {
  out.labelled("lockstep_choices", "Choices by what they are doing", MetricType::Gauge, "state",
               {{"queued", real(s.queued)},
                {"prefilling", real(s.prefilling)},
                {"decoding", real(s.decoding)},
                {"paused", real(s.paused)}});
  out.labelled("lockstep_choices_total", "Choices by how they went", MetricType::Counter, "outcome",
               {{"accepted", real(s.accepted)},
                {"refused", real(s.refused)},
                {"finished", real(s.finished)},
                {"failed", real(s.failed)},
                {"cancelled", real(s.cancelled)}});
  out.labelled("lockstep_tokens_total", "Tokens", MetricType::Counter, "kind",
               {{"prompt", real(s.prompt_tokens)},
                {"cached", real(s.cached_tokens)},
                {"emitted", real(s.tokens)},
                {"recomputed", real(s.recomputed_tokens)}});
  out.counter("lockstep_steps_total", "Forward passes", real(s.steps));
  out.counter("lockstep_step_rows_total", "Rows of all forward passes", real(s.step_rows));
  out.counter("lockstep_mixed_steps_total", "Forward passes with rows of several choices", real(s.mixed_steps));
  out.counter("lockstep_busy_seconds_total", "Time inside forward passes", s.busy_seconds);
  out.gauge("lockstep_longest_step_seconds", "The longest forward pass", s.longest_step_seconds);
  out.labelled("lockstep_drafted_tokens_total", "Drafted tokens by depth", MetricType::Counter, "depth",
               by_depth(s.drafted));
  out.labelled("lockstep_accepted_tokens_total", "Accepted drafts by depth", MetricType::Counter, "depth",
               by_depth(s.accepted_drafts));
  out.labelled("lockstep_ple_rows_total", "Rows of the n-gram table", MetricType::Counter, "result",
               {{"hit", real(s.ple_hits)}, {"miss", real(s.ple_misses)}});
  out.gauge("lockstep_memory_plan_bytes", "Memory for states that the plan allows", real(s.memory_plan_bytes));
  out.gauge("lockstep_memory_reserved_bytes", "Memory promised to running choices", real(s.reserved_bytes));
  out.gauge("lockstep_draining", "1 when no new requests are taken", s.draining ? 1 : 0);
  out.gauge("lockstep_poisoned", "1 when the model has failed for good", s.poisoned.empty() ? 0 : 1);
}

void add_bank(const engine::BankStatistics& bank, Families& out) {
  out.gauge("lockstep_bank_states", "States in memory", real(bank.states));
  out.gauge("lockstep_bank_memory_bytes", "Memory of these states", real(bank.memory_bytes));
  out.gauge("lockstep_bank_files", "States on disk", real(bank.files));
  out.gauge("lockstep_bank_disk_bytes", "Size of these files", real(bank.disk_bytes));
  out.labelled("lockstep_bank_lookups_total", "Prompts looked up in the prefix bank", MetricType::Counter, "result",
               {{"hit", real(bank.hits)}, {"miss", real(bank.lookups - bank.hits)}});
  out.counter("lockstep_bank_disk_hits_total", "Hits that came from disk", real(bank.disk_hits));
  out.labelled("lockstep_bank_events_total", "What happened to states", MetricType::Counter, "event",
               {{"stored", real(bank.stored)},
                {"evicted", real(bank.evicted)},
                {"written", real(bank.files_written)},
                {"skipped", real(bank.files_skipped)},
                {"removed", real(bank.files_removed)},
                {"damaged", real(bank.files_damaged)}});
}

/// Memory of this process that is not swapped out or dropped; 0 where the system does not tell.
double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t size = 0;
  std::uint64_t resident = 0;
  return file >> size >> resident ? real(resident) * real(::sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace

struct Metrics::State {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& responses =
      prometheus::BuildCounter().Name("lockstep_http_responses_total").Help("Responses").Register(registry);
  prometheus::Family<prometheus::Histogram>& seconds = prometheus::BuildHistogram()
                                                           .Name("lockstep_http_seconds")
                                                           .Help("Time from request to end of response")
                                                           .Register(registry);
  prometheus::Histogram& first = prometheus::BuildHistogram()
                                     .Name("lockstep_first_token_seconds")
                                     .Help("Time to the first token")
                                     .Register(registry)
                                     .Add({}, kLatency);
  prometheus::Histogram& gap = prometheus::BuildHistogram()
                                   .Name("lockstep_token_gap_seconds")
                                   .Help("Time between the tokens of an answer")
                                   .Register(registry)
                                   .Add({}, kLatency);
};

Metrics::Metrics() : state_(std::make_unique<State>()) {}
Metrics::~Metrics() = default;

void Metrics::http_response(std::string_view route, int status, double seconds) {
  const std::string name(route);
  state_->responses.Add({{"route", name}, {"status", std::to_string(status)}}).Increment();
  state_->seconds.Add({{"route", name}}, kLatency).Observe(seconds);
}

void Metrics::first_token(double seconds) {
  state_->first.Observe(seconds);
}

void Metrics::token_gap(double seconds) {
  state_->gap.Observe(seconds);
}

std::string Metrics::text(const engine::Statistics* statistics, std::size_t connections,
                          const std::vector<DiskFault>& faults) const {
  std::vector<MetricFamily> families = state_->registry.Collect();
  Families now;
  now.gauge("lockstep_http_connections", "Open connections", real(connections));
  now.gauge("lockstep_resident_memory_bytes", "Memory of the process, weights included", resident_bytes());
  std::vector<std::pair<std::string, double>> errors;
  errors.reserve(faults.size());
  for (const DiskFault& fault : faults) errors.emplace_back(fault.part, real(fault.count));
  now.labelled("lockstep_disk_errors_total", "Files and lines that could not be written or read", MetricType::Counter,
               "part", errors);
  if (statistics != nullptr) {
    add_engine(*statistics, now);
    add_bank(statistics->bank, now);
  }
  for (MetricFamily& family : now.take()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace lockstep::server
