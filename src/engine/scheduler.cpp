#include "engine/scheduler.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "backend/ngram/ngram_store.hpp"

namespace lockstep::engine {
namespace {

/// How long the model thread waits for a full sink that has room again and nobody says so.
constexpr auto kPausedWait = std::chrono::milliseconds(50);

/// Divides the table rows of a step among its choices by the rows that each of them ran. Every row of a pass looks up
/// as many; who of them found one in memory first is not known. The shares add up to the whole.
void share_table_rows(std::uint64_t hits, std::uint64_t misses, std::span<const Part> parts,
                      std::span<Job* const> members) {
  std::uint64_t all = 0;
  for (const Part& part : parts) all += static_cast<std::uint64_t>(part.rows);
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < parts.size() && all > 0; ++i) {
    const std::uint64_t after = before + static_cast<std::uint64_t>(parts[i].rows);
    members[i]->ple_hits += hits * after / all - hits * before / all;
    members[i]->ple_misses += misses * after / all - misses * before / all;
    before = after;
  }
}

}  // namespace

Scheduler::Scheduler(const model::Model& model, Options options, Limits limits, MemoryPlan plan, Bank bank,
                     Stepper stepper)
    : model_(model),
      options_(std::move(options)),
      limits_(limits),
      plan_(plan),
      drafts_(options_.depth > 0),
      bank_(std::move(bank)),
      stepper_(std::move(stepper)) {
  publish();
}

Scheduler::~Scheduler() {
  stop();
}

Status Scheduler::start() {
  try {
    thread_ = std::thread([this] { loop(); });
  } catch (const std::system_error& error) {
    return fail(ErrorKind::Limit, "the model thread cannot be started: {}", error.what());
  }
  return {};
}

void Scheduler::cancel(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  if (pending_ == 0) return;
  cancels_.insert(ticket);
  wake_.notify_all();
}

void Scheduler::wake() {
  const std::lock_guard lock(mutex_);
  woken_ = true;
  wake_.notify_all();
}

void Scheduler::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

bool Scheduler::wait_idle(double seconds) {
  std::unique_lock lock(mutex_);
  return idle_.wait_for(lock, std::chrono::duration<double>(std::clamp(seconds, 0.0, 1e9)),
                        [&] { return pending_ == 0; });
}

void Scheduler::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_all();
  }
  const std::lock_guard lock(join_mutex_);
  if (thread_.joinable()) thread_.join();
}

Statistics Scheduler::stats() const {
  const std::lock_guard lock(mutex_);
  Statistics copy = published_;
  copy.queued = queued_;
  copy.running = pending_ - queued_;
  copy.draining = draining_ || stopping_;
  copy.poisoned = poisoned_;
  copy.accepted = accepted_;
  copy.refused = refused_;
  return copy;
}

void Scheduler::loop() {
  while (take_messages()) {
    admit();
    step();
    sweep();
    publish();
  }
  end_cancelled({}, true);
  sweep();
  bank_.flush();
  publish();
}

bool Scheduler::take_messages() {
  std::unordered_set<Ticket> cancels;
  bool stop = false;
  {
    std::unique_lock lock(mutex_);
    const auto message = [&] { return stopping_ || woken_ || !incoming_.empty() || !cancels_.empty(); };
    if (idle_step_ && running_.empty()) wake_.wait(lock, message);
    if (idle_step_ && !running_.empty()) wake_.wait_for(lock, kPausedWait, message);
    for (; !incoming_.empty(); incoming_.pop_front()) queue_.push_back(std::move(incoming_.front()));
    cancels.swap(cancels_);
    woken_ = false;
    stop = stopping_;
  }
  if (!cancels.empty()) end_cancelled(cancels, false);
  return !stop;
}

void Scheduler::end_cancelled(const std::unordered_set<Ticket>& tickets, bool all) {
  const Error error{ErrorKind::Cancelled, all ? "the engine was stopped" : "cancelled"};
  for (Jobs* jobs : {&queue_, &running_}) {
    for (const auto& job : *jobs) {
      if (!job->ended && (all || tickets.contains(job->group->ticket))) fail_job(*job, error);
    }
  }
  sweep();
}

void Scheduler::sweep() {
  const auto ended = [](const std::unique_ptr<Job>& job) { return job->ended; };
  queue_.remove_if(ended);
  running_.remove_if(ended);
}

std::vector<Job*> Scheduler::step_members() {
  std::vector<Job*> members;
  bool changed = false;
  for (const auto& job : running_) {
    if (job->ended) continue;
    const bool before = std::exchange(job->paused, !job->group->sink->writable());
    changed = changed || before != job->paused;
    // Choices whose sinks have room again may be more than run at a time: the oldest go first.
    if (!job->paused && static_cast<std::int64_t>(members.size()) < options_.parallel) members.push_back(job.get());
  }
  idle_step_ = members.empty() && !changed;  // a choice that has just been paused leaves its place to another
  return members;
}

void Scheduler::plan_rows(std::vector<Job*>& members, std::vector<Part>& parts) {
  const auto prefills = [](const Job* job) { return job->generation->in_prompt(); };
  const auto prefilling = std::count_if(members.begin(), members.end(), prefills);
  const auto decoding = static_cast<std::int64_t>(members.size()) - prefilling;
  std::int64_t left = decoding > 0 ? options_.mixed_chunk : options_.prefill_chunk;
  std::int64_t sharers = prefilling;
  // Decoding choices are all in. The prompts share the chunk; who is first changes from step to step.
  std::stable_partition(members.begin(), members.end(), [&](const Job* job) { return !prefills(job); });
  const auto prompts = members.begin() + decoding;
  if (prefilling > 1) {
    std::rotate(prompts, prompts + static_cast<std::ptrdiff_t>(turn_++ % static_cast<std::uint64_t>(prefilling)),
                members.end());
  }
  for (Job* job : members) {
    decode::Generation& generation = *job->generation;
    Part part{&generation};
    if (prefills(job)) {
      part.most_rows = (left + sharers - 1) / sharers;
      if (!job->captures.empty()) {
        part.most_rows = std::min(part.most_rows, job->captures.front() - generation.prompt_done());
      }
      const auto prompt = static_cast<std::int64_t>(generation.request().prompt.size());
      part.most_rows = std::min(part.most_rows, prompt - generation.prompt_done());
      left -= part.most_rows;
      --sharers;
    } else if (generation.request().sampler.acceptance == decode::AcceptanceRule::Stream) {
      // In rejection mode the number of drafts decides which random numbers a token uses.
      generation.set_depth(decoding > options_.busy_above ? options_.busy_depth : options_.depth);
    }
    parts.push_back(part);
  }
  // A chunk smaller than the number of prompts leaves some without rows.
  while (!parts.empty() && parts.back().most_rows == 0) {
    parts.pop_back();
    members.pop_back();
  }
}

void Scheduler::step() {
  std::vector<Job*> members = step_members();
  if (members.empty()) return;
  std::vector<Part> parts;
  plan_rows(members, parts);
  std::uint64_t prompt_rows = 0;
  const backend::NgramStore* store = model_.backend().ngram_store();
  const backend::NgramCounters before = store != nullptr ? store->counters() : backend::NgramCounters{};
  const auto prompts = std::count_if(members.begin(), members.end(), [](Job* j) { return j->generation->in_prompt(); });
  const Clock::time_point begin = Clock::now();
  stepper_.run(parts);
  const double seconds = seconds_between(begin, Clock::now());
  const backend::NgramCounters after = store != nullptr ? store->counters() : backend::NgramCounters{};
  counts_.ple_hits += after.hits - before.hits;
  counts_.ple_misses += after.misses - before.misses;
  share_table_rows(after.hits - before.hits, after.misses - before.misses, parts, members);
  std::uint64_t rows = 0;
  for (std::size_t i = 0; i < members.size(); ++i) {
    rows += static_cast<std::uint64_t>(parts[i].rows);
    // The prompts are the last members.
    if (i + static_cast<std::size_t>(prompts) >= members.size())
      prompt_rows += static_cast<std::uint64_t>(parts[i].rows);
  }
  if (rows > 0) ++counts_.steps;
  counts_.step_rows += rows;
  counts_.prompt_tokens += prompt_rows;
  if (std::count_if(parts.begin(), parts.end(), [](const Part& part) { return part.rows > 0; }) > 1) {
    ++counts_.mixed_steps;
  }
  counts_.busy_seconds += seconds;
  counts_.longest_step_seconds = std::max(counts_.longest_step_seconds, seconds);
  settle(parts, members);
}

void Scheduler::publish() {
  Statistics now = counts_;
  for (const auto& job : running_) {
    if (job->ended || !job->generation) continue;
    ++(job->paused ? now.paused : job->generation->in_prompt() ? now.prefilling : now.decoding);
  }
  now.memory_plan_bytes = plan_.total();
  now.reserved_bytes = reserved_;
  now.device = model_.backend().describe();
  bank_.report(now.bank);
  const std::lock_guard lock(mutex_);
  published_ = std::move(now);
  // Whoever sees a choice gone sees it counted.
  pending_ -= std::exchange(ended_, 0);
  queued_ -= std::exchange(ended_queued_, 0);
  if (pending_ == 0) idle_.notify_all();
}

}  // namespace lockstep::engine
