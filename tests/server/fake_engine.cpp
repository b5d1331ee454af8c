#include "server/fake_engine.hpp"

#include <chrono>

namespace lockstep::test {

FakeEngine::FakeEngine(const text::Tokenizer& tokenizer, std::string answer, bool endless)
    : answer_(*tokenizer.encode(answer)), endless_(endless) {
  limits_.context = 32768;
  limits_.plan_tokens = 32768;
  limits_.parallel = 1;
  limits_.queue = 64;
  limits_.max_choices = 8;
  limits_.default_max_tokens = 16384;
  limits_.vocab = tokenizer.vocabulary_size();
  thread_ = std::thread([this] { loop(); });
}

FakeEngine::~FakeEngine() {
  FakeEngine::stop();
}

tl::expected<engine::Ticket, engine::Refusal> FakeEngine::submit(engine::Request request,
                                                                 std::shared_ptr<engine::Sink> sink) {
  const std::lock_guard lock(mutex_);
  if (refusal_) return tl::unexpected(*refusal_);
  if (draining_) {
    return tl::unexpected(engine::Refusal{engine::RefusalReason::Draining, "the server is about to end", 0, 0, 2});
  }
  last_ = request;
  queue_.push_back({next_, std::move(request), std::move(sink)});
  changed_.notify_all();
  return next_++;
}

void FakeEngine::cancel(engine::Ticket ticket) {
  const std::lock_guard lock(mutex_);
  cancels_.insert(ticket);
  changed_.notify_all();
}

void FakeEngine::wake() {
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
}

void FakeEngine::drain() {
  const std::lock_guard lock(mutex_);
  draining_ = true;
}

bool FakeEngine::wait_idle(double seconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return queue_.empty() && !busy_; });
}

void FakeEngine::stop() {
  {
    const std::lock_guard lock(mutex_);
    draining_ = stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

engine::Statistics FakeEngine::stats() const {
  const std::lock_guard lock(mutex_);
  engine::Statistics out;
  out.queued = static_cast<std::int64_t>(queue_.size());
  out.running = busy_ ? 1 : 0;
  out.draining = draining_;
  out.poisoned = poisoned_;
  out.device = "fake";
  out.ple_hits = 1456;
  out.ple_misses = 12;
  out.bank.last_disk_error = disk_error_;
  out.bank.files_failed = disk_error_.empty() ? 0 : 1;
  return out;
}

void FakeEngine::hold(bool on) {
  const std::lock_guard lock(mutex_);
  held_ = on;
  changed_.notify_all();
}

void FakeEngine::refuse_with(engine::Refusal refusal) {
  const std::lock_guard lock(mutex_);
  refusal_ = std::move(refusal);
}

void FakeEngine::fail_after(std::int64_t tokens) {
  const std::lock_guard lock(mutex_);
  fail_after_ = tokens;
}

void FakeEngine::poison(std::string error) {
  const std::lock_guard lock(mutex_);
  poisoned_ = std::move(error);
}

void FakeEngine::fail_disk(std::string error) {
  const std::lock_guard lock(mutex_);
  disk_error_ = std::move(error);
}

void FakeEngine::set_queue(std::int64_t queue, std::int64_t parallel) {
  limits_.queue = queue;
  limits_.parallel = parallel;
}

engine::Request FakeEngine::last_request() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

bool FakeEngine::wait_paused() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return paused_; });
}

bool FakeEngine::is_cancelled(engine::Ticket ticket) const {
  const std::lock_guard lock(mutex_);
  return stopping_ || cancels_.contains(ticket);
}

void FakeEngine::loop() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      const auto ready = [&] {
        return stopping_ || (!queue_.empty() && (!held_ || cancels_.contains(queue_.front().ticket)));
      };
      changed_.wait(lock, ready);
      if (queue_.empty()) return;  // only when stopping
      job = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
    }
    run(job);
    job.sink.reset();
    const std::lock_guard lock(mutex_);
    busy_ = false;
    changed_.notify_all();
  }
}

void FakeEngine::run(const Job& job) {
  const auto total = static_cast<std::int64_t>(job.request.prompt.size());
  if (!is_cancelled(job.ticket)) {
    engine::Start start;
    start.prompt_tokens = total;
    start.cached_tokens = total / 2;
    job.sink->on_start(start);
    job.sink->on_prefill(total, total);
    for (std::int64_t i = 0; i < total && job.request.prompt_logprobs; ++i) {
      engine::PromptToken token;
      token.position = i;
      token.id = job.request.prompt[static_cast<std::size_t>(i)];
      token.has_logprobs = i > 0;
      token.logprobs.chosen = -0.5;
      job.sink->on_prompt_token(token);
    }
  }
  for (std::int64_t choice = 0; choice < job.request.n; ++choice) run_choice(job, choice);
}

bool FakeEngine::wait_writable(const Job& job) {
  while (!is_cancelled(job.ticket)) {
    if (job.sink->writable()) return true;
    std::unique_lock lock(mutex_);
    paused_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
  return false;
}

void FakeEngine::run_choice(const Job& job, std::int64_t choice) {
  engine::Summary summary;
  summary.prompt_tokens = static_cast<std::int64_t>(job.request.prompt.size());
  summary.cached_tokens = summary.prompt_tokens / 2;
  summary.prefill_tokens = choice == 0 ? summary.prompt_tokens - summary.cached_tokens : 0;
  summary.seed = engine::choice_seed(job.request.sampler.seed, static_cast<std::uint64_t>(choice));
  summary.lanes = {"mtp"};
  summary.first_token_seconds = 0.001;
  const std::int64_t most = job.request.max_tokens.value_or(limits_.default_max_tokens);
  std::int64_t fail_after = 0;
  {
    const std::lock_guard lock(mutex_);
    fail_after = fail_after_;
  }
  summary.reason = engine::FinishReason::Stop;
  for (std::size_t i = 0; endless_ || i < answer_.size(); ++i) {
    if (summary.tokens == most) {
      summary.reason = engine::FinishReason::Length;
      break;
    }
    if (summary.tokens == fail_after) return job.sink->on_error(choice, Error{ErrorKind::Limit, "out of memory"});
    if (!wait_writable(job)) {
      cancelled_.fetch_add(1);
      return job.sink->on_error(choice, Error{ErrorKind::Cancelled, "cancelled"});
    }
    engine::Token token;
    token.id = answer_[i % answer_.size()];
    token.has_logprobs = job.request.logprobs;
    token.logprobs.chosen = -0.25;
    for (std::int64_t k = 0; k < job.request.top_logprobs; ++k) {
      token.logprobs.top.push_back({token.id, -0.25 - static_cast<double>(k)});
    }
    ++summary.tokens;
    tokens_.fetch_add(1);
    if (job.sink->on_token(choice, token) == engine::Sink::Flow::Finish) {
      summary.reason = engine::FinishReason::Sink;
      break;
    }
  }
  if (is_cancelled(job.ticket) && summary.tokens == 0) {
    cancelled_.fetch_add(1);
    return job.sink->on_error(choice, Error{ErrorKind::Cancelled, "cancelled"});
  }
  job.sink->on_finish(choice, summary);
}

}  // namespace lockstep::test
