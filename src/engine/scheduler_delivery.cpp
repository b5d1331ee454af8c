// After a step: progress, states for the bank, tokens for the sinks, and the end of choices.
#include <algorithm>

#include "decode/lanes.hpp"
#include "engine/scheduler.hpp"

namespace lockstep::engine {
namespace {

/// Weight of the newest choice in the mean time of a choice.
constexpr double kNewest = 0.2;

}  // namespace

void Scheduler::settle(std::span<Part> parts, std::span<Job* const> members) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (parts[i].status) prompt_progress(*members[i]);
  }
  stepper_.first(parts);
  const auto failed = std::ranges::find_if(parts, [](const Part& part) { return !part.status; });
  // Before anyone hears of a failure: who then asks, or sends the next request, is told the truth.
  const bool poisoned = failed != parts.end() && note_poison();
  for (std::size_t i = 0; i < members.size(); ++i) {
    Job& job = *members[i];
    // Tokens that were drawn before something failed are part of the answer.
    deliver(job);
    if (!parts[i].status) {
      fail_job(job, parts[i].status.error());
    } else if (job.enough || job.generation->need() == decode::Generation::Need::Nothing) {
      finish(job);
    }
  }
  if (poisoned) fail_the_rest(failed->status.error());
}

void Scheduler::prompt_progress(Job& job) {
  if (!job.leader || job.prompt_has_run()) return;
  Group& group = *job.group;
  const decode::Generation& generation = *job.generation;
  if (group.prompt_logprobs) {
    const auto told = [&](std::size_t position) {
      PromptToken token{static_cast<std::int64_t>(position), generation.request().prompt[position], position > 0, {}};
      if (position > 0) token.logprobs = generation.prompt_logprobs()[position - 1];
      group.sink->on_prompt_token(token);
    };
    for (; group.prompt_tokens_told <= generation.prompt_logprobs().size(); ++group.prompt_tokens_told) {
      told(group.prompt_tokens_told);
    }
  }
  if (generation.prompt_done() > job.prompt_told) {
    job.prompt_told = generation.prompt_done();
    group.sink->on_prefill(job.prompt_told, generation.stats().prompt_tokens);
  }
  if (!job.captures.empty() && job.captures.front() == generation.prompt_done()) {
    job.captures.erase(job.captures.begin());
    keep_prompt(job, false);
  }
  if (!generation.in_prompt()) prompt_end(job);
}

void Scheduler::prompt_end(Job& job) {
  Group& group = *job.group;
  job.prompt_end = Clock::now();
  keep_prompt(job, true);
  group.prompt = Group::Prompt::Done;
  if (group.waiting > 0) {
    auto state = job.generation->checkpoint();
    if (state) {
      group.state = *std::move(state);
      return;
    }
    group.prompt = Group::Prompt::Waiting;  // no memory for a copy: the next choice runs the prompt again
  }
  drop_state(group);
}

void Scheduler::keep_prompt(Job& job, bool durable) {
  const decode::Generation& generation = *job.generation;
  if (job.group->bypass_bank || !generation.at_rest()) return;
  const bool logits = !generation.in_prompt();
  if (!bank_.wants(generation.sequence().tokens(), logits)) return;
  // Without memory for a copy the bank simply does not have this state.
  if (auto state = generation.checkpoint()) bank_.put(*std::move(state), durable);
}

void Scheduler::deliver(Job& job) {
  decode::Generation& generation = *job.generation;
  const auto emitted = generation.emitted();
  for (std::size_t i = 0; i < emitted.size() && !job.enough; ++i) {
    if (!job.has_first_token()) job.first_token = Clock::now();
    Token token{emitted[i].id, emitted[i].probability, generation.request().logprobs, {}};
    if (token.has_logprobs) token.logprobs = generation.logprobs()[i];
    ++job.delivered;
    ++counts_.tokens;
    job.enough = job.group->sink->on_token(job.choice, token) == Sink::Flow::Finish;
  }
  generation.clear_emitted();
}

/// By the counters of the lanes' own code. The backend's are of steps, which other choices share.
std::vector<std::string> Scheduler::lanes_that_ran(const Job& job) const {
  decode::DecodeStats stats = job.generation->stats();
  stats.backend = model_.backend().lane_counters() - job.lanes_before;
  std::vector<std::string> names;
  for (const decode::LaneInfo& lane : decode::known_lanes()) {
    if (lane.ran(model_, stats).engaged > 0) names.emplace_back(lane.name);
  }
  return names;
}

void Scheduler::finish(Job& job) {
  decode::Generation& generation = *job.generation;
  const decode::DecodeStats& stats = generation.stats();
  const Clock::time_point now = Clock::now();
  Summary summary;
  summary.reason = generation.finish() == decode::Finish::Stop ? FinishReason::Stop : FinishReason::Length;
  if (job.enough) summary.reason = FinishReason::Sink;
  summary.seed = generation.request().sampler.seed;
  summary.prompt_tokens = stats.prompt_tokens;
  summary.cached_tokens = job.cached;
  summary.prefill_tokens = job.leader ? stats.prompt_tokens - job.cached : 0;
  summary.tokens = job.delivered;
  summary.steps = stats.steps;
  summary.drafted = stats.drafted;
  summary.accepted = stats.accepted;
  summary.queued_seconds = seconds_between(job.group->submitted, job.started);
  summary.prefill_seconds = seconds_between(job.started, job.prompt_end);
  summary.decode_seconds = seconds_between(job.prompt_end, now);
  if (job.has_first_token()) summary.first_token_seconds = seconds_between(job.group->submitted, job.first_token);
  summary.ple_hits = job.ple_hits;
  summary.ple_misses = job.ple_misses;
  summary.lanes = lanes_that_ran(job);
  if (!job.group->bypass_bank && generation.at_rest() && stats.tokens > 0 &&
      bank_.wants(generation.sequence().tokens(), false)) {
    if (auto state = generation.take()) bank_.put(*std::move(state), true);
  }
  ++counts_.finished;
  {
    const std::lock_guard lock(mutex_);
    const double seconds = seconds_between(job.started, now);
    mean_seconds_ = counts_.finished == 1 ? seconds : mean_seconds_ + kNewest * (seconds - mean_seconds_);
  }
  job.group->sink->on_finish(job.choice, summary);
  leave(job);
}

void Scheduler::fail_job(Job& job, const Error& error) {
  ++(error.kind == ErrorKind::Cancelled ? counts_.cancelled : counts_.failed);
  job.group->sink->on_error(job.choice, error);
  leave(job);
}

void Scheduler::leave(Job& job) {
  Group& group = *job.group;
  job.ended = true;
  if (job.generation) {
    const decode::DecodeStats& stats = job.generation->stats();
    counts_.recomputed_tokens += static_cast<std::uint64_t>(stats.recomputed_tokens);
    counts_.device_rows += static_cast<std::uint64_t>(stats.device_rows);
    counts_.host_rows += static_cast<std::uint64_t>(stats.host_rows);
    for (std::size_t i = 0; i < stats.drafted.size(); ++i) {
      counts_.drafted[i] += static_cast<std::uint64_t>(stats.drafted[i]);
      counts_.accepted_drafts[i] += static_cast<std::uint64_t>(stats.accepted[i]);
    }
    stepper_.forget(*job.generation);
    job.generation.reset();
  }
  if (job.admitted) {
    release(job.bytes);
  } else {
    --group.waiting;
  }
  if (job.leader && group.prompt == Group::Prompt::Running) {
    group.prompt = Group::Prompt::Waiting;  // the next choice runs it
    drop_state(group);
  }
  if (group.waiting == 0) drop_state(group);
  ++ended_;
  if (!job.admitted) ++ended_queued_;
}

void Scheduler::drop_state(Group& group) {
  group.state.reset();
  if (!group.reserved) return;
  group.reserved = false;
  release(group.kept_bytes);
}

/// Whether the model has failed for good; the first error stays.
bool Scheduler::note_poison() {
  const Status status = model_.status();
  if (status) return false;
  const std::lock_guard lock(mutex_);
  if (poisoned_.empty()) poisoned_ = status.error().message;
  return true;
}

void Scheduler::fail_the_rest(const Error& error) {
  for (Jobs* jobs : {&running_, &queue_}) {
    for (const auto& job : *jobs) {
      if (!job->ended) fail_job(*job, error);
    }
  }
}

}  // namespace lockstep::engine
