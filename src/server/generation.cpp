#include "server/generation.hpp"

#include <algorithm>
#include <ctime>
#include <random>

#include "base/sha256.hpp"
#include "server/prompt_sink.hpp"

namespace lockstep::server {
namespace {

/// Log-probabilities that a response may hold. As JSON one takes some hundred bytes, outside of the memory plan.
constexpr std::int64_t kMaxLogprobs = std::int64_t{1} << 20;

/// Bytes that may wait for a slow reader before its request pauses.
constexpr std::size_t kMaxWaiting = std::size_t{256} << 10;

std::size_t weight(const std::vector<AnswerEvent>& events, const std::vector<TokenRecord>& records) {
  std::size_t bytes = records.size() * 256;
  for (const AnswerEvent& event : events) bytes += event.text.size() + 64;
  return bytes;
}

}  // namespace

HttpResponse error_response(const ApiError& error, ErrorShape shape) {
  HttpResponse response;
  response.status = error.status;
  response.error = error.code;
  response.body = dump(error_body(error, shape)) + "\n";
  if (error.retry_after_seconds > 0) {
    response.headers.emplace_back("retry-after", std::to_string(error.retry_after_seconds));
  }
  return response;
}

Generation::Generation(std::shared_ptr<Exchange> exchange, Service& service, std::shared_ptr<const ModelContext> model,
                       GenerationRequest request)
    : exchange_(std::move(exchange)), service_(service), model_(std::move(model)), request_(std::move(request)) {
  if (!request_.tools.is_null()) schemas_ = text::ToolSchemas::from_json(request_.tools);
}

Generation::~Generation() {
  service_.remove(exchange_->id());
}

AnswerHead Generation::make_head() const {
  AnswerHead head;
  head.id = exchange_->id();
  head.created = static_cast<std::int64_t>(std::time(nullptr));
  head.model = service_.options().model_id;
  head.fingerprint = model_->fingerprint;
  head.request_sha256 = request_sha256_;
  head.identity = model_->identity;
  return head;
}

Parsed<void> Generation::check_amounts() const {
  const auto invalid = [](std::string param, std::string message) {
    return tl::unexpected(ApiError{400, "invalid_value", std::move(param), std::move(message), 0});
  };
  for (const auto& [id, bias] : request_.sampling.logit_bias) {
    if (id < model_->vocab) continue;
    return invalid(fmt::format("logit_bias.{}", id), fmt::format("the vocabulary has ids 0 to {}", model_->vocab - 1));
  }
  // What an empty server could not take would be told to come again for ever.
  const engine::Limits& limits = model_->engine->limits();
  const auto prompts = static_cast<std::int64_t>(std::max<std::size_t>(1, request_.prompts.size()));
  const std::int64_t most = limits.queue + limits.parallel;
  if (prompts * request_.n > most) {
    return invalid(prompts > 1 ? "prompt" : "n",
                   fmt::format("{} prompts with n = {} are {} choices; this server takes at most {} at once", prompts,
                               request_.n, prompts * request_.n, most));
  }
  return {};
}

Parsed<void> Generation::check_logprobs() const {
  if (!request_.logprobs) return {};
  const engine::Limits& limits = model_->engine->limits();
  std::int64_t tokens = 0;
  for (const engine::Request& one : requests_) {
    const auto prompt = static_cast<std::int64_t>(one.prompt.size());
    const std::int64_t room = std::max<std::int64_t>(1, limits.context - prompt);
    const std::int64_t answer = std::min(one.max_tokens.value_or(limits.default_max_tokens), room);
    // Those of a streamed answer leave as they come.
    tokens += request_.n * ((request_.echo ? prompt : 0) + (request_.stream ? 0 : answer));
  }
  if (tokens * (1 + request_.top_logprobs) <= kMaxLogprobs) return {};
  return tl::unexpected(ApiError{
      413, "limit_exceeded", request_.api == Api::Chat && request_.top_logprobs > 0 ? "top_logprobs" : "logprobs",
      fmt::format("{} tokens may come, each with {} log-probabilities; a response holds {} of them: set a lower "
                  "max_tokens, or stream",
                  tokens, 1 + request_.top_logprobs, kMaxLogprobs),
      0});
}

Parsed<void> Generation::prepare(const Unwanted& unwanted) {
  const std::string_view cache = exchange_->request().header("x-lockstep-cache");
  if (!cache.empty() && cache != "bypass") {
    return tl::unexpected(ApiError{400, "invalid_value", "x-lockstep-cache", "must be 'bypass', or absent", 0});
  }
  const std::string_view ids = exchange_->request().header("x-lockstep-ids");
  if (!ids.empty() && ids != "include") {
    return tl::unexpected(ApiError{400, "invalid_value", "x-lockstep-ids", "must be 'include', or absent", 0});
  }
  with_ids_ = !ids.empty();
  if (Parsed<void> amounts = check_amounts(); !amounts) return amounts;
  Parsed<std::vector<PreparedPrompt>> prompts = prepare_prompts(*model_, request_, unwanted);
  if (!prompts) return tl::unexpected(prompts.error());
  prompts_ = *std::move(prompts);
  const std::uint64_t seed = request_.sampling.seed.value_or(std::random_device{}() & 0x7fffffffU);
  for (const PreparedPrompt& prompt : prompts_) {
    requests_.push_back(engine_request(*model_, request_, prompt, seed, !cache.empty()));
  }
  if (Parsed<void> logprobs = check_logprobs(); !logprobs) return logprobs;
  request_sha256_ = sha256_hex(exchange_->request().body);
  return {};
}

void Generation::run() {
  exchange_->drop_body();
  writer_ = make_writer(request_, make_head());
  left_ = prompts_.size() * static_cast<std::size_t>(request_.n);
  results_.resize(left_);
  exchange_->note("api", std::string(exchange_->request().path));
  exchange_->note("stream", request_.stream);
  if (!submit()) return;
  service_.add(exchange_->id(), shared_from_this());
  exchange_->on_gone([weak = weak_from_this()] {
    if (const auto self = weak.lock()) {
      self->over_ = true;
      self->cancel();
    }
  });
  if (!request_.stream) return;
  exchange_->on_sent([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->make_room();
  });
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  head.headers = {{"cache-control", "no-cache"}, {"x-accel-buffering", "no"}};
  exchange_->start_stream(head);
  exchange_->every(service_.options().keep_alive_seconds, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->tick();
  });
}

bool Generation::submit() {
  const auto refused = [&](const ApiError& error) {
    over_ = true;
    cancel();
    exchange_->respond(error_response(error, error_shape(request_.api)));
    return false;
  };
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Result<text::StopMatcher> stop = text::StopMatcher::create(request_.stop);
    if (!stop) return refused(from_error(stop.error(), request_.api == Api::Messages ? "stop_sequences" : "stop"));
    const auto sink = std::make_shared<PromptSink>(shared_from_this(), i, *stop);
    const auto ticket = model_->engine->submit(std::move(requests_[i]), sink);
    if (!ticket) return refused(from_refusal(ticket.error()));
    const std::lock_guard lock(mutex_);
    tickets_.push_back(*ticket);
  }
  requests_.clear();
  return true;
}

void Generation::cancel() {
  std::vector<engine::Ticket> tickets;
  {
    const std::lock_guard lock(mutex_);
    tickets = tickets_;
  }
  for (const engine::Ticket ticket : tickets) model_->engine->cancel(ticket);
}

void Generation::deliver(Delivery delivery) {
  {
    const std::lock_guard lock(mutex_);
    inbox_bytes_ += weight(delivery.events, delivery.records);
    inbox_.push_back(std::move(delivery));
    if (scheduled_) return;
    scheduled_ = true;
  }
  exchange_->post([self = shared_from_this()] { self->flush(); });
}

bool Generation::has_room() {
  if (!request_.stream) return true;
  const std::lock_guard lock(mutex_);
  full_ = inbox_bytes_ + exchange_->unsent() > kMaxWaiting;
  return !full_;
}

void Generation::make_room() {
  {
    const std::lock_guard lock(mutex_);
    if (!full_ || inbox_bytes_ + exchange_->unsent() > kMaxWaiting) return;
    full_ = false;
  }
  model_->engine->wake();
}

void Generation::flush() {
  std::vector<Delivery> deliveries;
  {
    const std::lock_guard lock(mutex_);
    deliveries.swap(inbox_);
    inbox_bytes_ = 0;
    scheduled_ = false;
  }
  // Tokens that came together go out together.
  for (std::size_t i = 0; i < deliveries.size(); ++i) {
    Delivery& delivery = deliveries[i];
    const auto mergeable = [&](const Delivery& next) {
      return next.kind == Delivery::Kind::Events && delivery.kind == Delivery::Kind::Events &&
             next.choice == delivery.choice;
    };
    for (; i + 1 < deliveries.size() && mergeable(deliveries[i + 1]); ++i) {
      std::ranges::move(deliveries[i + 1].events, std::back_inserter(delivery.events));
      std::ranges::move(deliveries[i + 1].records, std::back_inserter(delivery.records));
    }
    if (!over_) take(delivery);
  }
  make_room();
}

void Generation::take(Delivery& delivery) {
  switch (delivery.kind) {
    case Delivery::Kind::Start:
      return take_start(delivery.start);
    case Delivery::Kind::Progress:
      done_ = delivery.done;
      total_ = delivery.total;
      return;
    case Delivery::Kind::Events:
      return write(writer_->events(delivery.choice, delivery.events, delivery.records));
    case Delivery::Kind::Result:
      return take_result(std::move(delivery.result));
    case Delivery::Kind::Error:
      return fail(delivery.error);
  }
}

void Generation::take_start(const engine::Start& start) {
  starts_.push_back(start);
  total_ = start.prompt_tokens;
  done_ = start.cached_tokens;
  if (started_) return;
  started_ = true;
  if (request_.stream) write(writer_->start(usage()));
}

void Generation::take_result(std::unique_ptr<ChoiceResult> result) {
  if (request_.stream) write(writer_->finish(*result));
  results_[result->index] = std::move(result);
  if (--left_ == 0) complete();
}

Usage Generation::usage() const {
  Usage usage;
  for (const engine::Start& start : starts_) {
    usage.prompt_tokens += start.prompt_tokens;
    usage.cached_tokens += start.cached_tokens;
  }
  for (const auto& result : results_) {
    if (!result) continue;
    usage.completion_tokens += result->summary.tokens;
    usage.reasoning_tokens += result->reasoning_tokens;
  }
  return usage;
}

void Generation::complete() {
  over_ = true;
  service_.remove(exchange_->id());  // before the client can know that there is nothing left to cancel
  const Usage total = usage();
  std::vector<ChoiceResult> choices;
  for (auto& result : results_) choices.push_back(std::move(*result));
  note(total);
  exchange_->note("ttft_seconds", choices[0].summary.first_token_seconds);
  exchange_->note("finish", openai_reason(choices[0].ending));
  if (request_.stream) {
    write(writer_->end(choices, total));
    return exchange_->end_stream();
  }
  HttpResponse response;
  response.body = dump(writer_->body(choices, total)) + "\n";
  exchange_->respond(std::move(response));
}

void Generation::fail(const ApiError& error) {
  over_ = true;
  service_.remove(exchange_->id());  // before the client can know that there is nothing left to cancel
  cancel();
  note(usage());
  if (!request_.stream) return exchange_->respond(error_response(error, error_shape(request_.api)));
  exchange_->note("error", error.code);
  write(writer_->error(error));
  exchange_->end_stream();
}

void Generation::note(const Usage& usage) {
  exchange_->note("prompt_tokens", usage.prompt_tokens);
  exchange_->note("cached_tokens", usage.cached_tokens);
  exchange_->note("tokens", usage.completion_tokens);
}

void Generation::tick() {
  if (over_) return;
  if (!wrote_) exchange_->write(writer_->keep_alive(done_, total_));
  wrote_ = false;
}

void Generation::write(const std::string& piece) {
  if (piece.empty()) return;
  exchange_->write(piece);
  wrote_ = true;
}

}  // namespace lockstep::server
