// Submission: everything that can be said about a request before it runs, in the caller's thread.
#include <algorithm>
#include <cmath>

#include "engine/scheduler.hpp"

namespace lockstep::engine {
namespace {

constexpr std::int64_t kDrainRetrySeconds = 10;

tl::unexpected<Refusal> refuse(RefusalReason reason, std::string message, std::uint64_t needed = 0,
                               std::uint64_t available = 0, std::int64_t retry = 0) {
  return tl::unexpected<Refusal>(Refusal{reason, std::move(message), needed, available, retry});
}

Status check_shape(const Request& request, const Limits& limits, bool drafts) {
  if (request.n < 1 || request.n > limits.max_choices) {
    return fail(ErrorKind::Invalid, "n is {}; it must be between 1 and {}", request.n, limits.max_choices);
  }
  if (request.max_tokens && *request.max_tokens < 0) {
    return fail(ErrorKind::Invalid, "max_tokens is {}; it must not be negative", *request.max_tokens);
  }
  const auto outside = [&](TokenId id) { return id < 0 || id >= limits.vocab; };
  for (const auto* ids : {&request.prompt, &request.stop_ids}) {
    const auto bad = std::find_if(ids->begin(), ids->end(), outside);
    if (bad == ids->end()) continue;
    return fail(ErrorKind::Invalid, "token id {} of the {} is outside the vocabulary of {}", *bad,
                ids == &request.prompt ? "prompt" : "stop tokens", limits.vocab);
  }
  std::int64_t before = 0;
  for (const std::int64_t boundary : request.boundaries) {
    if (boundary < before || boundary > static_cast<std::int64_t>(request.prompt.size())) {
      return fail(ErrorKind::Invalid, "message boundary {} does not ascend within a prompt of {} tokens", boundary,
                  request.prompt.size());
    }
    before = boundary;
  }
  if (request.sampler.acceptance == decode::AcceptanceRule::Rejection && !drafts) {
    return fail(ErrorKind::Invalid, "rejection acceptance needs speculative decoding, which is off");
  }
  return {};
}

}  // namespace

tl::expected<decode::DecodeRequest, Refusal> Scheduler::checked(const Request& request) const {
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (prompt >= limits_.context) {
    return refuse(
        RefusalReason::TooLarge,
        fmt::format("the prompt has {} tokens and leaves no room in the context of {}", prompt, limits_.context),
        static_cast<std::uint64_t>(prompt) + 1, static_cast<std::uint64_t>(limits_.context));
  }
  if (const Status shape = check_shape(request, limits_, drafts_); !shape) {
    return refuse(RefusalReason::Invalid, shape.error().message);
  }
  decode::DecodeRequest out;
  out.prompt = request.prompt;
  out.sampler = request.sampler;
  out.stop_ids = request.stop_ids;
  std::sort(out.stop_ids.begin(), out.stop_ids.end());
  out.vocab = limits_.vocab;
  out.logprobs = request.logprobs;
  out.top_logprobs = request.top_logprobs;
  out.prompt_logprobs = request.prompt_logprobs;
  const std::int64_t room = limits_.context - prompt;
  if (request.max_tokens) {
    out.prompt_only = *request.max_tokens == 0;
    out.max_tokens = std::min(*request.max_tokens, room);
  } else {
    // Never by the load of the moment: the same request gets the same budget.
    out.max_tokens =
        std::max<std::int64_t>(1, std::min({limits_.default_max_tokens, room, limits_.plan_tokens - prompt}));
  }
  auto params = decode::check_request(model_, out);
  if (!params) return refuse(RefusalReason::Invalid, params.error().message);
  out.sampler = *params;
  return out;
}

std::int64_t Scheduler::retry_after() const {
  const double rounds = static_cast<double>(queued_) / static_cast<double>(options_.parallel) + 1;
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(std::ceil(rounds * mean_seconds_)), 1, 120);
}

tl::expected<Ticket, Refusal> Scheduler::submit(Request request, std::shared_ptr<Sink> sink) {
  auto decode = checked(request);
  std::uint64_t bytes =
      decode ? plan_.choice(static_cast<std::int64_t>(decode->prompt.size()) + decode->max_tokens) : 0;
  if (request.prompt_logprobs) bytes += plan_.scored();
  const std::uint64_t kept = decode && request.n > 1 ? plan_.kept(static_cast<std::int64_t>(decode->prompt.size())) : 0;
  const std::lock_guard lock(mutex_);
  const auto refused = [&](tl::unexpected<Refusal> why) {
    refused_ += static_cast<std::uint64_t>(std::max<std::int64_t>(1, request.n));
    return why;
  };
  if (!poisoned_.empty()) {
    return refused(refuse(RefusalReason::Poisoned, fmt::format("the model must be loaded again: {}", poisoned_)));
  }
  if (draining_ || stopping_) {
    return refused(refuse(RefusalReason::Draining, "the engine is about to end", 0, 0, kDrainRetrySeconds));
  }
  if (!decode) return refused(tl::unexpected<Refusal>(decode.error()));
  if (bytes + kept > plan_.total()) {
    return refused(refuse(RefusalReason::TooLarge,
                          fmt::format("{} prompt tokens and up to {} more need {} bytes; the memory plan has {}",
                                      decode->prompt.size(), decode->max_tokens, bytes + kept, plan_.total()),
                          bytes + kept, plan_.total()));
  }
  // A choice that can start at once is no load on the queue.
  const std::int64_t free = std::max<std::int64_t>(0, options_.parallel - (pending_ - published_.paused));
  if (queued_ + request.n > options_.queue + free) {
    return refused(refuse(RefusalReason::QueueFull,
                          fmt::format("{} choices wait and {} more were asked for; the queue takes {}", queued_,
                                      request.n, options_.queue),
                          static_cast<std::uint64_t>(request.n),
                          static_cast<std::uint64_t>(std::max<std::int64_t>(0, options_.queue - queued_)),
                          retry_after()));
  }
  auto group = std::make_shared<Group>();
  group->ticket = ++last_ticket_;
  group->sink = std::move(sink);
  group->priority = request.priority;
  group->seed = decode->sampler.seed;
  group->bypass_bank = request.bypass_bank || request.prompt_logprobs;
  group->prompt_logprobs = request.prompt_logprobs;
  group->boundaries = std::move(request.boundaries);
  group->submitted = Clock::now();
  group->waiting = request.n;
  group->kept_bytes = kept;
  for (std::int64_t i = 0; i < request.n; ++i) {
    auto job = std::make_unique<Job>();
    job->group = group;
    job->choice = i;
    job->order = ++order_;
    job->request = *decode;
    job->request.sampler.seed = choice_seed(group->seed, static_cast<std::uint64_t>(i));
    job->bytes = bytes;
    incoming_.push_back(std::move(job));
  }
  pending_ += request.n;
  queued_ += request.n;
  accepted_ += static_cast<std::uint64_t>(request.n);
  wake_.notify_all();
  return group->ticket;
}

}  // namespace lockstep::engine
