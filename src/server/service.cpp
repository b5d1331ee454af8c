#include "server/service.hpp"

#include "server/generation.hpp"

namespace lockstep::server {
namespace {

OrderedJson bank_json(const engine::BankStatistics& bank) {
  OrderedJson out;
  out["states"] = bank.states;
  out["memory_bytes"] = bank.memory_bytes;
  out["files"] = bank.files;
  out["disk_bytes"] = bank.disk_bytes;
  out["lookups"] = bank.lookups;
  out["hits"] = bank.hits;
  out["disk_hits"] = bank.disk_hits;
  out["tokens_reused"] = bank.tokens_reused;
  out["stored"] = bank.stored;
  out["evicted"] = bank.evicted;
  out["files_written"] = bank.files_written;
  out["files_skipped"] = bank.files_skipped;
  out["files_removed"] = bank.files_removed;
  out["files_damaged"] = bank.files_damaged;
  out["files_failed"] = bank.files_failed;
  out["last_disk_error"] = bank.last_disk_error;
  return out;
}

OrderedJson engine_json(const engine::Statistics& s) {
  OrderedJson out;
  out["queued"] = s.queued;
  out["running"] = s.running;
  out["prefilling"] = s.prefilling;
  out["decoding"] = s.decoding;
  out["paused"] = s.paused;
  out["draining"] = s.draining;
  out["poisoned"] = s.poisoned.empty() ? OrderedJson() : OrderedJson(s.poisoned);
  out["choices"] = {{"accepted", s.accepted},
                    {"refused", s.refused},
                    {"finished", s.finished},
                    {"failed", s.failed},
                    {"cancelled", s.cancelled}};
  out["steps"] = s.steps;
  out["step_rows"] = s.step_rows;
  out["mixed_steps"] = s.mixed_steps;
  out["prompt_tokens"] = s.prompt_tokens;
  out["cached_tokens"] = s.cached_tokens;
  out["tokens"] = s.tokens;
  out["recomputed_tokens"] = s.recomputed_tokens;
  out["device_rows"] = s.device_rows;
  out["host_rows"] = s.host_rows;
  out["ple_hits"] = s.ple_hits;
  out["ple_misses"] = s.ple_misses;
  out["drafted"] = s.drafted;
  out["accepted_drafts"] = s.accepted_drafts;
  out["busy_seconds"] = s.busy_seconds;
  out["longest_step_seconds"] = s.longest_step_seconds;
  out["memory_plan_bytes"] = s.memory_plan_bytes;
  out["reserved_bytes"] = s.reserved_bytes;
  out["device"] = s.device;
  out["bank"] = bank_json(s.bank);
  return out;
}

OrderedJson limits_json(const engine::Limits& limits) {
  OrderedJson out;
  out["context"] = limits.context;
  out["plan_tokens"] = limits.plan_tokens;
  out["parallel"] = limits.parallel;
  out["queue"] = limits.queue;
  out["max_choices"] = limits.max_choices;
  out["default_max_tokens"] = limits.default_max_tokens;
  out["vocabulary"] = limits.vocab;
  out["memory_bytes"] = limits.memory_bytes;
  out["bytes_per_choice"] = limits.bytes_per_choice;
  out["bytes_per_token"] = limits.bytes_per_token;
  return out;
}

}  // namespace

void Service::set_model(std::shared_ptr<const ModelContext> model) {
  {
    const std::lock_guard lock(mutex_);
    model_ = std::move(model);
  }
  if (draining_.load()) drain();
}

std::shared_ptr<const ModelContext> Service::model() const {
  const std::lock_guard lock(mutex_);
  return model_;
}

void Service::drain() {
  draining_.store(true);
  if (const auto loaded = model()) loaded->engine->drain();
}

void Service::add(const std::string& id, const std::shared_ptr<Generation>& generation) {
  const std::lock_guard lock(mutex_);
  generations_[id] = generation;
}

void Service::remove(const std::string& id) {
  const std::lock_guard lock(mutex_);
  generations_.erase(id);
}

std::shared_ptr<Generation> Service::find(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = generations_.find(id);
  return found == generations_.end() ? nullptr : found->second.lock();
}

void Service::count_lanes(const std::vector<std::string>& lanes) {
  const std::lock_guard lock(mutex_);
  for (const std::string& lane : lanes) ++lane_counts_[lane];
}

std::vector<DiskFault> Service::disk_faults() const {
  DiskFault bank{"bank", 0, {}};
  if (const auto loaded = model()) {
    const engine::BankStatistics statistics = loaded->engine->stats().bank;
    bank.count = statistics.files_failed + statistics.files_damaged;
    bank.last = statistics.last_disk_error;
  }
  DiskFault log{"access_log", 0, {}};
  if (log_) {
    log.count = log_->errors();
    log.last = log_->last_error();
  }
  return {bank, log};
}

std::pair<OrderedJson, bool> Service::health() const {
  const std::shared_ptr<const ModelContext> loaded = model();
  OrderedJson out;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  if (!loaded) {
    out["status"] = draining() ? "draining" : "loading";
    out["loading"] = {{"phase", progress_.phase.load()},
                      {"step", progress_.step.load()},
                      {"steps", progress_.steps.load()},
                      {"bytes", progress_.bytes.load()},
                      {"total_bytes", progress_.total_bytes.load()},
                      {"seconds", seconds}};
    return {out, false};
  }
  const engine::Statistics statistics = loaded->engine->stats();
  const bool poisoned = !statistics.poisoned.empty();
  out["status"] = poisoned ? "poisoned" : draining() ? "draining" : "ok";
  if (poisoned) out["error"] = statistics.poisoned;
  out["model"] = loaded->identity;
  out["device"] = loaded->device;
  out["lanes"] = OrderedJson::array();
  {
    const std::lock_guard lock(mutex_);
    for (const LaneReport& lane : loaded->lanes) {
      const auto ran = lane_counts_.find(lane.name);
      const bool failed = poisoned && lane.can_fail && lane.verdict == "armed";
      out["lanes"].push_back({{"name", lane.name},
                              {"verdict", failed ? "poisoned (" + statistics.poisoned + ")" : lane.verdict},
                              {"engaged", ran == lane_counts_.end() ? std::uint64_t{0} : ran->second}});
    }
  }
  out["queued"] = statistics.queued;
  out["running"] = statistics.running;
  out["uptime_seconds"] = seconds;
  for (const DiskFault& fault : disk_faults()) {
    if (fault.count > 0) out["disk_errors"][fault.part] = {{"count", fault.count}, {"last", fault.last}};
  }
  return {out, !poisoned && !draining()};
}

OrderedJson Service::stats() const {
  auto [out, ready] = health();
  if (const auto loaded = model()) {
    out["engine"] = engine_json(loaded->engine->stats());
    out["limits"] = limits_json(loaded->engine->limits());
  }
  return out;
}

}  // namespace lockstep::server
