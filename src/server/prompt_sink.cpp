#include "server/prompt_sink.hpp"

#include <algorithm>

namespace lockstep::server {

Generation::PromptSink::PromptSink(std::shared_ptr<Generation> owner, std::size_t prompt, const text::StopMatcher& stop)
    : owner_(std::move(owner)), prompt_(prompt) {
  const GenerationRequest& request = owner_->request_;
  AssemblerOptions options;
  options.split = request.api != Api::Completions;
  options.reasoning_open = owner_->prompts_[prompt].reasoning_open;
  options.tool_calls = !request.tools.is_null();
  options.one_call = request.one_call;
  options.schemas = owner_->schemas_;
  for (std::int64_t i = 0; i < request.n; ++i) choices_.emplace_back(AnswerAssembler(options, stop));
}

std::string_view Generation::PromptSink::bytes_of(decode::TokenId id) const {
  const text::Tokenizer& tokenizer = owner_->model_->tokenizer;
  return tokenizer.is_special(id) ? std::string_view() : tokenizer.token_bytes(id);
}

TokenRecord Generation::PromptSink::record(decode::TokenId id, const decode::Logprobs& logprobs) const {
  const text::Tokenizer& tokenizer = owner_->model_->tokenizer;
  TokenRecord out;
  out.chosen = {std::string(tokenizer.token_bytes(id)), logprobs.chosen};
  for (const decode::TokenLogprob& other : logprobs.top) {
    out.top.push_back({std::string(tokenizer.token_bytes(other.id)), other.logprob});
  }
  return out;
}

void Generation::PromptSink::on_start(const engine::Start& start) {
  start_ = start;
  Delivery delivery;
  delivery.kind = Delivery::Kind::Start;
  delivery.start = start;
  owner_->deliver(std::move(delivery));
}

void Generation::PromptSink::on_prefill(std::int64_t done, std::int64_t total) {
  Delivery delivery;
  delivery.kind = Delivery::Kind::Progress;
  delivery.done = done;
  delivery.total = total;
  owner_->deliver(std::move(delivery));
}

void Generation::PromptSink::on_prompt_token(const engine::PromptToken& token) {
  prompt_records_.push_back(record(token.id, token.logprobs));
  prompt_records_.back().has_logprob = token.has_logprobs;
}

engine::Sink::Flow Generation::PromptSink::on_token(std::int64_t choice, const engine::Token& token) {
  Choice& state = choices_[static_cast<std::size_t>(choice)];
  const Clock::time_point now = Clock::now();
  if (state.last) owner_->service_.metrics().token_gap(std::chrono::duration<double>(now - *state.last).count());
  state.last = now;
  state.ids.push_back(token.id);
  if (state.assembler.in_reasoning()) ++state.reasoning_tokens;
  Delivery delivery;
  delivery.choice = prompt_ * choices_.size() + static_cast<std::size_t>(choice);
  echo(state, delivery.choice);
  state.assembler.push(bytes_of(token.id), delivery.events);
  if (token.has_logprobs) {
    delivery.records.push_back(record(token.id, token.logprobs));
    if (!owner_->request_.stream) state.records.push_back(delivery.records.back());
  }
  send(state, std::move(delivery));
  return state.assembler.ended() ? Flow::Finish : Flow::Continue;
}

void Generation::PromptSink::echo(Choice& choice, std::size_t index) {
  if (!owner_->request_.echo || !owner_->request_.stream || choice.echoed) return;
  choice.echoed = true;
  Delivery delivery;
  delivery.choice = index;
  delivery.records = prompt_records_;
  delivery.events.push_back({AnswerEvent::Kind::Content, 0, owner_->prompts_[prompt_].text, false});
  owner_->deliver(std::move(delivery));
}

void Generation::PromptSink::send(Choice& choice, Delivery delivery) {
  append_events(delivery.events, choice.parts);
  if (!owner_->request_.stream || (delivery.events.empty() && delivery.records.empty())) return;
  owner_->deliver(std::move(delivery));
}

Ending Generation::PromptSink::ending(const Choice& choice, engine::FinishReason reason) {
  if (!choice.assembler.stop_string().empty()) return Ending::StopString;
  if (reason == engine::FinishReason::Length) return Ending::Length;
  std::size_t calls = 0;
  for (const AnswerPart& part : choice.parts) {
    if (part.kind != AnswerPart::Kind::Call) continue;
    if (!part.complete) return Ending::Stop;
    ++calls;
  }
  return calls > 0 ? Ending::Calls : Ending::Stop;
}

void Generation::PromptSink::on_finish(std::int64_t choice, const engine::Summary& summary) {
  Choice& state = choices_[static_cast<std::size_t>(choice)];
  const std::size_t index = prompt_ * choices_.size() + static_cast<std::size_t>(choice);
  Delivery rest;
  rest.choice = index;
  echo(state, index);
  state.assembler.finish(rest.events);
  send(state, std::move(rest));

  auto result = std::make_unique<ChoiceResult>();
  result->index = index;
  result->ending = ending(state, summary.reason);
  result->stop_string = std::string(state.assembler.stop_string());
  result->parts = std::move(state.parts);
  result->records = std::move(state.records);
  if (owner_->request_.echo) {
    result->echo = owner_->prompts_[prompt_].text;
    result->prompt_records = prompt_records_;
  }
  result->start = start_;
  result->summary = summary;
  result->reasoning_tokens = state.reasoning_tokens;
  result->prompt_sha256 = owner_->prompts_[prompt_].ids_sha256;
  result->ids_sha256 = ids_digest(state.ids);
  if (owner_->with_ids_) result->ids = std::move(state.ids);
  if (summary.first_token_seconds > 0) owner_->service_.metrics().first_token(summary.first_token_seconds);
  owner_->service_.count_lanes(summary.lanes);

  Delivery last;
  last.kind = Delivery::Kind::Result;
  last.choice = index;
  last.result = std::move(result);
  owner_->deliver(std::move(last));
}

void Generation::PromptSink::on_error(std::int64_t choice, const Error& error) {
  Delivery delivery;
  delivery.kind = Delivery::Kind::Error;
  delivery.choice = prompt_ * choices_.size() + static_cast<std::size_t>(choice);
  delivery.error = from_error(error);
  owner_->deliver(std::move(delivery));
}

}  // namespace lockstep::server
