// Admission: who leaves the queue, and what it starts from.
#include <algorithm>
#include <tuple>

#include "engine/scheduler.hpp"

namespace lockstep::engine {

void Scheduler::admit() {
  // A paused choice keeps its memory but not its place: readers that stand still must not stop the others.
  const auto takes_place = [](const std::unique_ptr<Job>& job) { return !job->paused && !job->ended; };
  while (std::count_if(running_.begin(), running_.end(), takes_place) < options_.parallel) {
    const auto next = next_in_queue();
    if (next == queue_.end()) return;
    Job& job = **next;
    Group& group = *job.group;
    const std::uint64_t bytes = job.bytes + (group.prompt == Group::Prompt::Waiting ? group.kept_bytes : 0);
    // Nobody overtakes a choice that waits for memory: it would wait for ever.
    if (!make_room(bytes)) return;
    running_.splice(running_.end(), queue_, next);
    reserve(job.bytes);
    job.admitted = true;
    {
      const std::lock_guard lock(mutex_);
      --queued_;
    }
    const Status begun = begin(job);
    if (!begun) fail_job(job, begun.error());
  }
}

Scheduler::Jobs::iterator Scheduler::next_in_queue() {
  // Choices whose prompt has run come first: what they wait with is memory that others wait for.
  const auto rank = [](const Job& job) {
    const std::int64_t ready = job.group->prompt == Group::Prompt::Done ? 1 : 0;
    return std::tuple(-ready, -static_cast<std::int64_t>(job.group->priority), job.order);
  };
  auto best = queue_.end();
  for (auto it = queue_.begin(); it != queue_.end(); ++it) {
    if ((*it)->group->prompt == Group::Prompt::Running) continue;  // waits for its leader's prompt
    if (best == queue_.end() || rank(**it) < rank(**best)) best = it;
  }
  return best;
}

bool Scheduler::make_room(std::uint64_t bytes) {
  if (reserved_ + bytes > plan_.total()) return false;  // running choices end some time
  bank_.limit(std::min(options_.bank.memory_bytes, plan_.total() - reserved_ - bytes));
  return true;
}

void Scheduler::reserve(std::uint64_t bytes) {
  reserved_ += bytes;
  bank_.limit(std::min(options_.bank.memory_bytes, plan_.total() - reserved_));
}

void Scheduler::release(std::uint64_t bytes) {
  reserved_ -= bytes;
  bank_.limit(std::min(options_.bank.memory_bytes, plan_.total() - reserved_));
}

Status Scheduler::begin(Job& job) {
  Group& group = *job.group;
  --group.waiting;
  job.started = Clock::now();
  job.lanes_before = model_.backend().lane_counters();
  if (group.prompt == Group::Prompt::Waiting) return begin_prompt(job);
  // Another choice has run the prompt.
  job.cached = group.start ? group.start->cached_tokens : 0;
  job.prompt_end = job.started;
  job.request.prompt_logprobs = false;
  decode::Checkpoint state = group.waiting > 0 ? LOCKSTEP_TRY(group.state->fork(model_)) : std::move(*group.state);
  if (group.waiting == 0) drop_state(group);
  job.generation = LOCKSTEP_TRY(make_generation(std::move(job.request), std::move(state)));
  return {};
}

Status Scheduler::begin_prompt(Job& job) {
  Group& group = *job.group;
  group.prompt = Group::Prompt::Running;
  job.leader = true;
  reserve(group.kept_bytes);
  group.reserved = true;
  Bank::Found found;
  found.miss = Miss::Bypass;
  if (!group.bypass_bank) found = bank_.find(job.request.prompt);
  // What the bank gave shares pages with it and is paid for by this choice from now on.
  Start start;
  start.prompt_tokens = static_cast<std::int64_t>(job.request.prompt.size());
  start.cached_tokens = found.prefix ? found.prefix->sequence.length() : 0;
  start.common_tokens = found.common;
  start.miss = found.miss;
  start.from_disk = found.from_disk;
  start.queued_seconds = seconds_between(group.submitted, job.started);
  job.cached = start.cached_tokens;
  counts_.cached_tokens += static_cast<std::uint64_t>(start.cached_tokens);
  job.generation = LOCKSTEP_TRY(make_generation(std::move(job.request), std::move(found.prefix)));
  set_captures(job);
  if (!group.start) {
    group.start = start;
    group.sink->on_start(start);
  }
  return {};
}

Result<std::unique_ptr<decode::Generation>> Scheduler::make_generation(decode::DecodeRequest request,
                                                                       std::optional<decode::Checkpoint> prefix) const {
  if (!drafts_) return decode::make_plain_generation(model_, std::move(request), std::move(prefix));
  decode::SpeculativeOptions speculative;
  speculative.depth = options_.depth;
  speculative.capture = options_.capture;
  return decode::make_speculative_generation(model_, std::move(speculative), std::move(request), std::move(prefix));
}

void Scheduler::set_captures(Job& job) const {
  const Group& group = *job.group;
  if (!options_.bank.enabled || group.bypass_bank) return;
  const std::int64_t from = job.cached;
  const auto size = static_cast<std::int64_t>(job.generation->request().prompt.size());
  const std::size_t boundaries = std::min(group.boundaries.size(), static_cast<std::size_t>(options_.bank.boundaries));
  job.captures.assign(group.boundaries.end() - static_cast<std::ptrdiff_t>(boundaries), group.boundaries.end());
  if (options_.bank.interval > 0) {
    const std::int64_t interval = options_.bank.interval;
    for (std::int64_t at = (from / interval + 1) * interval; at < size; at += interval) job.captures.push_back(at);
  }
  std::sort(job.captures.begin(), job.captures.end());
  job.captures.erase(std::unique(job.captures.begin(), job.captures.end()), job.captures.end());
  // The end of the prompt is kept anyway, with its logits.
  std::erase_if(job.captures, [&](std::int64_t at) { return at <= from || at >= size; });
}

}  // namespace lockstep::engine
