#include "server/model_context.hpp"

#include <algorithm>

#include "text/chat_prompt.hpp"

namespace lockstep::server {
namespace {

/// Positions behind the tokens that end a turn. What users write makes no such tokens.
std::vector<std::int64_t> message_ends(const ModelContext& model, const std::vector<decode::TokenId>& tokens) {
  std::vector<std::int64_t> ends;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (std::ranges::binary_search(model.defaults.stop_ids, tokens[i])) {
      ends.push_back(static_cast<std::int64_t>(i) + 1);
    }
  }
  return ends;
}

Parsed<PreparedPrompt> chat_prompt(const ModelContext& model, const GenerationRequest& request) {
  text::ChatOptions options;
  options.tools = request.tools;
  options.add_generation_prompt = true;
  options.extra = request.variables;
  Result<text::ChatPrompt> made =
      text::make_chat_prompt(model.chat_template, model.tokenizer, request.messages, options);
  if (!made) {
    ApiError error = from_error(made.error(), request.api == Api::Responses ? "input" : "messages");
    error.message = "the model's chat template: " + error.message;
    return tl::unexpected(std::move(error));
  }
  PreparedPrompt prompt;
  prompt.text = std::move(made->text);
  prompt.tokens = std::move(made->tokens);
  prompt.reasoning_open = made->reasoning_open;
  prompt.boundaries = message_ends(model, prompt.tokens);
  return prompt;
}

Parsed<PreparedPrompt> raw_prompt(const ModelContext& model, const GenerationRequest::Prompt& given) {
  PreparedPrompt prompt;
  if (const auto* ids = std::get_if<std::vector<decode::TokenId>>(&given)) {
    prompt.tokens = *ids;
    prompt.text = model.tokenizer.decode(*ids, false);
    return prompt;
  }
  prompt.text = std::get<std::string>(given);
  Result<std::vector<decode::TokenId>> tokens = model.tokenizer.encode(prompt.text);
  if (!tokens) return tl::unexpected(from_error(tokens.error(), "prompt"));
  prompt.tokens = *std::move(tokens);
  return prompt;
}

}  // namespace

Parsed<std::vector<PreparedPrompt>> prepare_prompts(const ModelContext& model, const GenerationRequest& request) {
  std::vector<PreparedPrompt> out;
  if (request.api != Api::Completions) {
    Parsed<PreparedPrompt> prompt = chat_prompt(model, request);
    if (!prompt) return tl::unexpected(prompt.error());
    out.push_back(*std::move(prompt));
    return out;
  }
  for (const GenerationRequest::Prompt& given : request.prompts) {
    Parsed<PreparedPrompt> prompt = raw_prompt(model, given);
    if (!prompt) return tl::unexpected(prompt.error());
    out.push_back(*std::move(prompt));
  }
  return out;
}

engine::Request engine_request(const ModelContext& model, const GenerationRequest& request,
                               const PreparedPrompt& prompt, std::uint64_t seed, bool bypass_bank) {
  const auto set = [](auto& target, const auto& given) {
    if (given) target = *given;
  };
  engine::Request out;
  out.prompt = prompt.tokens;
  out.boundaries = prompt.boundaries;
  out.sampler = model.defaults.sampler;
  set(out.sampler.temperature, request.sampling.temperature);
  set(out.sampler.top_p, request.sampling.top_p);
  set(out.sampler.top_k, request.sampling.top_k);
  set(out.sampler.min_p, request.sampling.min_p);
  set(out.sampler.presence_penalty, request.sampling.presence_penalty);
  set(out.sampler.frequency_penalty, request.sampling.frequency_penalty);
  out.sampler.logit_bias = request.sampling.logit_bias;
  out.sampler.seed = seed;
  out.n = request.n;
  out.stop_ids = model.defaults.stop_ids;
  if (request.max_tokens) {
    // An answer ends with the context anyway; clients like to ask for more than there is.
    const std::int64_t room = model.engine->limits().context - static_cast<std::int64_t>(prompt.tokens.size());
    out.max_tokens = std::min(*request.max_tokens, std::max<std::int64_t>(room, 1));
  }
  out.logprobs = request.logprobs;
  out.top_logprobs = request.top_logprobs;
  out.prompt_logprobs = request.echo && request.logprobs;
  out.bypass_bank = bypass_bank;
  return out;
}

}  // namespace lockstep::server
